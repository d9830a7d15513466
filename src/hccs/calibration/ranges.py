"""`ValueRanges`: how large the values of a model get, for the scales of an integer program.

Everything kept is a maximum or an integer count: parts measured on several machines merge to the same bits in
any order.
"""

from __future__ import annotations

import json
import operator
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._files.checked import Format
from hccs.errors import DataError, FileError, ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = Format("hccs.ValueRanges", version=1)

METHODS = ("max-abs", "least-error")

BINS_PER_OCTAVE = 64
SMALLEST_POWER, LARGEST_POWER = -26, 22
BINS = (LARGEST_POWER - SMALLEST_POWER) * BINS_PER_OCTAVE
"""A magnitude's bin is its float32 exponent and the six highest bits of its mantissa: the same on any data,
so that counts of different data add up. The first bin also takes all that is smaller."""

CLIPS = np.geomspace(0.05, 1.0, 120)
"""Shares of the largest magnitude at which a value may be clipped."""

REACHES = 2.0 ** (np.arange(-16, 41) / 2)
"""How far an int16 stream may reach, when the error of that is measured."""

ERROR_UNIT, INVERSE_UNIT = 2.0**-24, 2.0**-10
"""Errors of the stream and inverse variances are counted in these, so that their sums are exact."""

SMALLEST = 1e-6

MOST_TOKENS = 2**53
"""Files keep the number of tokens as a float64."""


@dataclass(eq=False)
class ValueRange:
    """The largest magnitude of each channel of a value, and counts of magnitudes per head and bin."""

    largest: NDArray[np.float32]
    counts: NDArray[np.int64]
    """[heads, BINS], or [heads, 0] where nobody counted."""

    def __post_init__(self) -> None:
        largest, counts = self.largest, self.counts
        heads, bins = counts.shape if counts.ndim == 2 else (0, 0)
        if counts.dtype != np.int64 or bins not in (0, BINS) or not heads:
            raise _unusable(f"int64 counts [heads, {BINS}]", f"{counts.dtype} {counts.shape}")
        if largest.dtype != np.float32 or largest.ndim != 1 or not largest.size or largest.size % heads:
            raise _unusable("float32 magnitudes of every channel", f"{largest.dtype} {largest.shape}")
        if not (np.isfinite(largest) & (largest >= 0)).all() or (counts < 0).any():
            raise _unusable("finite magnitudes and counts >= 0", "others")

    def merged(self, other: ValueRange) -> ValueRange:
        """The range of both; counts that leave int64 wrap to negative ones, which are refused."""
        return ValueRange(np.maximum(self.largest, other.largest), self.counts + other.counts)

    @property
    def reach(self) -> NDArray[np.float64]:
        per_head = self.largest.reshape(len(self.counts), -1).max(1)
        reach: NDArray[np.float64] = np.maximum(per_head.astype(np.float64), SMALLEST)
        return reach

    @property
    def least_error(self) -> NDArray[np.float64]:
        """Where clipping and rounding to int8 together cost the least squared error, per head."""
        return np.array([_best_clip(*pair) for pair in zip(self.reach.tolist(), self.counts, strict=True)])


@dataclass(eq=False)
class StreamErrors:
    """What LayerNorm would see of an int16 stream that reaches less far than the stream itself."""

    tokens: int = 0
    clipped: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(REACHES)))
    """Per entry of REACHES, the summed relative error of normalised tokens, in ERROR_UNIT; or infinite."""
    inverse_variance: float = 0.0
    """The sum over tokens, in INVERSE_UNIT: rounding to steps costs a token step^2 / 12 times its own."""

    def __post_init__(self) -> None:
        if not 0 <= self.tokens <= MOST_TOKENS:
            raise _unusable(f"0 to {MOST_TOKENS} tokens", str(self.tokens))
        if self.clipped.dtype != np.float64 or self.clipped.shape != REACHES.shape:
            raise _unusable(f"errors of {len(REACHES)} reaches", f"{self.clipped.dtype} {self.clipped.shape}")
        if not (self.clipped >= 0).all() or not 0 <= self.inverse_variance < np.inf:
            raise _unusable("errors >= 0 and a finite inverse variance", str(self.inverse_variance))

    def merged(self, other: StreamErrors) -> StreamErrors:
        return StreamErrors(
            self.tokens + other.tokens,
            self.clipped + other.clipped,
            self.inverse_variance + other.inverse_variance,
        )

    def best(self, largest: float, roundings: int) -> float:
        """The reach of least error, given how often a token of the stream is rounded on average."""
        reaches = np.append(REACHES[largest > REACHES], largest)
        clipped = np.append(self.clipped[largest > REACHES], 0.0)
        rounded = (reaches / 32767) ** 2 / 12 * roundings * self.inverse_variance
        return float(reaches[np.argmin(clipped * ERROR_UNIT + rounded * INVERSE_UNIT)])


@dataclass(eq=False)
class ValueRanges:
    """The ranges of every value of a model, by name, and the errors of its stream where that is int16.

    >>> a = ValueRanges({"x0_int8": ValueRange(np.float32([1, 3]), np.zeros((1, 0), np.int64))})
    >>> b = ValueRanges({"x0_int8": ValueRange(np.float32([2, 2]), np.zeros((1, 0), np.int64))})
    >>> a.merge(b)
    >>> a.magnitudes()["x0_int8"]
    array([3.])
    """

    values: dict[str, ValueRange]
    stream: StreamErrors | None = None
    layers: int = 0
    """The number of layers that add to an int16 stream."""

    def __post_init__(self) -> None:
        if not 0 <= self.layers < 2**31:
            raise _unusable("a number of layers", str(self.layers))

    def merge(self, other: ValueRanges) -> None:
        """Add what `other` has met, which must be of the same values."""
        if self._kind() != other._kind():
            raise DataError(
                "ranges of the same values", "those of another model", "Merge parts of one measurement."
            )
        values = {name: found.merged(other.values[name]) for name, found in self.values.items()}
        if self.stream is not None and other.stream is not None:
            self.stream = self.stream.merged(other.stream)
        self.values = values

    def _kind(self) -> dict[str, Any]:
        shapes = {name: (v.largest.shape, v.counts.shape) for name, v in self.values.items()}
        return {"shapes": shapes, "stream": self.stream is None, "layers": self.layers}

    def magnitudes(self, method: str = "max-abs") -> dict[str, NDArray[np.float64]]:
        """The magnitude that the steps of each value shall reach, one per head; "stream" is the stream's."""
        if method not in METHODS:
            raise ParameterError(f"one of {', '.join(METHODS)}", repr(method), "'max-abs' is the default.")
        least = method == "least-error"
        found = {
            name: value.least_error if least and value.counts.size else value.reach
            for name, value in self.values.items()
        }
        if self.stream is not None:
            largest = max(float(v.reach.max()) for n, v in self.values.items() if is_stream(n))
            found["stream"] = np.array([self.stream.best(largest, self.layers + 1) if least else largest])
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them under a checksum; the file replaces an old one only once it is complete."""
        arrays: dict[str, NDArray[Any]] = {}
        for name, value in self.values.items():
            arrays[f"largest.{name}"], arrays[f"counts.{name}"] = value.largest, value.counts
        described: dict[str, Any] = {"values": list(self.values), "layers": self.layers}
        if self.stream is not None:
            arrays["clipped"] = self.stream.clipped
            arrays["stream"] = np.array([self.stream.tokens, self.stream.inverse_variance])
        FORMAT.save(path, arrays, {"ranges": json.dumps(described)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ValueRanges:
        """What `save` wrote; a damaged or foreign file is refused."""
        arrays, metadata = FORMAT.load(path)
        try:
            described = json.loads(metadata["ranges"])
            names = described["values"]
            values = {name: ValueRange(arrays[f"largest.{name}"], arrays[f"counts.{name}"]) for name in names}
            stream = None
            if "stream" in arrays:
                tokens, inverse = arrays["stream"].tolist()
                stream = StreamErrors(int(tokens), arrays["clipped"], inverse)
                if not any(map(is_stream, values)):
                    raise ValueError("errors of a stream without its values")
            return cls(values, stream, operator.index(described["layers"]))
        except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise FileError(f"consistent ranges in {path}", repr(error), "Measure them again.") from error


def _unusable(expected: str, got: str) -> DataError:
    return DataError(expected, got, "Measure the ranges of the model again, or fewer parts of them.")


def is_stream(name: str) -> bool:
    """Whether a value of a pre-norm model lies in its residual stream, or is added to it."""
    return name.endswith("_part") or (name[:1] in ("x", "y") and name[1:].isdigit())


def _middles() -> NDArray[np.float64]:
    octave, part = np.divmod(np.arange(BINS), BINS_PER_OCTAVE)
    middles: NDArray[np.float64] = 2.0 ** (SMALLEST_POWER + octave) * (1 + (part + 0.5) / BINS_PER_OCTAVE)
    middles[0] = 0.0
    return middles


MIDDLES = _middles()


def _best_clip(largest: float, counts: NDArray[np.int64]) -> float:
    clips = largest * CLIPS
    used = counts > 0
    middle, weight = MIDDLES[used], counts[used].astype(np.float64)
    step = clips[:, None] / 127
    # A value below half a step becomes 0; others spread evenly over the step they are rounded to.
    inside = np.where(middle < step / 2, middle**2, step**2 / 12)
    error = np.where(middle <= clips[:, None], inside, (middle - clips[:, None]) ** 2)
    return float(clips[np.argmin(error @ weight)])
