"""`NormHeads`: int16 rows of q, k and v, of which each head of q and k is normalised by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hccs.numbers.layers import INT16_LIMIT
from hccs.numbers.rms_norm import RmsParams
from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.layer_norm import norm_heads

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, eq=False)
class NormHeads(Operator):
    """The integer RMSNorm of every head of the first channels; the channels behind them stay as they are.

    `gain` is int32 [heads, channels], `gain_bits` and `epsilon` are int64 [heads]: a head has steps of its
    own. It is no form of `RmsNorm`, because executors run that as one with the sums around it.
    """

    inputs: tuple[str]
    output: str
    gain: NDArray[np.int32]
    gain_bits: NDArray[np.int64]
    epsilon: NDArray[np.int64]

    @classmethod
    def stacked(cls, source: str, output: str, heads: Sequence[RmsParams]) -> Self:
        """The operator of the constants of every head."""
        bits, epsilon = np.array([[head.gain_bits, head.epsilon] for head in heads], np.int64).T
        return cls((source,), output, np.stack([head.gain for head in heads]), bits.copy(), epsilon.copy())

    @property
    def heads(self) -> list[RmsParams]:
        each = zip(self.gain, self.gain_bits.tolist(), self.epsilon.tolist(), strict=True)
        return [RmsParams(gain, bits, epsilon) for gain, bits, epsilon in each]

    def written(self, given: Sequence[Value]) -> Value:
        self.require(self.gain.ndim == 2 and self.gain.size > 0, "gains [heads, channels]", self.gain.shape)
        for name, numbers in (("gain bits", self.gain_bits), ("epsilons", self.epsilon)):
            fits = numbers.dtype == np.int64 and numbers.shape == self.gain.shape[:1]
            expected = f"{name}, int64 of {len(self.gain)} heads"
            self.require(fits, expected, f"{numbers.dtype} of shape {numbers.shape}")
        self.heads  # noqa: B018  their own construction refuses wrong constants
        width = given[0].width
        self.require_rows_of(given[0], (16,), width)
        self.require(self.gain.size <= width, f"to read at least {self.gain.size} channels", width)
        return Value(16, width, INT16_LIMIT, given[0].per_token)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return norm_heads(given[0], self.heads)

    @property
    def shape(self) -> str:
        return f"{self.gain.shape[0]} heads of {self.gain.shape[1]} int16"
