"""`Program`: a straight list of operators. All constants are integers; scales are names for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DataError
from hccs.numbers.embeddings import EmbeddingParams
from hccs.numbers.heads import HeadParams
from hccs.numbers.layer_norm import NormParams
from hccs.numbers.multipliers import LinearParams
from hccs.numbers.patches import PatchParams
from hccs.numbers.requant import Requant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hccs.program.values import Value


@dataclass(frozen=True, eq=False)
class Embed:
    """Token, position and type ids to the sum of their embeddings: int32, or with `limit` a clamped int16."""

    output: str
    params: EmbeddingParams
    first_position: int = 0
    limit: int | None = None
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class EmbedPatches:
    """The patches of a uint8 image through a linear layer, behind the rows of special tokens: int16."""

    output: str
    params: PatchParams
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """An int32 sum, or the int16 stream itself, to int16."""

    inputs: tuple[str]
    output: str
    params: NormParams


@dataclass(frozen=True, eq=False)
class Narrow:
    """The int16 stream to int8: clamp(rhe(x / 2^bits), -127, 127)."""

    inputs: tuple[str]
    output: str
    bits: int


@dataclass(frozen=True, eq=False)
class Linear:
    """int8 to int8, int16 or int32."""

    inputs: tuple[str]
    output: str
    params: LinearParams


@dataclass(frozen=True, eq=False)
class Attention:
    """int8 rows of q, k and v side by side, [n, 3 * heads * d], to the heads' int8 outputs side by side."""

    inputs: tuple[str]
    output: str
    theta: HeadParams
    requant: Requant
    causal: bool = False

    @property
    def heads(self) -> int:
        """How many."""
        return int(self.theta.shape[0])


@dataclass(frozen=True, eq=False)
class Table:
    """One int8 look-up per value."""

    inputs: tuple[str]
    output: str
    entries: NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Add:
    """Two int16 values to their sum, the residual: int32, or with `limit` a clamped int16."""

    inputs: tuple[str, str]
    output: str
    limit: int | None = None


@dataclass(frozen=True, eq=False)
class First:
    """The first token of every sequence."""

    inputs: tuple[str]
    output: str


Operator = Embed | EmbedPatches | LayerNorm | Narrow | Linear | Attention | Table | Add | First


@dataclass(frozen=True, eq=False)
class Program:
    """Operators in the order in which they run; the last one's output is the model's scores.

    `scales` is the real value of one step of every value, `score_scale` that of the scores: for people, and
    for logits. `facts` is whatever JSON can hold about where the program came from.
    """

    operators: tuple[Operator, ...]
    labels: tuple[str, ...]
    longest: int
    score_scale: float
    scales: Mapping[str, float] = field(default_factory=dict)
    tokenizer: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from hccs.program.values import values_of  # it knows the operators

        object.__setattr__(self, "_values", values_of(self.operators))
        last = self.operators[-1] if self.operators else None
        if not isinstance(last, Linear) or last.params.multiplier is not None:
            raise DataError(
                "a program that ends with int32 scores", type(last).__name__, "Lower the model's head."
            )

    def _repr_html_(self) -> str:
        from hccs.program.describe import as_html  # it knows the operators

        return as_html(self)

    @property
    def embed(self) -> Embed | EmbedPatches:
        """The first operator."""
        first = self.operators[0]
        assert isinstance(first, Embed | EmbedPatches)
        return first

    @property
    def values(self) -> Mapping[str, Value]:
        """The type and width of every value, in the order of writing."""
        values: Mapping[str, Value] = self._values  # type: ignore[attr-defined]
        return values

    @property
    def per_token(self) -> bool:
        """Whether every token has scores of its own, not the sequence as a whole."""
        return self.values[self.operators[-1].output].per_token
