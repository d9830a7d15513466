"""`Scales`: the value of one step of everything an integer encoder computes, chosen from measured ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DataError
from hccs.nn.lowering.encoder import Encoder, as_numbers
from hccs.nn.lowering.pre_norm import NORM_BITS, PreNorm, Words, norm_names, steps_of, word_shift
from hccs.numbers.embeddings import word_step
from hccs.numbers.multipliers import INT8_LIMIT, INT16_LIMIT
from hccs.program import Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

STREAM_BITS = 7
"""The int16 stream is up to this much finer than the int8 that linear layers read of it."""


@dataclass(frozen=True, eq=False)
class Scales:
    """Steps by the names of `points`; one per head for q, k and v. They stay while weights are trained."""

    steps: Mapping[str, NDArray[np.float64]]
    bits: Mapping[str, int]
    """Of every stream: its int8 form is so much coarser."""
    word_step: float
    word_shift: int
    outliers: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)
    """Per layer, the channels of its wide layer that have a path, and steps, of their own."""
    row_exponents: bool = False
    """Whether rows have exponents in front of linear layers, and activations are ramps on int16."""

    def step(self, name: str) -> float:
        return float(self.steps[name])

    def of_channels(self, name: str, i: int, count: int) -> NDArray[np.float64]:
        """The steps of the channels of a layer's "wide" or "active" value."""
        steps = np.full(count, self.step(f"{name}{i}"))
        if i in self.outliers:
            steps[self.outliers[i]] = self.step(f"{name}{i}_few")
        return steps


ROW_BITS = 7
"""With row exponents an int16 step counts 2^-7 of the int8 step that multipliers are chosen for."""

MARGIN = 2.0
"""int16 values with row exponents reach this much further than any that was seen: precision is to spare."""


def choose_scales(
    encoder: Encoder | PreNorm, largest: Mapping[str, NDArray[Any]], row_exponents: bool = False
) -> Scales:
    """127 steps, or 32767 finer ones, reach the largest magnitudes."""
    if isinstance(encoder, PreNorm):
        return _pre_norm_scales(encoder, largest)
    if row_exponents:
        return _row_scales(encoder, largest)
    steps = {name: np.asarray(value, np.float64) / INT8_LIMIT for name, value in largest.items()}
    bits: dict[str, int] = {}
    for i in range(len(encoder.layers) + 1):
        for stream, added in ((f"x{i}", f"attended{i}_part"), (f"y{i}", f"summed{i}_part")):
            if stream in largest:
                reads = f"{stream}_int8" if f"{stream}_int8" in largest else stream
                bits[stream] = _stream_bits(largest, stream, added, reads)
                steps[stream] = steps[added] = steps[reads] / 2.0 ** bits[stream]
    step, shift = word_step(*(as_numbers(part) for part in encoder.embedding_tables))
    steps["embedded"] = np.float64(step / 2**shift)
    return Scales(steps, bits, step, shift)


def _row_scales(encoder: Encoder, largest: Mapping[str, NDArray[Any]]) -> Scales:
    """int16 wherever a row has an exponent of its own; q, k, v and attention's outputs keep int8 steps."""
    steps = {name: np.asarray(value, np.float64) / INT8_LIMIT for name, value in largest.items()}
    bits: dict[str, int] = {}

    def int16(*names: str) -> NDArray[np.float64]:
        return np.asarray(MARGIN * max(float(largest.get(name, 0.0)) for name in names) / INT16_LIMIT)

    for i in range(len(encoder.layers) + 1):
        for stream, added in ((f"x{i}", f"attended{i}_part"), (f"y{i}", f"summed{i}_part")):
            if stream in largest:
                bits[stream] = ROW_BITS
                steps[stream] = steps[added] = int16(stream, added)
                steps[f"{stream}_int8"] = steps[stream] * 2**ROW_BITS
        if f"wide{i}" in largest:
            steps[f"wide{i}"] = steps[f"active{i}"] = int16(f"wide{i}")
    step, shift = word_step(*(as_numbers(part) for part in encoder.embedding_tables))
    steps["embedded"] = np.float64(step / 2**shift)
    return Scales(steps, bits, step, shift, row_exponents=True)


def scales_of(program: Program) -> Scales:
    """The scales that a program was assembled with, from what it says of them."""
    per_head = program.facts.get("steps_per_head")
    if per_head is None:
        raise DataError(
            "a program that knows the steps of its heads", "an older one", "Lower the model again."
        )
    steps = {name: np.float64(step) for name, step in program.scales.items()}
    bits = {o.inputs[0]: o.narrowed_bits for o in program.operators if o.narrowed_bits is not None}
    embed = program.embed
    fine = float(steps[embed.output])
    steps |= {name: np.asarray(values, np.float64) for name, values in per_head.items()}
    shift = embed.words_shift
    few = {int(i): np.array(channels) for i, channels in program.facts.get("channels_apart", {}).items()}
    return Scales({**steps, "stream": np.float64(fine)}, bits, fine * 2**shift, shift, few)


def _pre_norm_scales(model: PreNorm, largest: Mapping[str, NDArray[Any]]) -> Scales:
    steps = steps_of(model, largest)
    shift = word_shift(model, float(steps["stream"])) if isinstance(model.source, Words) else 0
    bits = dict.fromkeys(norm_names(model), NORM_BITS)
    return Scales(steps, bits, float(steps["stream"]) * 2**shift, shift)


def _stream_bits(largest: Mapping[str, NDArray[Any]], stream: str, added: str, reads: str) -> int:
    """As fine as the stream's own reach, and that of what is added to it, allow in int16."""
    reach = max(float(largest[stream]), float(largest.get(added, 0.0)))
    step = float(largest[reads]) / INT8_LIMIT
    return next((bits for bits in range(STREAM_BITS, 0, -1) if reach <= step / 2**bits * INT16_LIMIT), 0)
