"""LlamaIndex's `BaseEmbedding`."""

from __future__ import annotations

import asyncio
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import PrivateAttr

from hccs.text.adapters import DOCUMENT, QUERY, Source, encoder_of, prompt_for
from hccs.text.encoder import Encoder


class HccsEmbedding(BaseEmbedding):
    """An encoder for LlamaIndex; its asynchronous methods run the others in a thread."""

    _encoder: Encoder = PrivateAttr()
    _dims: int | None = PrivateAttr()

    def __init__(self, model: Source, *, dims: int | None = None, **settings: Any) -> None:
        encoder = encoder_of(model)
        super().__init__(**{"model_name": f"hccs-{encoder.fingerprint[:16]}", **settings})
        self._encoder, self._dims = encoder, dims

    @classmethod
    def class_name(cls) -> str:
        return "HccsEmbedding"

    def _encoded(self, texts: Any, names: tuple[str, ...]) -> Any:
        prompt = prompt_for(self._encoder, names)
        return self._encoder.encode(texts, prompt=prompt, dims=self._dims).tolist()

    def _get_query_embedding(self, query: str) -> list[float]:
        return list(self._encoded(query, QUERY))

    def _get_text_embedding(self, text: str) -> list[float]:
        return list(self._encoded(text, DOCUMENT))

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return list(self._encoded(texts, DOCUMENT))

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return await asyncio.to_thread(self._get_query_embedding, query)

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return await asyncio.to_thread(self._get_text_embedding, text)

    async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        return await asyncio.to_thread(self._get_text_embeddings, texts)
