"""Whole programs of integers by the native kernels: a plan of steps, built once, then run on any batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy import empty, int32, ndarray, uint8

from hccs.backends.cpu import _native
from hccs.backends.cpu.instruction_sets import threads_for

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Multiply-adds that are worth handing to another thread.
_WORK_PER_THREAD = 1 << 25


class Engine(_native.Engine):
    """Steps over values that lie in one arena, on any number of threads and from any number of Python's.

    Values are known by the numbers that `value` returns; steps are added segment by segment, in the order in
    which they run. Embeddings are read where they lie; weights are packed for the instruction set in use.
    """

    _labels: int
    _per_token: bool
    _tokens_per_image: int
    _products: int

    def complete(
        self,
        scores: int,
        labels: int,
        *,
        per_token: bool,
        longest: int,
        first_position: int,
        products: int,
    ) -> None:
        """The last call before running: where scores lie, and what the model takes.

        `longest` is the most tokens of a sequence or an image; `products` are per token.
        """
        self.finish(scores, labels, longest, first_position)
        self._labels, self._per_token = labels, per_token
        self._tokens_per_image, self._products = longest, products

    def run_ids(self, ids: Any, mask: Any, types: Any, threads: int | None) -> NDArray[np.int32] | None:
        """int32 scores of token ids [batch, n], masks and types alike or None.

        None for anything but arrays in one piece of ids, masks and types that the model takes: the caller
        explains.
        """
        for array in (ids, mask, types):
            if array is None:
                continue
            if type(array) is not ndarray or array.ndim != 2 or not array.flags.c_contiguous:
                return None
        scores = self._scores(ids.shape[0], ids.shape[1])
        used = self._threads(ids.size) if threads is None else threads
        return scores if self.run(ids, mask, types, scores, used) else None

    def run_images(self, images: Any, threads: int | None) -> NDArray[np.int32] | None:
        """int32 scores of uint8 images [batch, channels, height, width]; None as above."""
        if type(images) is not ndarray or images.dtype != uint8 or not images.flags.c_contiguous:
            return None
        scores = self._scores(len(images), self._tokens_per_image)
        used = self._threads(len(images) * self._tokens_per_image) if threads is None else threads
        return scores if self.run_pixels(images, scores, used) else None

    def _scores(self, batch: int, n: int) -> NDArray[np.int32]:
        return empty((batch, n, self._labels) if self._per_token else (batch, self._labels), int32)

    def _threads(self, tokens: int) -> int:
        return threads_for(tokens * self._products, _WORK_PER_THREAD)
