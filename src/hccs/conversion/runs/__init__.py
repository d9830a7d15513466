"""Folders of runs: what was asked, what is done, who works on it.

One mechanism serves `convert`, `compare` and `reproduce`: a `RunFolder` keeps the settings and a lock, and
every piece of work in it a `StageRecord`, which does a stage once and writes its result as it is known.
"""

from __future__ import annotations

from typing import Any

from hccs._extras import require


def state() -> Any:
    """accelerate's view of the processes of this run, as `accelerate launch` starts them; usually one."""
    accelerate = require("accelerate", "hf")
    import torch

    # Without `cpu` accelerate joins processes only where it finds accelerators.
    return accelerate.PartialState(cpu=not torch.cuda.is_available())
