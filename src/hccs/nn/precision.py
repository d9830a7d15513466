"""How precise products of float32 are on a GPU, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float32_products(*, quick: bool) -> Iterator[None]:
    """In TF32 if `quick`, else in float32, whatever was allowed before and is again afterwards."""
    matmul = torch.backends.cuda.matmul
    # The switch has two names; torch refuses to read the older once the newer was set, as Trainer does.
    newer = "fp32_precision", "tf32" if quick else "ieee"
    name, wanted = newer if hasattr(matmul, "fp32_precision") else ("allow_tf32", quick)
    before = getattr(matmul, name)
    setattr(matmul, name, wanted)
    try:
        yield
    finally:
        setattr(matmul, name, before)
