"""What a user calls: arguments are checked here once, for every backend and device."""

from hccs.ops.dispatch import synchronise

__all__ = ["synchronise"]
