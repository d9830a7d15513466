"""`PatchParams`: an image's patches through one linear layer, and the rows of special tokens before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hccs.errors import ShapeError
from hccs.numbers.multipliers import INT16_LIMIT, LinearParams

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class PatchParams:
    """`projection` of pixels - 128, [width, channels * patch^2]; `special` rows; `positions` of both, int16.

    `image` is (channels, height, width). The normalisation of pixels is in the projection's weights.
    """

    projection: LinearParams
    special: NDArray[np.int16]
    positions: NDArray[np.int16]
    patch: int
    image: tuple[int, int, int]

    def __post_init__(self) -> None:
        sizes = (self.patch, *self.image)
        if len(sizes) != 4 or not all(type(size) is int and size > 0 for size in sizes):
            raise ShapeError(
                "the side of a patch, and channels, height and width: positive integers",
                f"{self.patch!r} and {self.image!r}",
                "Lower the model again.",
            )
        channels, height, width = self.image
        outputs, inputs = self.projection.weight.shape
        count = len(self.special) + (height // self.patch) * (width // self.patch)
        if height % self.patch or width % self.patch or inputs != channels * self.patch**2:
            raise ShapeError(
                "an image of whole patches, and a weight for each of a patch's pixels",
                f"{self.image} by {self.patch}, {inputs} weights",
                "Lower the model again.",
            )
        if self.special.shape[1:] != (outputs,) or self.positions.shape != (count, outputs):
            raise ShapeError(
                f"special rows [..., {outputs}] and positions ({count}, {outputs})",
                f"{self.special.shape} and {self.positions.shape}",
                "Lower the model again.",
            )
        kinds = (self.special.dtype.name, self.positions.dtype.name)
        if kinds != ("int16", "int16") or self.projection.limit != INT16_LIMIT:
            raise ShapeError("int16 rows and positions", str(kinds), "Lower the model again.")
        if self.projection.input_limit != 128 or self.projection.multiplier is None:
            raise ShapeError("a projection of pixels - 128", "another input limit", "Lower the model again.")

    @property
    def tokens(self) -> int:
        return len(self.positions)
