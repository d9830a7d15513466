"""`Attention`: integer attention with HCCS in the place of softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.heads import HeadParams
from hccs.numbers.requant import MAX_HEAD_DIM, FixedPoint, Requant
from hccs.numbers.score_tables import ScoreTable, theta_of
from hccs.program.operators.operator import Array, Batch, Constants, Operator, Value
from hccs.reference.attention import attention


@dataclass(frozen=True, eq=False)
class Attention(Operator):
    """int8 rows of q, k and v side by side, [n, 3 * heads * d], to the heads' int8 outputs side by side."""

    inputs: tuple[str]
    output: str
    theta: HeadParams | ScoreTable
    requant: Requant
    causal: bool = False

    mixes_rows = True

    @property
    def heads(self) -> int:
        return int(self.theta.shape[0])

    def written(self, given: Sequence[Value]) -> Value:
        self.require(len(self.theta.shape) == 1, "a theta of one dimension, the heads", self.theta.shape)
        self.require(isinstance(self.causal, bool), "causal to be true or false", repr(self.causal))
        self.require(
            self.requant.shape in ((), self.theta.shape) and self.requant.output is not None,
            f"factors of {self.heads} heads for logits and for outputs",
            f"shape {self.requant.shape}, output {self.requant.output}",
        )
        width = given[0].width
        self.require_rows_of(given[0], (8,), width, tokens=True)
        self.require(
            width % (3 * self.heads) == 0,
            f"to read q, k and v of {self.heads} heads",
            f"{width} channels",
        )
        dim = width // (3 * self.heads)
        self.require(dim <= MAX_HEAD_DIM, f"heads of at most {MAX_HEAD_DIM} channels", dim)
        return Value(8, width // 3, 128)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return self.attend(attention, given[0], batch)

    def attend(self, function: Callable[..., Any], rows: NDArray[np.int8], batch: Batch) -> NDArray[np.int8]:
        """Rows through an attention function of the signature of `hccs.attention`."""
        count, n, width = rows.shape
        q, k, v = rows.reshape(count, n, 3, self.heads, width // (3 * self.heads)).transpose(2, 0, 3, 1, 4)
        causal, valid = self.causal, np.broadcast_to(batch.lengths[:, None, None], (count, self.heads, n))
        if batch.cache is not None:
            assert batch.texts is not None
            k, v = batch.cache.append(self.output, batch.texts, batch.lengths, k, v)
            # Sequences differ in what came before, so each query says how many keys it sees.
            seen = batch.positions(n)[:, None] + 1
            causal, valid = False, np.broadcast_to(seen, (count, self.heads, n))
        out = function(q, k, v, self.theta, self.requant, valid=valid, causal=causal, out="int8")
        return np.ascontiguousarray(out.transpose(0, 2, 1, 3)).reshape(count, n, width // 3)

    def own_row_channels(self, width: int) -> int:
        return width // 3  # the queries; keys and values are read in every row

    @property
    def sees_later_rows(self) -> bool:
        return not self.causal

    def cached_heads(self, given: Value) -> tuple[int, int]:
        return self.heads, given.width // (3 * self.heads)

    def require_rows(self, rows: int) -> None:
        self.theta.require_columns(rows)

    @property
    def longest_row(self) -> int:
        return self.theta.max_columns

    def constants(self) -> Constants:
        return {"theta": self.theta.packed, "requant": self.requant.packed}, {"causal": self.causal}

    @classmethod
    def from_constants(
        cls, place: Mapping[str, Any], arrays: Mapping[str, Any], numbers: Mapping[str, Any]
    ) -> Attention:
        logits, shift, out, out_shift, v_scale = np.moveaxis(arrays["requant"], -1, 0)
        scale = np.ascontiguousarray(v_scale).view(np.float32)
        requant = Requant(FixedPoint(logits, shift), scale, FixedPoint(out, out_shift))
        return cls(**place, theta=theta_of(arrays["theta"]), requant=requant, **numbers)

    @property
    def shape(self) -> str:
        scores = ""
        if isinstance(self.theta, ScoreTable):
            scores = f", scores by distance up to {self.theta.max_score}"
        elif self.theta.wide:
            lines = "two lines" if np.any(self.theta.S2) else "wide sums"
            scores = f", {lines}, {'uint8' if np.all(self.theta.f) else 'int16'} scores"
        return f"{self.heads} heads{scores}" + (", causal" if self.causal else "")
