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

UNLIMITED = 2**31 - 1
"""As far as a query sees without a window."""


@dataclass(frozen=True, eq=False)
class Attention(Operator):
    """int8 rows of q, k and v side by side, to the heads' int8 outputs side by side, [n, heads * d].

    Rows are [n, (heads + 2 * kv_heads) * d]: where there are fewer heads of k and v, `kv_heads`, neighbouring
    heads of q share them. With a `window` a query sees the keys at most window // 2 away from it; a causal
    one those less than `window` before it.
    """

    inputs: tuple[str]
    output: str
    theta: HeadParams | ScoreTable
    requant: Requant
    causal: bool = False
    kv_heads: int | None = None
    window: int | None = None

    mixes_rows = True

    @property
    def heads(self) -> int:
        return int(self.theta.shape[0])

    @property
    def shared_heads(self) -> int:
        """Heads of k and of v."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def reach(self) -> tuple[int, int]:
        """How many keys before and after its own position a query sees at most."""
        if self.window is None:
            return UNLIMITED, 0 if self.causal else UNLIMITED
        return (self.window - 1, 0) if self.causal else (self.window // 2, self.window // 2)

    def written(self, given: Sequence[Value]) -> Value:
        self.require(len(self.theta.shape) == 1, "a theta of one dimension, the heads", self.theta.shape)
        self.require(isinstance(self.causal, bool), "causal to be true or false", repr(self.causal))
        self.require(
            self.requant.shape in ((), self.theta.shape) and self.requant.output is not None,
            f"factors of {self.heads} heads for logits and for outputs",
            f"shape {self.requant.shape}, output {self.requant.output}",
        )
        if self.kv_heads is not None:
            self.require_integer("heads of k and v", self.kv_heads, 1, self.heads)
            shared = self.heads % self.kv_heads == 0
            self.require(shared, f"heads of k and v that divide {self.heads}", self.kv_heads)
        if self.window is not None:
            self.require_integer("a window", self.window, 1, UNLIMITED)
        width, all_heads = given[0].width, self.heads + 2 * self.shared_heads
        self.require_rows_of(given[0], (8,), width, tokens=True)
        self.require(
            width % all_heads == 0,
            f"to read {self.heads} heads of q, {self.shared_heads} of k and v",
            f"{width} channels",
        )
        dim = width // all_heads
        self.require(dim <= MAX_HEAD_DIM, f"heads of at most {MAX_HEAD_DIM} channels", dim)
        return Value(8, self.heads * dim, 128)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return self.attend(attention, given[0], batch.lengths)

    def attend(
        self, function: Callable[..., Any], rows: NDArray[np.int8], lengths: NDArray[np.int64]
    ) -> NDArray[np.int8]:
        """Rows through an attention function of the signature of `hccs.attention`."""
        batch, n, width = rows.shape
        all_heads = self.heads + 2 * self.shared_heads
        heads = rows.reshape(batch, n, all_heads, width // all_heads).transpose(0, 2, 1, 3)
        q, k, v = np.split(heads, [self.heads, self.heads + self.shared_heads], axis=1)
        valid: NDArray[Any] = np.broadcast_to(lengths[:, None, None], (batch, self.heads, n))
        if self.window is not None:
            distance = np.arange(n) - np.arange(n)[:, None]  # of a key from a query
            before, after = self.reach
            seen = (distance >= -before) & (distance <= after)
            seen = seen & (np.arange(n) < lengths[:, None, None])
            valid = np.broadcast_to(seen[:, None], (batch, self.heads, n, n))
        out = function(q, k, v, self.theta, self.requant, valid=valid, causal=self.causal, out="int8")
        return np.ascontiguousarray(out.transpose(0, 2, 1, 3)).reshape(
            batch, n, width * self.heads // all_heads
        )

    def own_row_channels(self, width: int) -> int:
        # The queries; keys and values are read in every row.
        return width * self.heads // (self.heads + 2 * self.shared_heads)

    def require_rows(self, rows: int) -> None:
        self.theta.require_columns(rows)

    @property
    def longest_row(self) -> int:
        return self.theta.max_columns

    def constants(self) -> Constants:
        numbers = {"causal": self.causal, "kv_heads": self.kv_heads, "window": self.window}
        arrays = {"theta": self.theta.packed, "requant": self.requant.packed}
        return arrays, {name: value for name, value in numbers.items() if value is not None}

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
        shared = "" if self.kv_heads is None else f", {self.kv_heads} of k and v"
        window = "" if self.window is None else f", window of {self.window}"
        return f"{self.heads} heads{shared}{scores}" + (", causal" if self.causal else "") + window
