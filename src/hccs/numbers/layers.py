"""The integer constants of layers: linear, LayerNorm, embeddings, patches of images, ramps of activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError, ParameterError, ShapeError

MULTIPLIER_SHIFT = 16
"""rq(a) = clamp(rhe(a * M / 2^16), -limit, limit)."""

ROW_SHIFT = 23
"""Rows with an exponent e of their own: clamp(rhe(a * M / 2^(23 - e)), -limit, limit).

e goes from 0 to 8 where the rows were int16, to 16 where they were int32.
"""

ROW_EXPONENTS, LONG_ROW_EXPONENTS = 8, 16
"""The largest exponents of rows that were int16, and int32."""

LONG_ROW_LIMIT = 2**23 - 1
"""int32 rows that get exponents stay within it: e <= 16, and products are shifted by 7 bits or more."""

ROW_MULTIPLIER = 2**7
"""Multipliers behind row exponents start here: sums that float32 does not hold are then clipped to int8."""

MULTIPLIER_LIMIT = 2**24
"""M stays below: a product that matters (|y| < 256) is then exact in float32, as ONNX runtimes compute it."""

INT8_LIMIT = 127
"""Activations and weights never take -128, so that negation and u8 x s8 products with an offset are safe."""

INT16_LIMIT = 32767

INT32_LIMIT = 2**30 - 1
"""int32 scores stay within it: float64 holds every product that is not clamped, as sum * M < 2^53."""

LONG_STREAM_LIMIT = 2**17
"""An int32 stream, which RMSNorm reads, stays within it: 4,096 squares, each times 2^16, add up to 2^62."""


@dataclass(frozen=True, eq=False)
class LinearParams:
    """y = rq(W x + b): int8 weights [outputs, inputs], int32 bias and multipliers per output channel.

    Without multipliers y is the int32 accumulator itself: a model's scores. `limit` is 127 for int8 outputs,
    32767 for int16 ones and 2^30 - 1 for scores of one step in all rows. Construction refuses weights whose
    accumulator could leave int32 for any input of magnitude `input_limit`: 127, or 128 after attention.
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


XHAT_BITS = 20
"""Fraction bits of the normalised value; |xhat| <= sqrt(h) <= 2^5, so that it fits int32."""

GAIN_LIMIT = 2**23
"""Gains stay below, so that xhat * G fits 2^48 and leaves room for the bias."""

MAX_GAIN_BITS = 16
MAX_CHANNELS = 1024
LARGEST_INPUT = 2**16
"""|v|: a sum of two int16. Then Q < h^3 * 2^32 <= 2^62."""


@dataclass(frozen=True, eq=False)
class NormParams:
    """y = rhe((xhat * G + B * 2^20) / 2^(20 + k)): gain G, bias B per channel, `gain_bits` k, and epsilon."""

    gain: NDArray[np.int32]
    bias: NDArray[np.int32]
    gain_bits: int
    epsilon: int

    def __post_init__(self) -> None:
        (channels,) = self.gain.shape
        if self.bias.shape != (channels,) or self.gain.dtype != np.int32 or self.bias.dtype != np.int32:
            raise ShapeError(
                "gain and bias int32, one per channel", f"bias {self.bias.shape}", "See from_float."
            )
        if not 2 <= channels <= MAX_CHANNELS:
            raise ShapeError(
                f"2 to {MAX_CHANNELS} channels", str(channels), "Wider sums of squares leave 64 bits."
            )
        if (abs(self.gain.astype(np.int64)) >= GAIN_LIMIT).any() or not 0 <= self.gain_bits <= MAX_GAIN_BITS:
            raise ParameterError(
                f"|gain| < 2^23 and 0 to {MAX_GAIN_BITS} bits", f"{self.gain_bits} bits", "See from_float."
            )
        if not 1 <= self.epsilon < 2**62:
            raise ParameterError(
                "1 <= epsilon < 2^62", str(self.epsilon), "Constant rows need a positive one."
            )

    @property
    def channels(self) -> int:
        return len(self.gain)

    @classmethod
    def from_float(
        cls, gamma: Any, beta: Any, eps: float, *, in_scale: float, out_scale: float
    ) -> NormParams:
        """The constants of gamma, beta and eps between the scale of v and that of the int16 output."""
        gains, biases = (np.asarray(part, np.float64) / out_scale for part in (gamma, beta))
        if not (np.isfinite(gains).all() and np.isfinite(biases).all()):
            raise DataError(
                "finite gamma and beta", "NaN or infinity", "The model is damaged, or training diverged."
            )
        largest = max(float(abs(gains).max(initial=0)), float(abs(biases).max(initial=0)) / 2**7, 1e-30)
        bits = min(MAX_GAIN_BITS, math.floor(math.log2((GAIN_LIMIT - 1) / largest)))
        if bits < 0:
            raise ParameterError(
                "gamma / out_scale below 2^23", f"{largest:.4g}", "The output's scale is too fine."
            )
        h = gains.size
        epsilon = max(1, round(eps * h**3 / in_scale**2))
        gain, bias = (np.rint(part * 2.0**bits).astype(np.int32) for part in (gains, biases))
        return cls(gain, bias, bits, min(epsilon, 2**62 - 1))


MAX_WORD_SHIFT = 7
"""Words of 127 steps then fill half of int16."""


@dataclass(frozen=True, eq=False)
class EmbeddingParams:
    """v = (words[token] << shift) + positions[position] + types[type]; |v| <= 2^16 for every choice.

    Models without positions or without types have None there.
    """

    words: NDArray[np.int8]
    positions: NDArray[np.int16] | None
    types: NDArray[np.int16] | None
    shift: int

    def __post_init__(self) -> None:
        added = [part for part in (self.positions, self.types) if part is not None]
        tables: list[NDArray[Any]] = [self.words, *added]
        widths, kinds = {part.shape[1] for part in tables}, [part.dtype.name for part in tables]
        if len(widths) != 1 or kinds != ["int8", *("int16" for _ in added)]:
            raise ShapeError(
                "int8 words, int16 positions and types of one width", f"{kinds}, {widths}", "See from_float."
            )
        if not 0 <= self.shift <= MAX_WORD_SHIFT:
            raise ParameterError(f"a shift of 0 to {MAX_WORD_SHIFT}", str(self.shift), "See from_float.")
        reach = (127 << self.shift) + sum(int(abs(p.astype(np.int64)).max()) for p in added)
        if reach > 2**16:
            raise ParameterError("sums of magnitude up to 2^16", str(reach), "See from_float.")

    @classmethod
    def from_float(cls, words: Any, positions: Any, types: Any, step: float, shift: int) -> EmbeddingParams:
        """The integers of float tables, of which the last two may be None; `step` is that of a word."""
        W = _finite("words", words)

        def added(name: str, part: Any) -> NDArray[np.int16] | None:
            if part is None:
                return None
            fine: NDArray[np.float64] = np.rint(_finite(name, part) / (step / 2**shift))
            return np.clip(fine, -32767, 32767).astype(np.int16)

        return cls(
            np.clip(np.rint(W / step), -127, 127).astype(np.int8),
            added("positions", positions),
            added("types", types),
            shift,
        )


def word_step(words: Any, positions: Any, types: Any) -> tuple[float, int]:
    """The value of one step of a word, and by how many bits positions and types are finer.

    As fine as positions and types in int16, and sums within 2^16, allow.
    """
    W, P, T = (
        0.0 if part is None else float(abs(np.asarray(part)).max()) for part in (words, positions, types)
    )
    step = max(W, 1e-30) / 127
    for shift in range(MAX_WORD_SHIFT, -1, -1):
        reach = [part / step * 2**shift for part in (P, T)]
        if max(reach) <= 32767 and sum(reach) + (127 << shift) <= 2**16 - 2:
            return step, shift
    raise ParameterError(
        "positions and types at most 256 times the words' steps",
        f"{max(P, T) / step:.4g}",
        "Scale the words up.",
    )


@dataclass(frozen=True, eq=False)
class PatchParams:
    """`projection` of pixels - 128, [width, channels * patch^2]; `special` rows; `positions` of both, int16.

    `image` is (channels, height, width). The normalisation of pixels is in the projection's weights.
    """

    projection: LinearParams
    special: NDArray[np.int16]
    positions: NDArray[np.int16]
    patch: int
    image: tuple[int, int, int]

    def __post_init__(self) -> None:
        sizes = (self.patch, *self.image)
        if len(sizes) != 4 or not all(type(size) is int and size > 0 for size in sizes):
            raise ShapeError(
                "the side of a patch, and channels, height and width: positive integers",
                f"{self.patch!r} and {self.image!r}",
                "Lower the model again.",
            )
        channels, height, width = self.image
        outputs, inputs = self.projection.weight.shape
        count = len(self.special) + (height // self.patch) * (width // self.patch)
        if height % self.patch or width % self.patch or inputs != channels * self.patch**2:
            raise ShapeError(
                "an image of whole patches, and a weight for each of a patch's pixels",
                f"{self.image} by {self.patch}, {inputs} weights",
                "Lower the model again.",
            )
        if self.special.shape[1:] != (outputs,) or self.positions.shape != (count, outputs):
            raise ShapeError(
                f"special rows [..., {outputs}] and positions ({count}, {outputs})",
                f"{self.special.shape} and {self.positions.shape}",
                "Lower the model again.",
            )
        kinds = (self.special.dtype.name, self.positions.dtype.name)
        if kinds != ("int16", "int16") or self.projection.limit != INT16_LIMIT:
            raise ShapeError("int16 rows and positions", str(kinds), "Lower the model again.")
        if self.projection.input_limit != 128 or self.projection.multiplier is None:
            raise ShapeError("a projection of pixels - 128", "another input limit", "Lower the model again.")

    @property
    def tokens(self) -> int:
        return len(self.positions)


RAMP_PIECES = 64
MAX_RAMP_BITS = 9
"""64 pieces of 2^9 steps reach all of int16."""


@dataclass(frozen=True, eq=False)
class RampParams:
    """f(x) = max(x, 0) - r(|x|): `knot` is r where a piece of 2^bits steps starts, `slope` its rise over it.

    Beyond the last piece r keeps its last value, which is 0 for the functions that `from_function` takes.
    """

    knot: NDArray[np.int16]
    slope: NDArray[np.int16]
    bits: int

    def __post_init__(self) -> None:
        for name, part in (("knot", self.knot), ("slope", self.slope)):
            if part.shape != (RAMP_PIECES,) or part.dtype != np.int16:
                raise ShapeError(f"{name} int16 of shape (64,)", f"{part.dtype} of shape {part.shape}", "")
        if (
            isinstance(self.bits, bool)
            or not isinstance(self.bits, int)
            or not 0 <= self.bits <= MAX_RAMP_BITS
        ):
            raise ParameterError(
                f"bits from 0 to {MAX_RAMP_BITS}", repr(self.bits), "A piece has 1 to 512 steps."
            )
        ends = np.stack([self.knot.astype(np.int64), self.knot.astype(np.int64) + self.slope])
        if ends.min() < -(2**14) or ends.max() > 2**14:
            raise ParameterError(
                "a residue within 2^14 steps", f"{ends.min()} to {ends.max()}", "Use a coarser step."
            )
        largest = np.minimum((np.arange(RAMP_PIECES) + 1 << self.bits) - 1, INT16_LIMIT)  # x of each piece
        largest[-1] = INT16_LIMIT
        if (largest - ends.min(0) > INT16_LIMIT).any():
            raise ParameterError(
                "f(x) of at most 32767", f"{(largest - ends.min(0)).max()}", "Use a coarser step."
            )

    @classmethod
    def from_function(cls, function: Callable[[Any], Any], step: float) -> RampParams:
        """The ramp of a real function, x and f(x) in this step; any but GELU's kind are refused."""
        reach = 32767 * step
        x = np.linspace(0.0, reach, 4097)
        residue = np.maximum(x, 0) - np.asarray(function(x), np.float64)
        mirrored = -np.asarray(function(-x), np.float64)
        if not np.allclose(residue, mirrored, rtol=0, atol=max(1e-6, step / 4)):
            raise ParameterError(
                "a function f with f(x) - max(x, 0) the same for x and -x, as GELU and SiLU",
                "another function",
                "Use a table of int8 values for it.",
            )
        needed = x[np.flatnonzero(abs(residue) > step / 2)[-1]] if (abs(residue) > step / 2).any() else 0.0
        bits = next((b for b in range(MAX_RAMP_BITS + 1) if RAMP_PIECES * 2**b * step > needed), None)
        if bits is None:
            raise ParameterError("a residue that ends within int16", f"one that reaches {needed:.3g}", "")
        knots = np.arange(RAMP_PIECES + 1) * 2.0**bits * step
        values = np.rint((np.maximum(knots, 0) - np.asarray(function(knots), np.float64)) / step)
        values[-1] = 0
        return cls(values[:-1].astype(np.int16), np.diff(values).astype(np.int16), bits)
