"""Logit scales in the precision that exports carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hccs.errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hccs.numbers.table import ParamTable


def float32_scales(table: ParamTable) -> NDArray[np.float32]:
    """The scales [layers, heads] as float32; one that float32 cannot hold to full precision is refused."""
    limits = np.finfo(np.float32)
    outside = (table.scale < limits.tiny) | (table.scale > limits.max)
    if outside.any():
        layer, head = np.argwhere(outside)[0].tolist()
        raise ParameterError(
            f"layer {layer} head {head}: a scale that float32 holds, {limits.tiny:.3g} to {limits.max:.3g}",
            str(table.scale[layer, head]),
            "Recalibrate on logits of a usual size.",
        )
    return np.asarray(table.scale, np.float32)
