"""`Encoder`: texts to unit vectors."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hccs.errors import DtypeError, ParameterError, ShapeError
from hccs.numbers.layers import INT8_LIMIT, INT16_LIMIT
from hccs.program.model import IntegerModel
from hccs.program.program import EMBEDDINGS
from hccs.text.text_model import TextModel, list_of_texts

MOST_SIZES = 8
"""Sizes of shorter vectors whose programs are kept."""

OUTS = ("float32", "int16", "int8")


class Encoder(TextModel):
    """Texts to unit vectors, the same bits on every machine.

    model = hccs.Encoder.load("model.hccs")
    vectors = model.encode(["a query", "a passage"])
    """

    kinds = (EMBEDDINGS,)

    def __init__(self, model: IntegerModel) -> None:
        super().__init__(model)
        self._by_dims = {self.dims: model}
        self._lock = threading.Lock()

    @property
    def dims(self) -> int:
        """Channels of a vector."""
        return self.model.width

    def encode(
        self,
        texts: Any,
        *,
        batch_size: int | None = None,
        threads: int | None = None,
        dims: int | None = None,
        out: str = "float32",
        prompt: str | None = None,
        progress: bool = False,
    ) -> NDArray[Any]:
        """Vectors [len(texts), dims]; of one str a vector [dims].

        `out` is "int16", where 32767 stands for 1, "float32", the same divided by 32767, or "int8", the same
        divided by 256 and rounded. `dims` takes so many first channels before they get length 1. `prompt`
        names a prefix of the model; "" is none, and None the model's default. At most `batch_size` texts run
        at once; results depend neither on it nor on `threads`.
        """
        if out not in OUTS:
            raise ParameterError(f"out among {', '.join(OUTS)}", repr(out), "Leave it out for float32.")
        single = isinstance(texts, str)
        prefix = self.prefix(prompt)
        listed = [prefix + text for text in list_of_texts([texts] if single else texts)]
        units = self.answers(
            listed, dims=dims, batch_size=batch_size, threads=threads, progress=progress
        ).rows
        return as_dtype(units[0] if single else units, out)

    def similarity(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.float32]:
        """Cosines [len(a), len(b)] of vectors, float32. Sums of integers are exact, in whatever order."""
        first, second = (_rows(vectors) for vectors in (a, b))
        if first.shape[1] != second.shape[1]:
            raise ShapeError(
                f"vectors of {first.shape[1]} channels, as the others", str(second.shape[1]), "Use one dims."
            )
        lengths = np.sqrt((first**2).sum(1))[:, None] * np.sqrt((second**2).sum(1))
        cosines: NDArray[np.float32] = (first @ second.T / np.maximum(lengths, 1e-300)).astype(np.float32)
        return cosines

    def prefix(self, prompt: str | None) -> str:
        """What the prompt of this name puts in front of a text; None is the model's default."""
        settings = self.settings
        name = settings.default_prompt if prompt is None else prompt
        if not name:
            return ""
        if not isinstance(name, str) or name not in settings.prompts:
            known = ", ".join(map(repr, settings.prompts)) or "none"
            raise ParameterError(
                f"the name of one of the model's prompts ({known})",
                repr(name),
                "Put a prefix of your own in front of the texts.",
            )
        return settings.prompts[name]

    def _model_of(self, dims: int | None) -> IntegerModel:
        """The model whose vectors have so many channels; its program is checked once."""
        dims = self.dims if dims is None else dims
        if not isinstance(dims, int | np.integer) or isinstance(dims, bool) or not 1 <= dims <= self.dims:
            raise ParameterError(f"dims from 1 to {self.dims}", repr(dims), "Leave it out for all.")
        with self._lock:
            if dims not in self._by_dims:
                if len(self._by_dims) > MOST_SIZES:  # clients of a server may ask for all
                    del self._by_dims[next(kept for kept in self._by_dims if kept != self.dims)]
                self._by_dims[dims] = self.model.shortened(int(dims))
            return self._by_dims[dims]


def as_dtype(units: NDArray[np.int16], out: str) -> NDArray[Any]:
    """Unit vectors in int16 as one of `OUTS`."""
    if out == "int16":
        return units
    if out == "int8":
        return np.clip(np.rint(units / 256), -INT8_LIMIT, INT8_LIMIT).astype(np.int8)
    floats: NDArray[np.float32] = units.astype(np.float32) / np.float32(INT16_LIMIT)
    return floats


def _rows(vectors: ArrayLike) -> NDArray[np.float64]:
    array = np.atleast_2d(np.asarray(vectors))
    if array.dtype.kind not in "iuf":
        raise DtypeError("vectors of numbers", f"dtype {array.dtype}", "Encode the texts first.")
    if array.ndim != 2:
        raise ShapeError("vectors [count, dims]", str(array.shape), "Pass what encode returned.")
    return array.astype(np.float64)
