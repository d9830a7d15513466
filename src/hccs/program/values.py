"""What every value of a program is: its type, its width, and whether there is one per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hccs.errors import DataError
from hccs.numbers.multipliers import INT8_LIMIT
from hccs.program import operators as op


@dataclass(frozen=True)
class Value:
    """Rows of `width` integers of `bits` bits: one row per token, or one per sequence."""

    bits: int
    width: int
    per_token: bool = True

    @property
    def bytes_per_row(self) -> int:
        """Of its integers."""
        return self.width * self.bits // 8


def values_of(operators: Sequence[op.Operator]) -> dict[str, Value]:
    """Every value by name, in the order of writing; operators that do not fit together are refused."""
    values: dict[str, Value] = {}
    for number, step in enumerate(operators):
        where = f"operator {number}, {type(step).__name__},"
        missing = [name for name in step.inputs if name not in values]
        if missing or step.output in values:
            raise DataError(
                f"{where} to read earlier values and write one",
                f"inputs {missing} unknown" if missing else f"{step.output} written twice",
                "A program is a straight list.",
            )
        if isinstance(step, op.Embed | op.EmbedPatches) != (number == 0):
            raise DataError("one embedding, the first operator", f"{where} in its place", "Lower it anew.")
        values[step.output] = _written(step, [values[name] for name in step.inputs], where)
    return values


def _written(step: op.Operator, given: list[Value], where: str) -> Value:
    match step:
        case op.Embed(params=params):
            return Value(32 if step.limit is None else 16, params.words.shape[1])
        case op.EmbedPatches(params=patches):
            return Value(16, patches.positions.shape[1])
        case op.LayerNorm(params=norm):
            _require(where, given[0], (16, 32), norm.channels)
            return Value(16, norm.channels, given[0].per_token)
        case op.Narrow():
            _require(where, given[0], (16,), given[0].width)
            return Value(8, given[0].width, given[0].per_token)
        case op.Linear(params=linear):
            outputs, inputs = linear.weight.shape
            _require(where, given[0], (8,), inputs)
            bits = 32 if linear.multiplier is None else 8 if linear.limit == INT8_LIMIT else 16
            return Value(bits, outputs, given[0].per_token)
        case op.Attention():
            _require(where, given[0], (8,), given[0].width, tokens=True)
            if given[0].width % (3 * step.heads):
                raise DataError(
                    f"{where} to read q, k and v of {step.heads} heads",
                    f"{given[0].width} channels",
                    "Lower it anew.",
                )
            return Value(8, given[0].width // 3)
        case op.Table():
            _require(where, given[0], (8,), given[0].width)
            return given[0]
        case op.Add():
            for value in given:
                _require(where, value, (16,), given[0].width)
            if given[0].per_token != given[1].per_token:
                raise DataError(f"{where} to add like to like", "a token to a sequence", "Lower it anew.")
            return Value(32 if step.limit is None else 16, given[0].width, given[0].per_token)
        case op.First():
            _require(where, given[0], (8,), given[0].width, tokens=True)
            return Value(8, given[0].width, per_token=False)


def _require(where: str, value: Value, bits: tuple[int, ...], width: int, tokens: bool = False) -> None:
    if value.bits not in bits or value.width != width or (tokens and not value.per_token):
        kinds = " or ".join(f"int{b}" for b in bits)
        raise DataError(
            f"{where} to read {kinds} rows of {width}",
            f"int{value.bits} rows of {value.width}" + ("" if value.per_token else ", one per sequence"),
            "Lower it anew.",
        )
