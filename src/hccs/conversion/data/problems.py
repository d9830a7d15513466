"""The problems that models solve: a label or a value of a text or a pair, a label per word, of an image.

A reranker's value of a pair, a query and a passage, counts by its order. Embeddings have a run of their own.
"""

PROBLEMS = ("classification", "regression", "tokens", "images", "rerank")
CLASSIFICATION, REGRESSION, TOKENS, IMAGES, RERANK = PROBLEMS

VALUES = (REGRESSION, RERANK)
"""Problems whose models have one output, a value."""

EMBEDDINGS = "embeddings"
"""A problem with runs of a kind of their own."""

IGNORED = -100
"""The label of tokens that have none: the first token of a word carries the word's."""
