"""`Scales`: the value of one step of everything an integer encoder computes, chosen from measured ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.nn.lowering.parts import EVERY, PostNorm, PreNorm, Words, as_numbers, is_rms, weight_of
from hccs.nn.lowering.ranges import ValueRanges, is_stream
from hccs.numbers.heads import HeadParams
from hccs.numbers.layers import (
    INT8_LIMIT,
    INT16_LIMIT,
    LONG_ROW_LIMIT,
    LONG_STREAM_LIMIT,
    MAX_WORD_SHIFT,
    word_step,
)
from hccs.numbers.modes import MAX_DISTANCE, WIDE_MAX
from hccs.numbers.score_tables import ScoreTable
from hccs.numbers.table import ParamTable

STREAM_BITS = 7
"""The int16 stream is up to this much finer than the int8 that linear layers read of it."""


NORM_BITS = 7
"""LayerNorm writes steps this many bits finer than the int8 that dense layers read."""


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
    channels: Mapping[str, NDArray[np.int16]] = field(default_factory=dict)
    """Of streams and activations that rows with exponents are made of: the scale of every channel in Q15."""
    loudness: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Of gated products and attention's outputs: what the step of every channel is multiplied by."""
    by_distance: bool = False
    """Whether attention looks scores up by distance, in the place of the table's lines."""
    stream_limit: int = INT16_LIMIT
    """How many steps a stream without norms reaches."""

    def step(self, name: str) -> float:
        return float(self.steps[name])

    def columns(self, name: str) -> NDArray[np.float64] | float:
        """What the columns of a layer's weights are multiplied by, whose inputs are scaled before it."""
        if name in self.loudness:
            return self.loudness[name]
        return UNSCALED / self.channels[name] if name in self.channels else 1.0

    def heads(
        self, i: int, table: ParamTable, longest: int = 0
    ) -> tuple[HeadParams | ScoreTable, NDArray[np.float64]]:
        """What makes scores of the logits of a layer's heads, and the step of these logits."""
        if not self.by_distance:
            return table.layer(i), table.scale[i]
        largest = LARGEST_SCORE if not longest else min(LARGEST_LONG_SCORE, WIDE_MAX // longest)
        scale = np.maximum(table.scale[i], SCORES_REACH / MAX_DISTANCE)
        return ScoreTable.of_exponentials(scale, largest), scale

    def of_channels(self, name: str, i: int, count: int) -> NDArray[np.float64]:
        """The steps of the channels of a layer's "wide" or "active" value."""
        steps = np.full(count, self.step(f"{name}{i}"))
        if i in self.outliers:
            steps[self.outliers[i]] = self.step(f"{name}{i}_few")
        return steps


ROW_BITS = 7
"""With row exponents an int16 step counts 2^-7 of the int8 step that multipliers are chosen for."""

MARGIN = 1.5
"""int16 values with row exponents reach this much further than any that was seen."""

UNSCALED = 2.0**15

LOUDNESS = {"x": 1.0, "y": 0.75, "active": 0.65}
"""How far the channels of a value are made equally loud: at 1 they all are, and weights take all of the
difference; at 0 their weights are equally large. Chosen by the vectors of MiniLM-L6, on other texts than
those that results are reported on."""

PRODUCT_LOUDNESS = 0.5
"""The same for gated products, chosen by the perplexity of SmolLM2-135M."""

LEAST_MULTIPLIER = 2.0**10
"""Multipliers behind gated products are this large where int16 has the room."""

QUIET = 0.25
"""The share of channels that are not scaled: int16 has few bits to spare."""

LARGEST_SCORE = 1023
"""Of scores by distance: sums of 128 keys stay exact in float32, times a value of eight bits."""

LARGEST_LONG_SCORE = 16383
"""Of scores by distance in causal rows, which may be long: a thousand far keys must not weigh as one."""

TURNED_STEP = 1.5 * INT8_LIMIT / INT16_LIMIT
"""q, k and v in int16, before rotary positions: their steps, over those of int8 after them."""

SCORES_REACH = 8.0
"""Up to this distance, in units of logits, scores fall: exp(-8) of 1023 is less than one."""


def channel_scales(
    encoder: PostNorm, largest: Mapping[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.int16]]:
    """Scales that make loud channels quieter before rows are narrowed, from each channel's largest value."""
    found = {}
    for i, layer in enumerate(encoder.layers):
        for name, source, readers in (
            ("x", f"x{i}_int8", layer.qkv),
            ("y", f"y{i}_int8", (layer.wide,)),
            ("active", f"active{i}", (layer.narrow,)),
        ):
            weights = np.concatenate([abs(as_numbers(weight_of(module))) for module in readers]).max(0)
            spread = _spread(largest[source].astype(np.float64), weights, LOUDNESS[name])
            least = np.quantile(spread, QUIET)
            scale = np.rint((UNSCALED - 1) * least / np.maximum(spread, least))
            found[f"{name}{i}"] = np.maximum(scale, 1).astype(np.int16)
    return found


def _spread(loud: NDArray[np.float64], weights: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """How much each channel asks for: by its own loudness, against that of the weights that read it."""
    made: NDArray[np.float64] = np.maximum(loud, 1e-6) ** power / np.maximum(weights, 1e-6) ** (1 - power)
    return made


def choose_scales(
    encoder: PostNorm | PreNorm, largest: Mapping[str, NDArray[Any]], row_exponents: bool = False
) -> Scales:
    """127 steps, or 32767 finer ones, reach the largest magnitudes."""
    if isinstance(encoder, PreNorm):
        return (_modern_scales if row_exponents else _pre_norm_scales)(encoder, largest)
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
    if encoder.projection is not None:
        steps["normed"], bits["normed"] = steps["normed_int8"] / 2.0**NORM_BITS, NORM_BITS
    return Scales(steps, bits, step, shift)


def _row_scales(encoder: PostNorm, largest: Mapping[str, NDArray[Any]]) -> Scales:
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
    if encoder.projection is not None:
        steps["normed"] = int16("normed")
    step, shift = word_step(*(as_numbers(part) for part in encoder.embedding_tables))
    steps["embedded"] = np.float64(step / 2**shift)
    return Scales(steps, bits, step, shift, row_exponents=True)


def _pre_norm_scales(model: PreNorm, largest: Mapping[str, NDArray[Any]]) -> Scales:
    """The stream and all that is added to it share one step.

    It is the finest in which int16 reaches far enough, and int8 words moved up by at most 7 bits do.
    """
    steps = {name: np.asarray(value, np.float64) / INT8_LIMIT for name, value in largest.items()}
    stream, shift = float(largest["stream"]) / INT16_LIMIT, 0
    if isinstance(model.source, Words):
        words = float(abs(as_numbers(model.source.words.weight)).max())
        stream = max(stream, words / (INT8_LIMIT << MAX_WORD_SHIFT))
        while shift < MAX_WORD_SHIFT and INT8_LIMIT * stream * 2**shift < words:
            shift += 1
    norms = [*(f"{kind}{i}" for i in range(len(model.layers)) for kind in ("a", "b")), "final"]
    steps |= {name: np.float64(stream) for name in steps if name == "stream" or is_stream(name)}
    steps |= {name: steps[f"{name}_int8"] / 2.0**NORM_BITS for name in norms}
    return Scales(steps, dict.fromkeys(norms, NORM_BITS), stream * 2**shift, shift)


INT16_KINDS = ("a", "b", "gate", "wide", "raw_query", "raw_key")
"""Of values of a layer that are int16 in modern models."""


def _modern_scales(model: PreNorm, largest: Mapping[str, NDArray[Any]]) -> Scales:
    """int16 wherever a row has an exponent of its own; the stream that RMSNorm reads has more bits.

    A step of words is that of the stream times a power of two: words fill int8 where the stream is as fine.
    """
    steps = {name: np.asarray(value, np.float64) / INT8_LIMIT for name, value in largest.items()}
    limit = LONG_STREAM_LIMIT if all(is_rms(norm) for _, norm in model.streams) else INT16_LIMIT
    stream, word, shift = MARGIN * float(largest["stream"]) / limit, 0.0, 0
    if isinstance(model.source, Words):
        words = float(abs(as_numbers(model.source.words.weight)).max())
        if model.source.norm is not None:
            word, shift = word_step(as_numbers(model.source.words.weight), None, None)
            steps["embedded"] = np.float64(word / 2**shift)
        else:
            word = max(words / INT8_LIMIT, stream)  # a stream of massive values may have the coarser step
            shift = min(int(np.floor(np.log2(word / stream))), MAX_WORD_SHIFT)
            stream = word / 2**shift
    steps |= {name: np.float64(stream) for name in steps if name == "stream" or is_stream(name)}
    per_layer = (f"{kind}{i}" for kind in INT16_KINDS for i in range(len(model.layers)))
    for name in ("final", "dense", *per_layer):
        if name in largest:
            steps[name] = np.asarray(MARGIN * largest[name] / INT16_LIMIT)
    bits: dict[str, int] = {}
    if model.head is not None or model.reads != EVERY:  # a classifier whose scores have names reads int8
        read = "final" if model.head is None else "normed"
        steps[read], bits[read] = steps[f"{read}_int8"] / 2.0**NORM_BITS, NORM_BITS
    return Scales(steps, bits, word, shift, row_exponents=True, stream_limit=limit)


def loud_products(model: PreNorm, scales: Scales, loud: Mapping[str, NDArray[np.float32]]) -> Scales:
    """Scales whose gated products have a step for every channel.

    A channel of the wide layer may have any step, and the columns of the narrow one take it back: so loud
    channels of their product leave the others room, at no cost.
    """
    steps, bits, loudness = dict(scales.steps), dict(scales.bits), {}
    for i, layer in enumerate(model.layers):
        if layer.gate is None:
            continue
        name, seen = f"active{i}", loud[f"active{i}"].astype(np.float64)
        spread = _spread(seen, abs(as_numbers(weight_of(layer.narrow))).max(0), PRODUCT_LOUDNESS)
        loudness[name] = spread / np.minimum(spread, np.quantile(spread, QUIET))
        wide = MARGIN * max(float((loud[f"wide{i}"] / loudness[name]).max()), 1e-6) / INT16_LIMIT
        steps[f"wide{i}"] = wide * loudness[name]
        product = float(steps[f"gate{i}"]) * wide
        reach = MARGIN * max(float((seen / loudness[name]).max()), 1e-6) / product
        # Multipliers behind rows start at 2^7: finer products would cost the next weights their bits.
        weights = abs(as_numbers(weight_of(layer.narrow)) * loudness[name]).max(1)
        unit = product * 2.0**23 * max(float(weights.min()), 1e-12) / INT8_LIMIT / float(steps["stream"])
        coarse = min(np.log2(LEAST_MULTIPLIER / unit), np.log2(reach / INT16_LIMIT))
        bits[name] = max(0, int(np.ceil(max(np.log2(reach / LONG_ROW_LIMIT), coarse))))
        steps[name] = np.float64(product * 2.0 ** bits[name])
    return replace(scales, steps=steps, bits=bits, loudness={**scales.loudness, **loudness})


def _stream_bits(largest: Mapping[str, NDArray[Any]], stream: str, added: str, reads: str) -> int:
    """As fine as the stream's own reach, and that of what is added to it, allow in int16."""
    reach = max(float(largest[stream]), float(largest.get(added, 0.0)))
    step = float(largest[reads]) / INT8_LIMIT
    return next((bits for bits in range(STREAM_BITS, 0, -1) if reach <= step / 2**bits * INT16_LIMIT), 0)


MOST, SHARE = 64, 16
"""At most 64 channels, and one in 16, are cut off: more are no outliers."""

GAIN = 10 ** (6 / 10)
"""By how much the noise must fall for a cut: 6 dB, one bit; less is not worth the operators."""


def outliers(largest: NDArray[np.float32]) -> NDArray[np.int64] | None:
    """The channels to cut off, in order, where two steps instead of one lower the noise of rounding enough.

    An activation's output has one int8 step, and one channel that reaches five times as far as the rest costs
    all of them 14 dB. No scale can be moved between the weights around a GELU as it can around a ReLU; but
    the layer can be cut: these channels go through a linear layer, a table and a linear layer of their own,
    and the two parts are added. The products are the same ones.

    >>> largest = np.linspace(1, 2, 48, dtype=np.float32)
    >>> outliers(largest) is None
    True
    >>> largest[[7, 30]] = 25, 6
    >>> outliers(largest).tolist()
    [7, 30]
    """
    order = np.argsort(-largest, kind="stable")
    reach = largest[order].astype(np.float64)
    most = min(MOST, len(reach) // SHARE)
    cuts = np.arange(most + 1)
    noise = cuts * reach[0] ** 2 + (len(reach) - cuts) * reach[: most + 1] ** 2
    best = int(np.argmin(noise))
    return np.sort(order[:best]) if noise[0] > GAIN * noise[best] else None


def cut_ranges(
    ranges: ValueRanges, layers: int
) -> tuple[dict[int, NDArray[np.int64]], dict[str, NDArray[np.float64]]]:
    """The channels to cut off per layer, and the magnitudes that the parts' steps shall reach."""
    cut: dict[int, NDArray[np.int64]] = {}
    reach: dict[str, NDArray[np.float64]] = {}
    for i in range(layers):
        found = outliers(ranges.values[f"active{i}"].largest)
        if found is None:
            continue
        cut[i] = found
        for name in ("wide", "active"):
            largest = ranges.values[f"{name}{i}"].largest
            rest = np.delete(largest, found)
            reach[f"{name}{i}"] = np.float64(max(float(rest.max()), 1e-6))
            reach[f"{name}{i}_few"] = np.float64(max(float(largest[found].max()), 1e-6))
    return cut, reach
