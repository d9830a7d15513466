"""Images with a label: folders by class, and images in memory as a model reads them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hccs._extras import require
from hccs._progress import track
from hccs.conversion.data.tasks import Examples
from hccs.conversion.data.tokens import TokenisedSet
from hccs.errors import DataError, FileError
from hccs.nn.lowering.families import pixels_of

IMAGES_AT_ONCE = 64
"""Resized together."""


class ImageSet(TokenisedSet):
    """Images of one size as their pixels; a batch holds what the model reads, the program the pixels."""

    def batch(self, chosen: torch.Tensor, width: int) -> dict[str, torch.Tensor]:
        values = self.columns["pixel_values"][chosen].float() * self.pixels.factor
        mean, std = (values.new_tensor(part)[:, None, None] for part in (self.pixels.mean, self.pixels.std))
        batch = {"pixel_values": (values - mean) / std, "labels": self.labels[chosen]}
        if self.predictions is not None:
            batch["predictions"] = self.predictions[chosen]
        return batch

    def integers(self, indices: Sequence[int]) -> tuple[Any, ...]:
        return (self.columns["pixel_values"][torch.tensor(indices)].cpu().numpy(),)

    @property
    def width(self) -> int:
        """One: an image has one row of scores."""
        return 1


def prepared(examples: Examples, processor: Any) -> ImageSet:
    """Examples resized as the model's image processor does it, in uint8."""
    pillow = require("PIL.Image", "hf", "to read images")
    arrays = []
    starts = range(0, len(examples), IMAGES_AT_ONCE)
    for start in track(starts, total=len(starts), description="reading images"):
        images = [_in_rgb(pillow, image) for (image,) in examples.texts[start : start + IMAGES_AT_ONCE]]
        made = processor(images, do_rescale=False, do_normalize=False, return_tensors="np")
        arrays.append(np.clip(np.rint(made["pixel_values"]), 0, 255).astype(np.uint8))
    values = torch.from_numpy(np.concatenate(arrays))
    rows = torch.ones(len(values), dtype=torch.long)
    found = ImageSet({"pixel_values": values}, rows, torch.tensor(examples.labels), 0)
    found.pixels = pixels_of(processor, values.shape[1])
    return found


def _in_rgb(pillow: Any, image: Any) -> Any:
    """An image in three channels, from a file or as `datasets` hold it."""
    try:
        if not isinstance(image, str):
            return image.convert("RGB")
        with pillow.open(image) as file:
            return file.convert("RGB")
    except (OSError, ValueError, AttributeError) as error:
        raise DataError("images that Pillow can read", f"{image}: {error}", "Remove the file.") from error


def read_images(path: Path, image: str, label: str, option: str) -> list[dict[str, Any]]:
    """Rows of a folder with a folder of images for each class, which names the class."""
    if not path.is_dir():
        raise FileError(
            f"a folder of images by class at {path}",
            "a file" if path.exists() else "none",
            f"Check {option}.",
        )
    endings = {*require("PIL.Image", "hf", "to read images").registered_extensions()}
    rows, others = [], 0
    for folder in sorted(part for part in path.iterdir() if part.is_dir()):
        for file in sorted(folder.rglob("*")):
            if file.suffix.lower() in endings:
                rows.append({image: str(file), label: folder.name})
            else:
                others += file.is_file()
    if not rows:
        raise DataError(f"images in folders by class, such as {path}/cat/1.png", "none", f"Check {option}.")
    if others:
        warnings.warn(f"{others} files in {path} are no images and were left out", stacklevel=2)
    return rows
