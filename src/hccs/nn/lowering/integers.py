"""The operators of `hccs.reference` on torch tensors: integers carried exactly in floats or int64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from hccs.nn.lowering.parts import Dense, bias_of, weight_of
from hccs.nn.training import straight
from hccs.numbers.layers import (
    GAIN_LIMIT,
    INT8_LIMIT,
    INT16_LIMIT,
    MAX_GAIN_BITS,
    MULTIPLIER_SHIFT,
    ROW_MULTIPLIER,
    ROW_SHIFT,
    XHAT_BITS,
    RampParams,
)
from hccs.numbers.requant import Requant
from hccs.numbers.score_tables import DISTANCES, ScoreTable
from hccs.reference.layer_norm import root_of, root_shift

EXACT_IN_FLOAT32 = 2**24


@dataclass(frozen=True, eq=False)
class LinearIntegers:
    """Weights, bias and multipliers of a layer as `quantise_linear` makes them, and their real steps."""

    weight: torch.Tensor
    bias: torch.Tensor
    multiplier: torch.Tensor | None
    weight_step: torch.Tensor
    in_step: float
    columns: torch.Tensor | float = 1.0
    """What the columns of the real weights were multiplied by."""

    def with_gradient(self, module: Dense) -> tuple[torch.Tensor, torch.Tensor]:
        """Rounded weight and bias in real units, whose gradient is the module's own."""
        step = self.weight_step if self.weight_step.ndim == 0 else self.weight_step[:, None]
        rounded = ((self.weight * step / self.columns), (self.bias * (self.weight_step * self.in_step)))
        return straight(weight_of(module), rounded[0]), straight(bias_of(module), rounded[1])


def linear_integers(
    module: Dense, in_step: float, out_step: Any, rows: bool = False, columns: torch.Tensor | float = 1.0
) -> LinearIntegers:
    """`quantise_linear`, step by step the same float64 operations."""
    W, b = weight_of(module).detach().double(), bias_of(module).detach().double()
    return replace(integers_between(W * columns, b, in_step, out_step, rows), columns=columns)


def integers_between(
    W: torch.Tensor, b: torch.Tensor, in_step: float, out_step: Any, rows: bool = False
) -> LinearIntegers:
    out = torch.as_tensor(out_step, dtype=torch.float64, device=W.device)
    needed = (2.0**MULTIPLIER_SHIFT * in_step * W.abs().amax(1) / INT8_LIMIT / out).ceil()
    multiplier = needed.clamp(min=ROW_MULTIPLIER if rows else 1)
    step = multiplier / 2.0**MULTIPLIER_SHIFT * out / in_step
    weight = (W / step[:, None]).round().clamp(-INT8_LIMIT, INT8_LIMIT)
    finer = ROW_MULTIPLIER if rows else 1
    bias = (b / (in_step * step / finer)).round()
    return LinearIntegers(weight, bias, multiplier, step, in_step / finer)


def scores_integers(module: Dense, in_step: float) -> LinearIntegers:
    W, b = weight_of(module).detach().double(), bias_of(module).detach().double()
    step = W.abs().amax().clamp(min=1e-30) / INT8_LIMIT
    weight = (W / step).round().clamp(-INT8_LIMIT, INT8_LIMIT)
    return LinearIntegers(weight, (b / (in_step * step)).round(), None, step, in_step)


def linear(k: torch.Tensor, layer: LinearIntegers, limit: int) -> torch.Tensor:
    """rq(W k + b) of integers carried in floats, as float64."""
    reach = 128 * 127 * layer.weight.shape[1]
    kind = torch.float32 if reach < EXACT_IN_FLOAT32 else torch.float64
    acc = nn.functional.linear(k.to(kind), layer.weight.to(kind)).double() + layer.bias
    assert layer.multiplier is not None
    return (acc * layer.multiplier / 2.0**MULTIPLIER_SHIFT).round().clamp(-limit, limit)


def narrow(k: torch.Tensor, bits: int) -> torch.Tensor:
    """clamp(rhe(k / 2^bits), -127, 127): the division is exact, and torch rounds half to even."""
    return (k / 2.0**bits).round().clamp(-INT8_LIMIT, INT8_LIMIT)


def narrow_rows(k: torch.Tensor, scale: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """`hccs.reference.narrow_rows`: int8 values, and 2^e of every row."""
    if scale is not None:
        k = (k * scale / 2.0**15 + 0.5).floor()
    bits = torch.frexp(k.abs().amax(-1, keepdim=True).double())[1]
    power = torch.exp2((bits - 7).clamp(min=0).double())
    return (k / power).round().clamp(-INT8_LIMIT, INT8_LIMIT), power


def linear_rows(k: torch.Tensor, power: torch.Tensor, layer: LinearIntegers, limit: int) -> torch.Tensor:
    """`hccs.reference.linear_rows` of int8 rows k * power, as float64."""
    reach = 128 * layer.weight.abs().sum(1).amax()
    kind = torch.float32 if reach < EXACT_IN_FLOAT32 else torch.float64
    products = nn.functional.linear(k.to(kind), layer.weight.to(kind)).double()
    acc = products + (layer.bias / power).round()
    assert layer.multiplier is not None
    return (acc * layer.multiplier * power / 2.0**ROW_SHIFT).round().clamp(-limit, limit)


def attention_by_distance(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    table: ScoreTable,
    requant: Requant,
    valid: torch.Tensor | None,
) -> torch.Tensor:
    """`hccs.reference.attention` of int8 values carried in float32, [batch, heads, rows, d], to int8."""

    def per_head(values: Any) -> torch.Tensor:
        whole = torch.as_tensor(np.broadcast_to(values, table.shape).astype(np.int64), device=q.device)
        return whole[:, None, None]

    products = (q @ k.transpose(-1, -2)).double()  # below 2^24
    factor = per_head(requant.logits.multiplier) * torch.exp2(-per_head(requant.logits.shift).double())
    x = (products * factor + 0.5).floor().clamp(-128, 127)
    on = torch.ones_like(x, dtype=torch.bool) if valid is None else valid.expand_as(x)
    m = x.masked_fill(~on, -128).amax(-1, keepdim=True)
    entries = torch.as_tensor(table.packed, device=q.device).double().flatten()
    first = per_head(np.arange(table.shape[0]) * DISTANCES)
    s = entries[(m - x).clamp(0, DISTANCES - 1).long() + first] * on
    Z, N = s.sum(-1, keepdim=True).clamp(min=1), (s @ v.double()).long()
    assert requant.output is not None
    top = torch.frexp(Z)[1].long() - 1
    R = (per_head(requant.output.multiplier) << top) // Z.long()
    shift = (per_head(requant.output.shift) + top).clamp(max=62)
    return ((N * R + (torch.ones_like(shift) << (shift - 1))) >> shift).clamp(-128, 127)


def ramp(k: torch.Tensor, params: RampParams) -> torch.Tensor:
    """`hccs.reference.ramp` of int16 values carried in floats."""
    wide = k.long()
    distance = wide.abs().clamp(max=(64 << params.bits) - 1)
    piece = distance >> params.bits
    rest = (distance - (piece << params.bits)) << (15 - params.bits)
    knot, slope = (
        torch.tensor(part.astype("int64"), device=k.device) for part in (params.knot, params.slope)
    )
    return (wide.clamp(min=0) - knot[piece] - ((slope[piece] * rest + (1 << 14)) >> 15)).double()


def layer_norm(x: torch.Tensor, module: nn.LayerNorm, in_step: float, out_step: float) -> torch.Tensor:
    """`hccs.reference.layer_norm` of sums x = v * in_step, as int16 values in float64."""
    h = x.shape[-1]
    v = (x.double() / in_step).round().long()
    d = h * v - v.sum(-1, keepdim=True)
    Q = (d * d).sum(-1, keepdim=True) + max(1, round(module.eps * h**3 / in_step**2))
    r, shift = _inverse_root(Q, h)
    gain, bias, bits = _gains(module, out_step)
    scaled = _shift_half_even(d * r, shift) * gain + (bias << XHAT_BITS)
    return _shift_half_even(scaled, bits + XHAT_BITS).clamp(-INT16_LIMIT, INT16_LIMIT).double()


def _gains(module: nn.LayerNorm, out_step: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`NormParams.from_float` without a host synchronisation."""
    gains, biases = (part.detach().double() / out_step for part in (module.weight, module.bias))
    largest = torch.maximum(gains.abs().amax(), biases.abs().amax() / 2**7).clamp(min=1e-30)
    bits = ((GAIN_LIMIT - 1) / largest).log2().floor().clamp(max=MAX_GAIN_BITS).long()
    factor = torch.exp2(bits.double())
    return (gains * factor).round().long(), (biases * factor).round().long(), bits


def _inverse_root(Q: torch.Tensor, h: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`inverse_root`: a float64 root, put right by its remainder, which fits although Q * 4^t wraps."""
    top = torch.frexp(Q.double())[1].long() - 1
    top = top - ((torch.ones_like(Q) << top) > Q).long()  # where float64 rounded Q up to a power of two
    t = (63 - top) // 2
    s = (Q.double().sqrt() * torch.exp2(t.double())).long()
    rest = (Q << (2 * t)) - s * s
    s = s + (rest > 2 * s).long() - (rest < 0).long()
    return torch.full_like(s, root_of(h)) // s, root_shift(h) - t - XHAT_BITS


def _shift_half_even(a: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    floor = a >> bits
    rest = a - (floor << bits)
    half = torch.ones_like(bits) << (bits - 1).clamp(min=0)
    return floor + ((rest > half) | ((rest == half) & (floor & 1 == 1))).long()
