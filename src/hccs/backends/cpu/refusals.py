"""What the native code refused, in words."""

from __future__ import annotations

from typing import Any

from hccs.backends.cpu.codes import LENGTH_RANGE, OVERLAP
from hccs.errors import HccsError
from hccs.ops.arguments import lengths_outside, require_shapes, shared_memory


def refusal(status: int, what: str, shape: tuple[int, ...], *arguments: Any) -> HccsError:
    """The error for a status; `arguments` are those of `require_shapes`."""
    _, _, valid, *_ = arguments
    if status == LENGTH_RANGE:
        return lengths_outside(f"from {valid.min()} to {valid.max()}", shape[-1])
    if status == OVERLAP:
        return shared_memory()
    require_shapes(what, shape, *arguments)
    raise AssertionError(f"the native code refuses what hccs.ops takes: status {status}")
