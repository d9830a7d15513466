"""Labels: how they are read from data, in what order they stand, and which output of a model is which."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal

from hccs.errors import DataError, ParameterError

_INTEGER = re.compile(r"([+-]?)0*(\d+)(\.0*)?", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)

SHOWN = 8
"""Labels and rows named in a message before it only counts them."""

MANY = 20
"""Distinct labels from which on a column with a new one in every other row is taken for no label column."""

_COLUMN = "Check the label column."


def key(label: object) -> str:
    """What two spellings of one label share: case and blanks around it do not count, nor does 1.0 for 1.

    >>> key(" Positive "), key("1.0"), key("-007")
    ('positive', '1', '-7')
    """
    text = str(label).strip().casefold()
    integer = _INTEGER.fullmatch(text)
    if integer is None:
        return text
    return integer[2] if integer[1] != "-" or integer[2] == "0" else f"-{integer[2]}"


def shown(labels: Sequence[object]) -> str:
    """The first labels for a message, and how many more there are."""
    more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return ", ".join(map(str, labels[:SHOWN])) + more


def checked(labels: Sequence[str]) -> tuple[str, ...]:
    """The labels that a user listed: at least two, each once."""
    if len(labels) < 2 or len({key(label) for label in labels}) != len(labels) or "" in map(key, labels):
        raise ParameterError(
            "two or more different labels", shown(labels) or "none", "Name them: --labels negative,positive."
        )
    return tuple(labels)


def from_column(values: Sequence[str], where: str) -> tuple[str, ...]:
    """The labels of a column: numbers in the order of their values, anything else in that of the alphabet.

    >>> from_column(["10", "9", "10", "0"], "train.csv")
    ('0', '9', '10')
    """
    found: dict[str, str] = {}
    for value in values:
        found.setdefault(key(value), value.strip())
    integers = all(_INTEGER.fullmatch(k) for k in found)
    if not integers and all(_NUMBER.fullmatch(k) for k in found):
        raise DataError(
            f"a label that names a class in every row of {where}",
            f"decimal numbers such as {shown(list(found.values())[:3])}",
            "These look like values to predict: --problem regression.",
        )
    if len(found) < 2:
        raise DataError("at least two labels", f"only {shown(list(found.values()))} in {where}", _COLUMN)
    if len(found) > MANY and 2 * len(found) > len(values):
        raise DataError(
            f"labels that repeat in {where}",
            f"{len(found)} different ones in {len(values)} rows",
            f"{_COLUMN} Values to predict are a --problem regression.",
        )
    return tuple(found[k] for k in sorted(found, key=Decimal if integers else None))


def require_filled(values: Sequence[str], rows: Sequence[int], where: str) -> None:
    """Refuse empty cells, naming their rows."""
    empty = [row for row, value in zip(rows, values, strict=True) if not value.strip()]
    if empty:
        raise DataError(
            f"a label in every row of {where}",
            f"an empty label in row{'s' * (len(empty) > 1)} {shown(empty)}",
            "Fill in or remove them.",
        )


def targets(column: Sequence[str], rows: Sequence[int], where: str) -> list[float]:
    """The numbers that a regression predicts; anything else is refused with its row."""
    found = []
    for row, text in zip(rows, column, strict=True):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise DataError(f"a number in every row of {where}", f"{text[:60]!r} in row {row}", _COLUMN)
        found.append(value)
    return found


def numbers(labels: Sequence[str]) -> dict[str, int]:
    """The number of each label by its `key`; where labels are words, a number in the data is a position.

    >>> numbers(("negative", "positive"))
    {'0': 0, '1': 1, 'negative': 0, 'positive': 1}
    """
    own = {key(label): i for i, label in enumerate(labels)}
    words = not any(_INTEGER.fullmatch(k) for k in own)
    return {**({str(i): i for i in range(len(labels))} if words else {}), **own}


def in_model_order(
    own: Sequence[str], data: Sequence[str], order: Sequence[str] = ()
) -> tuple[str, ...] | None:
    """The data's labels as a model's outputs stand, or None where nothing tells.

    `order`, a label for each output, decides. Without it data that use the model's `own` names are matched by
    name. Where the model's names are LABEL_0 and so on, or mere
    numbers, numbers in the data are positions and words stand in the data's order.

    >>> in_model_order(("Unhappy", "Happy"), ("happy", "unhappy"))
    ('Unhappy', 'Happy')
    >>> in_model_order(("NEGATIVE", "POSITIVE"), ("0", "1")) is None
    True
    """
    matched = {key(label) for label in data} <= {key(label) for label in own}
    if len(order) == len(own):
        return tuple(order)
    if matched:
        return tuple(own)
    positions = tuple(str(i) for i in range(len(own)))
    if is_unnamed(own) and {key(label) for label in data} <= {*positions}:
        return positions
    return tuple(data) if is_unnamed(own) and len(data) == len(own) else None


def is_unnamed(own: Sequence[str]) -> bool:
    """Whether a model's labels are transformers' LABEL_0, LABEL_1, ... or their mere numbers."""
    return all(key(label) in (str(i), f"label_{i}") for i, label in enumerate(own))
