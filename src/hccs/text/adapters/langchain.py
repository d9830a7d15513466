"""LangChain's `Embeddings`."""

from __future__ import annotations

from langchain_core.embeddings import Embeddings

from hccs.text.adapters import DOCUMENT, QUERY, Source, encoder_of, prompt_for


class HccsEmbeddings(Embeddings):
    """An encoder for LangChain; its asynchronous methods run the others in a thread."""

    def __init__(self, model: Source, *, dims: int | None = None) -> None:
        self.encoder, self.dims = encoder_of(model), dims

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        prompt = prompt_for(self.encoder, DOCUMENT)
        vectors: list[list[float]] = self.encoder.encode(texts, prompt=prompt, dims=self.dims).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        prompt = prompt_for(self.encoder, QUERY)
        vector: list[float] = self.encoder.encode(text, prompt=prompt, dims=self.dims).tolist()
        return vector
