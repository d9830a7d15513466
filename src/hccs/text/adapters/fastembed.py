"""The methods of fastembed's `TextEmbedding`, without that library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from hccs.text.adapters import DOCUMENT, QUERY, Source, encoder_of, prompt_for

if TYPE_CHECKING:
    import numpy as np
from numpy.typing import NDArray


class TextEmbedding:
    """Vectors one by one from any iterable of texts, which is read as they are asked for."""

    def __init__(self, model_name: Source, *, threads: int | None = None, dims: int | None = None) -> None:
        self.encoder, self.threads = encoder_of(model_name), threads
        self.embedding_size = self.encoder.dims if dims is None else dims

    def embed(
        self, documents: str | Iterable[str], batch_size: int = 256, **kwargs: Any
    ) -> Iterator[NDArray[np.float32]]:
        """Vectors in order, of `batch_size` texts at a time; options for other runtimes are ignored."""
        return self._encoded(documents, batch_size, None)

    def query_embed(self, query: str | Iterable[str], **kwargs: Any) -> Iterator[NDArray[np.float32]]:
        """Vectors of queries, with the model's prompt for them."""
        return self._encoded(query, 256, prompt_for(self.encoder, QUERY))

    def passage_embed(self, texts: Iterable[str], **kwargs: Any) -> Iterator[NDArray[np.float32]]:
        """Vectors of passages, with the model's prompt for them."""
        return self._encoded(texts, 256, prompt_for(self.encoder, DOCUMENT))

    def _encoded(
        self, texts: str | Iterable[str], batch_size: int, prompt: str | None
    ) -> Iterator[NDArray[np.float32]]:
        left = iter([texts] if isinstance(texts, str) else texts)
        while batch := list(islice(left, batch_size)):
            yield from self.encoder.encode(
                batch, prompt=prompt, threads=self.threads, dims=self.embedding_size
            )
