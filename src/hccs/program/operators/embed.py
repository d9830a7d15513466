"""`Embed`: token, position and type ids to the sum of their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError, DtypeError, MaskError, ShapeError
from hccs.numbers.arrays import array_of
from hccs.numbers.layers import INT8_LIMIT, INT16_LIMIT, MAX_WORD_SHIFT, EmbeddingParams
from hccs.program.operators.operator import Array, Batch, Embedding, Value
from hccs.reference.embedding import embedding


@dataclass(frozen=True, eq=False)
class Embed(Embedding):
    """The sum as int32 or, with `limit`, as a clamped int16."""

    output: str
    params: EmbeddingParams
    first_position: int = 0
    limit: int | None = None
    inputs: tuple[str, ...] = ()

    params_type = EmbeddingParams

    @property
    def vocabulary(self) -> int:  # type: ignore[override]
        return len(self.params.words)

    @property
    def type_count(self) -> int:  # type: ignore[override]
        return 1 if self.params.types is None else len(self.params.types)

    @property
    def most_rows(self) -> int | None:
        positions = self.params.positions
        return None if positions is None else len(positions) - self.first_position

    def require_rows(self, rows: int) -> None:
        if self.most_rows is not None and rows > self.most_rows:
            raise DataError(
                f"positions for {rows} tokens from {self.first_position} on",
                str(self.most_rows + self.first_position),
                "Lower the model again.",
            )

    def written(self, given: Sequence[Value]) -> Value:
        p = self.params
        positions = 1 if p.positions is None else len(p.positions)
        self.require_integer("first_position", self.first_position, 0, positions - 1)
        self.require_integer("a shift", p.shift, 0, MAX_WORD_SHIFT)
        self.require(p.words.size > 0, "words of at least one channel", p.words.shape)
        self.require(self.type_count > 0, "at least one type", self.type_count)
        self.require(int(p.words.min()) >= -INT8_LIMIT, "words from -127 to 127", int(p.words.min()))
        if self.limit is None:
            return Value(32, p.words.shape[1], 2**16)
        self.require_integer("a limit", self.limit, 1, INT16_LIMIT)
        return Value(16, p.words.shape[1], self.limit)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        positions = batch.positions(batch.tokens.shape[1]) + self.first_position
        return embedding(batch.tokens, positions, batch.types, self.params, self.limit)

    def read(self, tokens: Any, mask: Any, types: Any, longest: int) -> Batch:
        if isinstance(tokens, np.ma.MaskedArray):
            shown = ~np.ma.getmaskarray(tokens)
            if mask is not None:
                _lengths(mask, np.atleast_2d(shown).shape)
                shown = shown & (np.asarray(mask) != 0)
            mask, tokens = shown, tokens.filled(0)
        ids = _ids("input_ids", tokens, self.vocabulary, longest)
        lengths = _lengths(mask, ids.shape)
        given = np.zeros(ids.shape, np.int64) if types is None else types
        kinds = _ids("token_type_ids", given, self.type_count, longest)
        if kinds.shape != ids.shape:
            raise ShapeError(f"token_type_ids of shape {ids.shape}", str(kinds.shape), "One type per token.")
        return Batch(ids, lengths, kinds)

    @property
    def shape(self) -> str:
        p = self.params
        tables = {"words": p.words, "positions": p.positions, "types": p.types}
        counts = (f"{len(table)} {name}" for name, table in tables.items() if table is not None)
        return f"{', '.join(counts)} x {p.words.shape[1]}"


def _ids(name: str, given: Any, count: int, longest: int) -> NDArray[np.int64]:
    ids = _plain(name, given)
    if ids.dtype.kind not in "iu":
        raise DtypeError(f"{name} to be integers", f"dtype {ids.dtype}", "Tokenise the text first.")
    ids = np.atleast_2d(ids)
    if ids.ndim != 2 or ids.shape[1] < 1:
        raise ShapeError(f"{name} of shape [batch, n]", str(ids.shape), "Pad the sequences to one length.")
    if ids.shape[1] > longest:
        raise ShapeError(
            f"at most {longest} tokens", str(ids.shape[1]), "Truncate, or lower the model for more."
        )
    if ids.size and (ids.min() < 0 or ids.max() >= count):
        raise DataError(
            f"{name} from 0 to {count - 1}",
            f"{ids.min()} to {ids.max()}",
            "Is this the model's own tokenizer?",
        )
    return ids.astype(np.int64, order="C")


def _lengths(mask: Any, shape: tuple[int, ...]) -> NDArray[np.int64]:
    if mask is None:
        return np.full(shape[0], shape[1], np.int64)
    array = np.atleast_2d(_plain("attention_mask", mask))
    if array.shape != shape or array.dtype.kind not in "biu" or ((array != 0) & (array != 1)).any():
        raise MaskError(
            f"an attention_mask of 0 and 1, shape {shape}", f"{array.dtype} {array.shape}", "1 = token."
        )
    lengths: NDArray[np.int64] = (array != 0).sum(1)
    if not np.array_equal(np.arange(shape[1]) < lengths[:, None], array != 0):
        raise MaskError(
            "masks that begin with all their ones",
            "a mask with holes, or padding on the left",
            "Pad on the right.",
        )
    if (lengths == 0).any():
        raise MaskError("at least one token in every row", "an empty row", "Leave empty sequences out.")
    return lengths


def _plain(name: str, given: Any) -> Array:
    if np.ma.is_masked(given):
        raise MaskError(f"{name} without masked values", "a masked array", "Mask input_ids, or none.")
    return array_of(name, given)
