"""Arguments of the AI Engine's functions: closed sets of names, and whole numbers."""

from __future__ import annotations

import enum
import operator
from typing import Any, NoReturn

import numpy as np

from hccs.errors import DtypeError, ParameterError


class Choice(str, enum.Enum):
    """One of a few names; any other is refused with the list of them."""

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        names = ", ".join(repr(choice.value) for choice in cls)
        raise ParameterError(
            f"{cls.__name__.lower()} to be one of {names}", repr(value), "Choose one of them."
        )


def integer(name: str, value: Any) -> int:
    """A whole number as an int; floats, text and truth values are refused."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise DtypeError(f"{name} to be a whole number", repr(value), "Pass an int.") from None
