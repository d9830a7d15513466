"""Score curves: what a method gives to a key by its distance from the row's largest logit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from hccs_lab.surrogates.rows import distance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hccs_lab.surrogates import Result

DISTANCES = 256
"""Int8 logits differ by 0 to 255 steps."""


def drawn_heads(scale: NDArray[np.float64]) -> dict[str, tuple[int, int]]:
    """(layer, head) of the heads whose logits have the widest and the narrowest range."""
    ends = {"widest logits": int(scale.argmax()), "narrowest logits": int(scale.argmin())}
    return {name: divmod(flat, scale.shape[1]) for name, flat in ends.items()}


def mean_curves(
    heads: dict[str, tuple[int, int]],
    outputs: Iterable[tuple[int, NDArray[np.int8], NDArray[np.bool_], Result]],
) -> dict[str, list[float | None]]:
    """Mean output of some heads at each distance 0..255, the row's largest being 1; None where none was.

    `outputs` are (layer, logits, mask, result) as `steps.outputs` gives them.
    """
    sums, counts = ({name: np.zeros(DISTANCES) for name in heads} for _ in range(2))
    for layer, x, valid, result in outputs:
        for name, (at, head) in heads.items():
            if at == layer:
                mask = np.broadcast_to(valid, x.shape)[head]
                steps, relative = _by_distance(x[head], result.probabilities[head], mask)
                counts[name] += np.bincount(steps, minlength=DISTANCES)
                sums[name] += np.bincount(steps, relative, minlength=DISTANCES)
    return {
        name: [
            round(total / count, 5) if count else None
            for total, count in zip(sums[name].tolist(), counts[name].tolist(), strict=True)
        ]
        for name in heads
    }


def _by_distance(
    x: NDArray[np.int8], q: NDArray[np.float64], valid: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Distance from the row's maximum, and output over the row's largest, of the valid positions."""
    top = q.max(-1, keepdims=True)
    taken = valid & (top > 0)
    return distance(x, valid)[taken], (q / np.where(top > 0, top, 1.0))[taken]
