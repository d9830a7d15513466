"""`Operator`: what every operator states about itself; `Value`: what it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hccs.errors import DataError

if TYPE_CHECKING:
    from typing_extensions import Self

    from hccs.program.cache import Cache

Array: TypeAlias = NDArray[Any]
Constants: TypeAlias = tuple[dict[str, Array], dict[str, Any]]


@dataclass(frozen=True)
class Value:
    """Rows of `width` integers of `bits` bits, none above `largest` in magnitude.

    There is a row per token, or one per sequence. Rows with `exponents`, which is the largest that there are,
    have one integer more, the power of two that their values are multiplied by.
    """

    bits: int
    width: int
    largest: int
    per_token: bool = True
    exponents: int = 0

    @property
    def columns(self) -> int:
        """Integers of a row, its exponent among them."""
        return self.width + (self.exponents > 0)

    @property
    def bytes_per_row(self) -> int:
        return self.columns * self.bits // 8

    def __str__(self) -> str:
        exponents = " with exponents" if self.exponents else ""
        return f"int{self.bits} rows of {self.width}{exponents}" + (
            "" if self.per_token else ", one per sequence"
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """A checked input: token ids [batch, n], or uint8 images; lengths [batch]; types like the ids.

    `past` [batch] counts the tokens that came before these in each sequence, none by default. Their keys and
    values lie in the `cache`, in the sequences with the numbers `texts`.
    """

    tokens: Array
    lengths: NDArray[np.int64]
    types: NDArray[np.int64]
    past: NDArray[np.int64] | None = None
    cache: Cache | None = None
    texts: NDArray[np.int64] | None = None

    def positions(self, rows: int) -> NDArray[np.int64]:
        """The positions [batch, rows] of this batch's rows, from 0 at the beginning of a sequence.

        Rows of padding behind a cache have the last token's: there may be none behind it.
        """
        count = np.arange(rows)
        if self.past is None:
            return np.broadcast_to(count, (len(self.lengths), rows))
        return self.past[:, None] + np.minimum(count, self.lengths[:, None] - 1)

    def last_rows(self) -> Batch:
        """The last token of every sequence alone."""
        ones = np.ones_like(self.lengths)
        last = np.arange(len(self.lengths)), self.lengths - 1
        past = self.positions(self.tokens.shape[1])[last]
        return Batch(self.tokens[last][:, None], ones, self.types[last][:, None], past)


class Operator:
    """A frozen dataclass of constants that reads the values `inputs` and writes the value `output`.

    A subclass defines `written` and `run`. The rest has defaults: its fields, and those of its `params`, are
    its file form and its bytes, and each row of its output depends on the same row of its inputs.
    """

    inputs: tuple[str, ...]
    output: str

    arity: ClassVar[int] = 1
    embeds: ClassVar[bool] = False
    """Whether it reads the model's input: the first operator does, and no other."""
    uses_position: ClassVar[bool] = False
    """Whether a row of its output depends on its position in the sequence."""
    mixes_rows: ClassVar[bool] = False
    """Whether a row of its output depends on other rows of the sequence."""
    takes_first_row: ClassVar[bool] = False
    """Whether its output is the first row of its input, and nothing else."""
    copies_row: ClassVar[bool] = False
    """Whether its output is one row of its input, the first or another, and nothing else."""
    separable: ClassVar[bool] = False
    """Whether a range of its output channels can be computed alone."""
    overwrites: ClassVar[bool] = False
    """Whether its output may lie where its input lies: each integer is read once, before it is written."""

    @property
    def ends_program(self) -> bool:
        """Whether its output is a model's answer, which no operator reads."""
        return False

    labelled: ClassVar[bool] = True
    """Whether the channels of an answer have names."""

    def written(self, given: Sequence[Value]) -> Value:
        """What it writes, given what it reads; inputs and constants that it cannot take are refused."""
        raise NotImplementedError

    def run(self, given: Sequence[Array], batch: Batch) -> Array:
        """The output by `hccs.reference`."""
        raise NotImplementedError

    def parts(self) -> tuple[tuple[Operator, Value], ...]:
        """Smaller operators that do the same, with what they write: for executors that know these alone."""
        return ()

    def own_row_channels(self, width: int) -> int:
        """How many leading channels it reads only in the row that it writes, where it mixes rows."""
        return 0

    @property
    def sees_later_rows(self) -> bool:
        """Whether a row of its output depends on rows behind it."""
        return self.mixes_rows

    def cached_heads(self, given: Value) -> tuple[int, int] | None:
        """The heads, and channels of each, of keys and of values that later rows read; None of none."""
        return None

    def require_rows(self, rows: int) -> None:
        """Refuse sequences that are too long for its constants."""

    @property
    def longest_row(self) -> int | None:
        """The longest sequence that its constants serve."""
        return None

    params_type: ClassVar[type[Any] | None] = None
    """The dataclass of its field `params`; those of its fields that are None are not stored."""

    def constants(self) -> Constants:
        """Its file form: arrays, and what JSON holds."""
        named = _fields_of(self)
        del named["inputs"], named["output"]
        if self.params_type is not None:
            own = _fields_of(named.pop("params")).items()
            named = {**{name: value for name, value in own if value is not None}, **named}
        arrays = {name: value for name, value in named.items() if isinstance(value, np.ndarray)}
        return arrays, {name: value for name, value in named.items() if name not in arrays}

    @classmethod
    def from_constants(
        cls, place: Mapping[str, Any], arrays: Mapping[str, Any], numbers: Mapping[str, Any]
    ) -> Self:
        """The operator of a file form; `place` holds its inputs and its output."""
        given = {**arrays, **numbers}
        if cls.params_type is not None:
            own = {field.name: given.pop(field.name, None) for field in fields(cls.params_type)}
            given["params"] = cls.params_type(**own)
        return cls(**place, **given)

    @property
    def shape(self) -> str:
        """What its constants say about its shape, in words."""
        return ""

    @property
    def constant_bytes(self) -> int:
        return sum(array.nbytes for array in self.constants()[0].values())

    @property
    def products(self) -> int:
        """Multiplications per token of its weights."""
        return 0

    def require(self, holds: bool, expected: str, got: object) -> None:
        """Refuse the operator unless a condition holds."""
        if not holds:
            raise DataError(
                f"{type(self).__name__}, {expected}", f"{got} for {self.output!r}", "Lower the model again."
            )

    def require_rows_of(
        self, value: Value, bits: tuple[int, ...], width: int, tokens: bool = False, exponents: bool = False
    ) -> None:
        """Refuse another type or width, with `tokens` one row per sequence, or unexpected exponents."""
        kinds = " or ".join(f"int{b}" for b in bits)
        fits = value.bits in bits and value.width == width and (value.per_token or not tokens)
        fits = fits and (exponents or not value.exponents)
        self.require(fits, f"to read {kinds} rows of {width}", value)

    def require_integer(self, name: str, value: Any, low: int, high: int) -> None:
        """Refuse a constant that is no integer from `low` to `high`."""
        integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        self.require(integer and low <= value <= high, f"{name} from {low} to {high}", repr(value))


def _fields_of(made: Any) -> dict[str, Any]:
    return {field.name: getattr(made, field.name) for field in fields(made)}


class OneRow(Operator):
    """An operator whose output is one row of its input, per sequence."""

    copies_row = True

    def written(self, given: Sequence[Value]) -> Value:
        self.require_rows_of(given[0], (8, 16), given[0].width, tokens=True, exponents=True)
        return replace(given[0], per_token=False)


class Embedding(Operator):
    """An operator that reads the model's input: token ids, or images of the shape `image`."""

    arity = 0
    embeds = True
    uses_position = True
    image: tuple[int, int, int] | None = None
    """Channels, height and width; None where the input is token ids."""
    first_position: int = 0
    vocabulary: int = 0
    type_count: int = 0

    @property
    def most_rows(self) -> int | None:
        """Rows for which there are positions; None for any number."""
        raise NotImplementedError

    def rows(self, longest: int) -> int:
        """Rows of the longest input of a program that takes `longest` tokens."""
        return longest

    def read(self, tokens: Any, mask: Any, types: Any, longest: int) -> Batch:
        """The input as `run` takes it; what the model cannot take is explained."""
        raise NotImplementedError
