"""A model of texts over HTTP: the OpenAI embeddings protocol, ranking and labels, with dynamic batching."""
