"""What sparsemax and both entmax share: masked logits whose maximum is 0, and the `entmax` package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._extras import require
from hccs_lab.surrogates.rows import maximum

if TYPE_CHECKING:
    from numpy.typing import NDArray

FAR_BELOW = -1e6
"""A masked logit, relative to the maximum: far outside any support, and small enough to be summed exactly."""


def shifted(z: NDArray[np.float64], valid: NDArray[np.bool_]) -> NDArray[np.float64]:
    """z less the maximum over valid columns; masked columns far below."""
    return np.where(valid, z - maximum(z, valid), FAR_BELOW)


def masked_tensor(z: Any, valid: Any) -> Any:
    """Logits in float32 or wider, masked columns far below; the package subtracts the maximum itself."""
    import torch

    wide = z.to(torch.promote_types(z.dtype, torch.float32))
    return wide.masked_fill(~valid, FAR_BELOW)


def require_entmax() -> Any:
    """The `entmax` package, or what to install."""
    return require("entmax", "surrogates", "for the PyTorch form of sparsemax and entmax")
