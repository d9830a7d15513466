"""`LayerNorm`: an int32 sum, or the int16 stream itself, to int16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hccs.numbers.layer_norm import LARGEST_INPUT, MAX_GAIN_BITS, NormParams
from hccs.numbers.multipliers import INT16_LIMIT
from hccs.program.operators.operator import Array, Batch, Constants, Operator, Value
from hccs.reference.layer_norm import layer_norm


@dataclass(frozen=True, eq=False)
class LayerNorm(Operator):
    """The integer LayerNorm of `params`."""

    inputs: tuple[str]
    output: str
    params: NormParams

    def written(self, given: Sequence[Value]) -> Value:
        self.require_integer("gain bits", self.params.gain_bits, 0, MAX_GAIN_BITS)
        self.require_integer("epsilon", self.params.epsilon, 1, 2**62 - 1)
        self.require_rows_of(given[0], (16, 32), self.params.channels)
        largest = given[0].largest
        self.require(largest <= LARGEST_INPUT, f"to read magnitudes up to {LARGEST_INPUT}", largest)
        return Value(16, self.params.channels, INT16_LIMIT, given[0].per_token)

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        return layer_norm(given[0], self.params)

    def constants(self) -> Constants:
        p = self.params
        return {"gain": p.gain, "bias": p.bias}, {"gain_bits": p.gain_bits, "epsilon": p.epsilon}

    @classmethod
    def from_constants(
        cls, place: Mapping[str, Any], arrays: Mapping[str, Any], numbers: Mapping[str, Any]
    ) -> LayerNorm:
        return cls(**place, params=NormParams(**arrays, **numbers))

    @property
    def shape(self) -> str:
        return f"{self.params.channels} int16"
