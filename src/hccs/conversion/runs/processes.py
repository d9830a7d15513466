"""The processes of one run, as `accelerate launch` starts them; usually one."""

from __future__ import annotations

from typing import Any

from hccs._extras import require


def state() -> Any:
    """accelerate's view of the processes of this run."""
    accelerate = require("accelerate", "hf")
    import torch

    # Without `cpu` accelerate joins processes only where it finds accelerators.
    return accelerate.PartialState(cpu=not torch.cuda.is_available())
