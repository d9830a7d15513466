"""Chroma's `EmbeddingFunction`."""

from __future__ import annotations

import os
from typing import Any

from chromadb.api.types import Documents, EmbeddingFunction, Embeddings, Space
from chromadb.utils.embedding_functions import register_embedding_function

from hccs.errors import DataError, FileError
from hccs.text.adapters import DOCUMENT, QUERY, encoder_of, prompt_for


@register_embedding_function
class HccsEmbeddingFunction(EmbeddingFunction[Documents]):
    """The encoder in a file for Chroma, which stores its path and fingerprint with a collection."""

    def __init__(
        self, model: str | os.PathLike[str], *, dims: int | None = None, fingerprint: str | None = None
    ) -> None:
        self.path, self.dims, self.encoder = os.fspath(model), dims, encoder_of(model)
        if fingerprint not in (None, self.encoder.fingerprint):
            raise FileError(
                f"the model of the collection, fingerprint {fingerprint}",
                f"{self.encoder.fingerprint} in {self.path}",
                "Its vectors are not comparable: put the old file back, or embed the collection again.",
            )

    def __call__(self, input: Documents) -> Embeddings:
        return self._encoded(input, DOCUMENT)

    def embed_query(self, input: Documents) -> Embeddings:
        return self._encoded(input, QUERY)

    def _encoded(self, texts: Documents, names: tuple[str, ...]) -> Embeddings:
        return list(self.encoder.encode(texts, prompt=prompt_for(self.encoder, names), dims=self.dims))

    @staticmethod
    def name() -> str:
        return "hccs"

    def default_space(self) -> Space:
        return "cosine"

    def get_config(self) -> dict[str, Any]:
        return {"model": self.path, "dims": self.dims, "fingerprint": self.encoder.fingerprint}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> HccsEmbeddingFunction:
        return HccsEmbeddingFunction(config["model"], dims=config["dims"], fingerprint=config["fingerprint"])

    def validate_config_update(self, old_config: dict[str, Any], new_config: dict[str, Any]) -> None:
        """A collection may move its file, but not change its model."""
        if any(old_config[key] != new_config[key] for key in ("dims", "fingerprint")):
            raise DataError("the collection's own model", "another", "Make a new collection for it.")
