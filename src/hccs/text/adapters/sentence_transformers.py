"""The methods of `sentence_transformers.SentenceTransformer`, without that library; tensors need torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from hccs._extras import require
from hccs.errors import ParameterError
from hccs.text.adapters import DOCUMENT, QUERY, Source, encoder_of, prompt_for

PRECISIONS = ("float32", "int8")


class EvaluationRecord:
    """Where the library's evaluators put their metrics: the latest ones by the evaluator's name."""

    def __init__(self) -> None:
        self.metrics: dict[str, dict[str, Any]] = {}

    def set_evaluation_metrics(
        self, evaluator: Any, metrics: dict[str, Any], epoch: int = 0, step: int = 0
    ) -> None:
        self.metrics[getattr(evaluator, "name", "") or type(evaluator).__name__] = metrics


class SentenceTransformer:
    """An encoder where a `SentenceTransformer` is asked for: search, evaluators, pipelines.

    Options that cannot change a result (`batch_size`, `show_progress_bar`, `device`) are taken as they come.
    """

    similarity_fn_name = "cosine"

    def __init__(self, model_name_or_path: Source, *, truncate_dim: int | None = None) -> None:
        self.encoder, self.truncate_dim = encoder_of(model_name_or_path), truncate_dim
        self.model_card_data = EvaluationRecord()

    def encode(
        self,
        sentences: Any,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: Any = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        **options: Any,
    ) -> Any:
        """Vectors of length 1: an array, a tensor, or a list of tensors without `convert_to_numpy`."""
        if output_value != "sentence_embedding" or precision not in (None, *PRECISIONS):
            raise ParameterError(
                f"sentence embeddings in {' or '.join(PRECISIONS)}",
                f"{output_value}, {precision}",
                "hccs.Encoder.encode gives int16 besides.",
            )
        single = isinstance(sentences, str)
        texts = sentences
        if prompt is not None:
            prompt_name = ""
            texts = prompt + sentences if single else [prompt + text for text in sentences]
        found = self.encoder.encode(
            texts,
            prompt=prompt_name,
            dims=truncate_dim or self.truncate_dim,
            out=precision or "float32",
            progress=bool(show_progress_bar),
        )
        if convert_to_numpy and not convert_to_tensor:
            return found
        torch = require("torch", "torch", "for tensors")
        tensor = torch.from_numpy(np.ascontiguousarray(found))
        tensor = tensor if device is None else tensor.to(device)
        return tensor if convert_to_tensor or single else list(tensor)

    def encode_query(self, sentences: Any, prompt_name: str | None = None, **options: Any) -> Any:
        """`encode` with the model's prompt for queries."""
        return self.encode(sentences, prompt_name or prompt_for(self.encoder, QUERY), **options)

    def encode_document(self, sentences: Any, prompt_name: str | None = None, **options: Any) -> Any:
        """`encode` with the model's prompt for documents."""
        return self.encode(sentences, prompt_name or prompt_for(self.encoder, DOCUMENT), **options)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Cosines of all pairs: a tensor, as the library returns."""
        torch = require("torch", "torch", "for tensors")
        pair = [np.asarray(part) for part in (embeddings1, embeddings2)]
        return torch.from_numpy(self.encoder.similarity(*pair))

    def get_sentence_embedding_dimension(self) -> int:
        return self.truncate_dim or self.encoder.dims

    get_embedding_dimension = get_sentence_embedding_dimension

    @property
    def max_seq_length(self) -> int:
        return self.encoder.max_length

    def get_max_seq_length(self) -> int:
        return self.encoder.max_length

    @property
    def prompts(self) -> dict[str, str]:
        return dict(self.encoder.settings.prompts)
