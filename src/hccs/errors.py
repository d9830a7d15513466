"""Every refusal of the package. Each one says what was expected, what came, and what to do."""

from collections.abc import Collection


class HccsError(Exception):
    """Base of all errors raised on purpose by `hccs`."""

    def __init__(self, expected: str, got: str, hint: str) -> None:
        # All three stay in `args`, so that the error survives pickling between processes.
        super().__init__(expected, got, hint)

    def __str__(self) -> str:
        expected, got, hint = self.args
        return f"expected {expected}; got {got}. {hint}"


class DtypeError(HccsError, TypeError):
    """An array or value is of the wrong kind."""


class ShapeError(HccsError, ValueError):
    """An array has the wrong number of dimensions, or does not broadcast."""


class ModeError(HccsError, ValueError):
    """A normalisation mode that does not exist."""


class ParameterError(HccsError, ValueError):
    """A parameter breaks a bound of the integer datapath."""


class MaskError(HccsError, ValueError):
    """A mask or a row length that does not describe the rows it came with."""


class DataError(HccsError, ValueError):
    """Data from which nothing can be computed: empty, not finite, inconsistent."""


class FileError(HccsError, ValueError):
    """A file that is damaged, of another version, or not ours."""


class ModelError(HccsError, ValueError):
    """A model that cannot take HCCS, or not with these parameters."""


class MissingExtraError(HccsError, ImportError):
    """A part of the package whose optional dependency is not installed."""


def require_one_of(name: str, value: object, choices: Collection[str], hint: str) -> None:
    if value not in choices:
        raise ParameterError(f"{name} to be one of {', '.join(choices)}", repr(value), hint)
