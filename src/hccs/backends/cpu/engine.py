"""Whole programs of integers by the native kernels: a plan of steps, built once, then run on any batch."""

from __future__ import annotations

from typing import Any

from numpy import empty, int16, int32, ndarray, uint8
from numpy.typing import NDArray

from hccs.backends.cpu import _native
from hccs.backends.cpu.instruction_sets import threads_for

# Multiply-adds that are worth handing to another thread.
_WORK_PER_THREAD = 1 << 25


class Engine(_native.Engine):
    """Steps over values that lie in one arena, on any number of threads and from any number of Python's.

    Values are known by the numbers that `value` returns; steps are added segment by segment, in the order in
    which they run. Embeddings are read where they lie; weights are packed for the instruction set in use.
    """

    _dtype: Any
    _per_token: bool
    _images: bool
    _tokens_per_image: int
    _products: int

    def complete(
        self,
        scores: int,
        labels: int,
        bytes_each: int,
        *,
        per_token: bool,
        longest: int,
        first_position: int,
        products: int,
        images: bool,
        causal: bool,
    ) -> None:
        """The last call before running: where scores or unit vectors lie, and what the model takes.

        `longest` is the most tokens of a sequence or an image; `products` are per token.
        """
        self.finish(scores, labels, bytes_each, longest, first_position, causal)
        self._dtype = int32 if bytes_each == 4 else int16
        self._per_token, self._images = per_token, images
        self._tokens_per_image, self._products = longest, products

    def takes(self, tokens: Any, mask: Any, types: Any) -> bool:
        """Whether the arrays have a form that `answer` reads: native integers in one piece."""
        if self._images:
            plain = type(tokens) is ndarray and tokens.dtype == uint8 and tokens.ndim == 4
            return plain and tokens.flags.c_contiguous and mask is None and types is None
        for array, kinds in ((tokens, "iu"), (mask, "biu"), (types, "iu")):
            if array is None:
                continue
            if type(array) is not ndarray or array.ndim != 2 or not array.flags.c_contiguous:
                return False
            if array.dtype.kind not in kinds or not array.dtype.isnative:
                return False
        return tokens is not None

    def answer(
        self, tokens: Any, mask: Any, types: Any, threads: int | None, width: int
    ) -> NDArray[Any] | None:
        """Scores or unit vectors of token ids [batch, n], masks and types alike or None; or of images.

        Each answer has `width` numbers: all scores, or as many first channels of a vector as are wanted.

        None for ids, masks, types and sizes that the model does not take: the caller explains.
        """
        n = self._tokens_per_image if self._images else tokens.shape[1]
        batch = len(tokens)
        scores = empty((batch, n, width) if self._per_token else (batch, width), self._dtype)
        used = threads_for(batch * n * self._products, _WORK_PER_THREAD) if threads is None else threads
        if self._images:
            return scores if self.run_pixels(tokens, scores, used) else None
        return scores if self.run(tokens, mask, types, scores, used) else None

    def extend(
        self, tokens: Any, counts: Any, texts: Any, cache: Any, threads: int | None, width: int
    ) -> NDArray[int32] | None:
        """Scores [texts, `width`] after the last of `counts` new tokens of each text of a causal program.

        Their keys and values are appended to the cache, whose room and numbers the caller has checked.
        """
        scores = empty((len(texts), width), int32)
        used = threads_for(len(tokens) * self._products, _WORK_PER_THREAD) if threads is None else threads
        done = self.run_new_rows(
            tokens,
            counts,
            texts,
            cache.lengths[texts],
            cache.memory,
            cache.sequences,
            cache.capacity,
            scores,
            used,
        )
        return scores if done else None
