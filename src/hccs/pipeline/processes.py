"""Several processes that work on one run, as `accelerate launch` starts them: who writes, who waits."""

from __future__ import annotations

from typing import Any

from hccs.errors import MissingExtraError


def state() -> Any:
    """accelerate's view of the processes of this run; one process is its usual case."""
    try:
        from accelerate import PartialState
    except ModuleNotFoundError as error:
        raise MissingExtraError("accelerate", f"no module {error.name}", "pip install 'hccs[hf]'.") from error
    import torch

    # Without `cpu` accelerate joins processes only where it finds accelerators.
    return PartialState(cpu=not torch.cuda.is_available())
