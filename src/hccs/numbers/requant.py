"""Fixed-point factors between the integers of attention: q.k to logits, and the result to int8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hccs.errors import DtypeError, ParameterError
from hccs.numbers.arrays import Packed, integers, positive, together

MULTIPLIER_BITS = 24
"""Multipliers stay below 2^24, so that float32 holds multiplier * 2^-shift exactly."""

MAX_SHIFT = 47
"""With a multiplier of 24 bits, factors down to 2^-24: a smaller one would turn every accumulator into 0."""

MAX_HEAD_DIM = 1024
"""|q.k| <= 1024 * 128 * 128 = 2^24: accumulators are exact in float32 too."""


@dataclass(frozen=True, eq=False, init=False)
class FixedPoint(Packed):
    """The factor multiplier * 2^-shift of one head, or of many as arrays of one shape.

    It takes an accumulator `a` to clamp(floor((a * multiplier + 2^(shift - 1)) / 2^shift), -128, 127): round
    half up, saturate. `packed` is int32 [..., 2].

    >>> FixedPoint.nearest(0.1)
    FixedPoint(multiplier=13421773, shift=27)
    >>> FixedPoint.nearest([0.5, 0.001]).shift.tolist()
    [24, 33]
    """

    multiplier: int | NDArray[np.int32]
    shift: int | NDArray[np.int32]

    def __init__(self, multiplier: ArrayLike, shift: ArrayLike) -> None:
        multipliers = _bounded("multiplier", multiplier, 1, 2**MULTIPLIER_BITS - 1)
        shifts = _bounded("shift", shift, 1, MAX_SHIFT)
        packed = np.stack(together({"multiplier": multipliers, "shift": shifts}), axis=-1)
        packed.flags.writeable = False
        one = packed.ndim == 1
        object.__setattr__(self, "multiplier", int(packed[0]) if one else packed[..., 0])
        object.__setattr__(self, "shift", int(packed[1]) if one else packed[..., 1])
        object.__setattr__(self, "_packed", packed)

    @classmethod
    def nearest(cls, factor: ArrayLike, what: str = "factor") -> FixedPoint:
        """The nearest representable factor, its multiplier as large as 24 bits allow."""
        values = positive(what, factor)
        fraction, exponent = np.frexp(values)  # fraction in [1/2, 1)
        multiplier = np.floor(np.ldexp(fraction, MULTIPLIER_BITS) + 0.5).astype(np.int64)
        carried = multiplier == 2**MULTIPLIER_BITS
        multiplier = np.where(carried, multiplier >> 1, multiplier)
        shift = MULTIPLIER_BITS - (exponent.astype(np.int64) + carried)
        if shift.min() < 1 or shift.max() > MAX_SHIFT:
            raise ParameterError(
                f"{what} from 2^-24 to 2^23, the range of a 24-bit multiplier",
                f"{values.min():.4g} to {values.max():.4g}",
                "A scale is wrong by orders of magnitude: it is the real value of one integer step.",
            )
        return cls(multiplier[()], shift[()])


@dataclass(frozen=True, eq=False, init=False)
class Requant(Packed):
    """How `hccs.attention` moves between integers of different scales, per head.

    `logits` takes q.k to int8 logits; `v_scale` is the real value of one step of v, kept in float32;
    `output`, needed for int8 output alone, takes N / Z (in steps of v) to the output's int8 steps. Each is
    one value or an array per head; together they broadcast. `packed` is int32 [..., 5]: the multiplier and
    shift of the logits, those of the output, and the bits of v_scale.

    >>> Requant.from_scales(q_scale=0.02, k_scale=0.03, v_scale=0.01, logit_scale=0.05, scaling=0.125)
    Requant(logits=FixedPoint(multiplier=12884902, shift=33), v_scale=0.009999999776482582, output=None)
    """

    logits: FixedPoint
    v_scale: float | NDArray[np.float32]
    output: FixedPoint | None

    def __init__(
        self, logits: FixedPoint, v_scale: ArrayLike = 1.0, output: FixedPoint | None = None
    ) -> None:
        for name, factor in (("logits", logits), ("output", output)):
            if not isinstance(factor, FixedPoint) and not (name == "output" and factor is None):
                raise DtypeError(
                    f"{name} to be hccs.FixedPoint",
                    type(factor).__name__,
                    "Use FixedPoint(multiplier=..., shift=...), or Requant.from_scales for all of it.",
                )
        scale = positive("v_scale", v_scale, np.float32)
        parts = {"logits.multiplier": logits.packed[..., 0], "logits.shift": logits.packed[..., 1]}
        if output is not None:
            parts["output.multiplier"] = output.packed[..., 0]
            parts["output.shift"] = output.packed[..., 1]
        common = together({**parts, "v_scale": scale.view(np.int32)})
        unused = np.ones_like(common[0])
        packed = np.stack([*common[:-1], *[unused] * (5 - len(common)), common[-1]], axis=-1)
        scale.flags.writeable = packed.flags.writeable = False
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "v_scale", scale if scale.ndim else float(scale))
        object.__setattr__(self, "output", output)
        object.__setattr__(self, "_packed", packed)

    @classmethod
    def from_scales(
        cls,
        *,
        q_scale: ArrayLike,
        k_scale: ArrayLike,
        v_scale: ArrayLike,
        logit_scale: ArrayLike,
        scaling: ArrayLike,
        out_scale: ArrayLike | None = None,
    ) -> Requant:
        """From the real values of one step of q, k, v, of the logits and (for int8 output) of the result.

        `scaling` is what attention multiplies q.k by, mostly 1/sqrt(d). The factors are
        q_scale * k_scale * scaling / logit_scale and v_scale / out_scale.
        """
        logit_parts = {"q_scale": q_scale, "k_scale": k_scale, "scaling": scaling, "logit_scale": logit_scale}
        q, k, softmax_scaling, logit = _scales(logit_parts)
        logits = FixedPoint.nearest(
            q * k * softmax_scaling / logit, "q_scale * k_scale * scaling / logit_scale"
        )
        if out_scale is None:
            return cls(logits, v_scale)
        v, out = _scales({"v_scale": v_scale, "out_scale": out_scale})
        return cls(logits, v_scale, FixedPoint.nearest(v / out, "v_scale / out_scale"))

    def _identity(self) -> tuple[object, ...]:
        return *super()._identity(), self.output is None


def _bounded(name: str, value: Any, low: int, high: int) -> NDArray[np.int32]:
    hint = "Make the integers of a real factor with hccs.FixedPoint.nearest."
    array = integers(name, value, hint)
    if array.min() < low or array.max() > high:
        raise ParameterError(f"{name} from {low} to {high}", f"{array.min()} to {array.max()}", hint)
    return array


def _scales(given: dict[str, Any]) -> list[NDArray[np.float64]]:
    return together({name: positive(name, value) for name, value in given.items()})
