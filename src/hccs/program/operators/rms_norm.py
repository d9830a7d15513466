"""`RmsNorm`: an int32 sum, or the stream itself, int16 or int32, to int16."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hccs.numbers.layers import INT16_LIMIT, LONG_STREAM_LIMIT, MAX_GAIN_BITS
from hccs.numbers.rms_norm import LEAST_GAIN_BITS, RmsParams
from hccs.program.operators.operator import Array, Batch, Operator, Value
from hccs.reference.layer_norm import rms_norm


@dataclass(frozen=True, eq=False)
class RmsNorm(Operator):
    """The integer RMSNorm of `params`."""

    inputs: tuple[str]
    output: str
    params: RmsParams

    params_type = RmsParams

    def written(self, given: Sequence[Value]) -> Value:
        self.require_integer("gain bits", self.params.gain_bits, LEAST_GAIN_BITS, MAX_GAIN_BITS)
        self.require_integer("epsilon", self.params.epsilon, 1, 2**62 - 1)
        self.require_rows_of(given[0], (16, 32), self.params.channels)
        largest = given[0].largest
        self.require(largest <= LONG_STREAM_LIMIT, f"to read magnitudes up to {LONG_STREAM_LIMIT}", largest)
        return Value(16, self.params.channels, INT16_LIMIT, given[0].per_token)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return rms_norm(given[0], self.params)

    @property
    def shape(self) -> str:
        return f"{self.params.channels} int16"
