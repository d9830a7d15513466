"""`LinearParams`: a linear layer in integers, whose weights absorb the rounding of its requantisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DataError, ParameterError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MULTIPLIER_SHIFT = 16
"""rq(a) = clamp(rhe(a * M / 2^16), -limit, limit)."""

ROW_SHIFT = 23
"""Rows with an exponent e of their own: clamp(rhe(a * M / 2^(23 - e)), -limit, limit), e from 0 to 8."""

ROW_MULTIPLIER = 2**7
"""Multipliers behind row exponents start here: sums that float32 does not hold are then clipped to int8."""

MULTIPLIER_LIMIT = 2**24
"""M stays below: a product that matters (|y| < 256) is then exact in float32, as ONNX runtimes compute it."""

INT8_LIMIT = 127
"""Activations and weights never take -128, so that negation and u8 x s8 products with an offset are safe."""

INT16_LIMIT = 32767


@dataclass(frozen=True, eq=False)
class LinearParams:
    """y = rq(W x + b): int8 weights [outputs, inputs], int32 bias and multipliers per output channel.

    Without multipliers y is the int32 accumulator itself: a model's scores. `limit` is 127 for int8 outputs
    and 32767 for int16 ones. Construction refuses weights whose accumulator could leave int32 for any input
    of magnitude `input_limit`: 127, or 128 after attention.
    """

    weight: NDArray[np.int8]
    bias: NDArray[np.int32]
    multiplier: NDArray[np.int32] | None
    limit: int = INT8_LIMIT
    input_limit: int = INT8_LIMIT

    def __post_init__(self) -> None:
        outputs, _ = self.weight.shape
        parts = {"bias": self.bias, **({} if self.multiplier is None else {"multiplier": self.multiplier})}
        for name, part in parts.items():
            if part.shape != (outputs,) or part.dtype != np.int32:
                raise ShapeError(
                    f"{name} int32 of shape ({outputs},)",
                    f"{part.dtype} of shape {part.shape}",
                    "One per channel.",
                )
        if self.weight.dtype != np.int8 or (self.weight == -128).any():
            raise ParameterError(
                "int8 weights from -127 to 127", str(self.weight.dtype), "Quantise them again."
            )
        if (
            self.multiplier is not None
            and not ((self.multiplier >= 1) & (self.multiplier < MULTIPLIER_LIMIT)).all()
        ):
            raise ParameterError(
                "multipliers from 1 to 2^24 - 1",
                f"{self.multiplier.min()} to {self.multiplier.max()}",
                "A scale is wrong by orders of magnitude.",
            )
        largest = self.largest_accumulator
        if largest >= 2**31:
            raise ParameterError(
                "accumulators below 2^31 for every input",
                f"{largest} in channel {int(self._reach.argmax())}",
                "The layer is too wide for int32: split it.",
            )

    @property
    def _reach(self) -> NDArray[np.int64]:
        magnitudes: NDArray[np.int64] = abs(self.weight.astype(np.int64)).sum(1)
        return self.input_limit * magnitudes + abs(self.bias.astype(np.int64))

    @property
    def largest_accumulator(self) -> int:
        """The largest |W x + b| that any input could give."""
        return int(self._reach.max(initial=0))


def quantise_linear(
    weight: Any,
    bias: Any,
    *,
    in_scale: float,
    out_scale: Any,
    limit: int = INT8_LIMIT,
    input_limit: int = INT8_LIMIT,
    row_exponents: bool = False,
) -> LinearParams:
    """The integers of a float layer between two scales; `out_scale` is one value or one per output channel.

    M_c = max(1, ceil(2^16 * s_in * max|W_c| / 127 / s_out)) is chosen first, and the channel's weight scale
    follows from it: s_w = M_c / 2^16 * s_out / s_in. So the multiplier carries no rounding error, and the
    weights absorb it. With `row_exponents` the input's int16 step is in_scale / 2^7, in which the bias counts
    too, and multipliers start at 2^7.
    """
    W, b = _finite("weight", weight), _finite("bias", bias)
    out = np.broadcast_to(np.asarray(out_scale, np.float64), b.shape)
    largest = abs(W).max(1, initial=0)
    needed = np.ceil(2.0**MULTIPLIER_SHIFT * in_scale * largest / INT8_LIMIT / out)
    if needed.max(initial=0) >= MULTIPLIER_LIMIT:
        raise ParameterError(
            "multipliers below 2^24",
            f"{needed.max():.4g}",
            "The output's scale is too fine for these weights.",
        )
    multiplier = np.maximum(needed, ROW_MULTIPLIER if row_exponents else 1).astype(np.int32)
    scale = multiplier / 2.0**MULTIPLIER_SHIFT * out / in_scale
    step = in_scale * scale / (ROW_MULTIPLIER if row_exponents else 1)
    return LinearParams(
        _rounded_weight(W, scale[:, None]), _rounded_bias(b, step), multiplier, limit, input_limit
    )


def quantise_scores(weight: Any, bias: Any, *, in_scale: float) -> tuple[LinearParams, float]:
    """The last layer: int32 scores of one scale for all classes, and the value of one step of a score."""
    W, b = _finite("weight", weight), _finite("bias", bias)
    scale = max(float(abs(W).max(initial=0)), 1e-30) / INT8_LIMIT
    step = in_scale * scale
    return LinearParams(_rounded_weight(W, scale), _rounded_bias(b, step), None), step


def _rounded_weight(W: NDArray[np.float64], scale: Any) -> NDArray[np.int8]:
    rounded: NDArray[np.int8] = np.clip(np.rint(W / scale), -INT8_LIMIT, INT8_LIMIT).astype(np.int8)
    return rounded


def _rounded_bias(b: NDArray[np.float64], step: Any) -> NDArray[np.int32]:
    rounded: NDArray[np.float64] = np.rint(b / step)
    if (abs(rounded) >= 2**31).any():
        raise ParameterError(
            "biases that fit int32", f"{abs(rounded).max():.4g} steps", "Its layer's weights are nearly zero."
        )
    return rounded.astype(np.int32)


def _finite(name: str, value: Any) -> NDArray[np.float64]:
    array: NDArray[np.float64] = np.asarray(value, np.float64)
    if not np.isfinite(array).all():
        raise DataError(
            f"finite numbers in {name}", "NaN or infinity", "The model is damaged, or training diverged."
        )
    return array
