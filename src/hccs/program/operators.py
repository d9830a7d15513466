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
from hccs.numbers.requant import Requant

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Embed:
    """Token, position and type ids to the int32 sum of their embeddings."""

    output: str
    params: EmbeddingParams
    first_position: int = 0
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """An int32 sum to the int16 stream."""

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
    """Two int16 values to their int32 sum: the residual."""

    inputs: tuple[str, str]
    output: str


@dataclass(frozen=True, eq=False)
class First:
    """The first token of every sequence."""

    inputs: tuple[str]
    output: str


Operator = Embed | LayerNorm | Narrow | Linear | Attention | Table | Add | First


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
        known: set[str] = set()
        for number, operator in enumerate(self.operators):
            missing = [name for name in operator.inputs if name not in known]
            if missing or operator.output in known:
                raise DataError(
                    f"operator {number}, {type(operator).__name__}, to read earlier values and write one",
                    f"inputs {missing} unknown" if missing else f"{operator.output} written twice",
                    "A program is a straight list.",
                )
            known.add(operator.output)
        last = self.operators[-1] if self.operators else None
        if not isinstance(last, Linear) or last.params.multiplier is not None:
            raise DataError(
                "a program that ends with int32 scores", type(last).__name__, "Lower the model's head."
            )

    @property
    def embed(self) -> Embed:
        """The first operator."""
        first = self.operators[0]
        assert isinstance(first, Embed)
        return first
