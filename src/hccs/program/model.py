"""`IntegerModel`: token ids in, int32 scores out. Needs NumPy alone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DataError, DtypeError, MaskError, ShapeError
from hccs.ops.arguments import require_threads
from hccs.program import files
from hccs.program.compiling import compiled
from hccs.program.describe import as_html, describe
from hccs.program.interpreter import run
from hccs.program.operators import EmbedPatches, Program

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Scores:
    """What a model answers: int32 `scores` [batch, labels], and for people `logits` and `labels`.

    A model with scores per token answers [batch, n, labels], zeros behind the end of a sequence.
    """

    scores: NDArray[np.int32]
    scale: float
    names: tuple[str, ...]

    @property
    def logits(self) -> NDArray[np.float32]:
        """The scores in the units of the float model's logits."""
        return (self.scores * self.scale).astype(np.float32)

    @property
    def labels(self) -> list[Any]:
        """The name of the largest score of each row; a list of them per sequence where tokens have scores."""
        names: list[Any] = np.asarray(self.names, object)[self.scores.argmax(-1)].tolist()
        return names


class IntegerModel:
    """A whole encoder in integers, from token ids to class scores.

    The native engine runs it, with the integers of `hccs.reference`; where there is none, NumPy does.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._engine = compiled(program)
        self._sees = isinstance(program.embed, EmbedPatches)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> IntegerModel:
        """The model in a file that `save` wrote; damaged and foreign files are refused."""
        return cls(files.load(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file; it replaces an old one only once it is complete."""
        files.save(self.program, path)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the scores, in order."""
        return self.program.labels

    def __call__(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        *,
        reference: bool = False,
        threads: int | None = None,
    ) -> Scores:
        """Scores of token ids [batch, n], or of one sequence [n]; of images, uint8 [batch, c, height, width].

        `attention_mask` has ones for tokens, then zeros for padding; masks with holes are refused.
        `reference` runs the readable form of every operator, for checking. `threads` are as many as pay, by
        default.
        """
        if threads is not None:
            require_threads(threads)
        given = (input_ids, attention_mask, token_type_ids)
        scores = None if reference else self._by_engine(*given, threads)
        if scores is None:
            tokens, lengths, types = self._checked(*given)
            if not reference:
                scores = self._by_engine(
                    tokens, np.arange(tokens.shape[1]) < lengths[:, None], types, threads
                )
            if scores is None:
                scores = run(self.program, tokens, lengths, types, reference=reference)
        return Scores(scores, self.program.score_scale, self.labels)

    def _by_engine(self, ids: Any, mask: Any, types: Any, threads: int | None) -> NDArray[np.int32] | None:
        """None where there is no engine, or something about the input is to be converted or explained."""
        if self._engine is None:
            return None
        if self._sees:
            alone = mask is None and types is None
            scores = self._engine.run_images(ids, threads) if alone else None
        else:
            scores = self._engine.run_ids(ids, mask, types, threads)
        found: NDArray[np.int32] | None = scores
        return found

    def _checked(
        self, input_ids: Any, attention_mask: Any, token_type_ids: Any
    ) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
        """Ids or images, lengths and types; what the model cannot take is explained."""
        embed = self.program.embed
        if isinstance(embed, EmbedPatches):
            images = self._images(input_ids, embed.params.image, attention_mask, token_type_ids)
            lengths = np.full(len(images), embed.params.tokens, np.int64)
            return images, lengths, np.zeros((0, 0), np.int64)
        tokens = self._ids("input_ids", input_ids, len(embed.params.words))
        lengths = self._lengths(attention_mask, tokens.shape)
        given = np.zeros(tokens.shape, np.int64) if token_type_ids is None else token_type_ids
        types = self._ids("token_type_ids", given, len(embed.params.types))
        if types.shape != tokens.shape:
            raise ShapeError(
                f"token_type_ids of shape {tokens.shape}", str(types.shape), "One type per token."
            )
        return tokens, lengths, types

    def _images(self, given: Any, shape: tuple[int, int, int], *unused: Any) -> NDArray[Any]:
        images = np.asarray(given)
        if images.dtype != np.uint8:
            raise DtypeError(
                "images of uint8, 0 to 255",
                f"dtype {images.dtype}",
                "Resize alone: the program normalises the pixels itself.",
            )
        images = images[None] if images.ndim == 3 else images
        if images.shape[1:] != shape:
            raise ShapeError(
                f"images of shape [batch, {', '.join(map(str, shape))}]", str(images.shape), "Resize them."
            )
        if any(argument is not None for argument in unused):
            raise MaskError("images alone", "a mask or token types", "An image has no padding.")
        return np.ascontiguousarray(images)

    def _ids(self, name: str, given: Any, count: int) -> NDArray[np.int64]:
        ids = np.asarray(given)
        if ids.dtype.kind not in "iu":
            raise DtypeError(f"{name} to be integers", f"dtype {ids.dtype}", "Tokenise the text first.")
        ids = np.atleast_2d(ids)
        if ids.ndim != 2 or ids.shape[1] < 1:
            raise ShapeError(
                f"{name} of shape [batch, n]", str(ids.shape), "Pad the sequences to one length."
            )
        if ids.shape[1] > self.program.longest:
            raise ShapeError(
                f"at most {self.program.longest} tokens",
                str(ids.shape[1]),
                "Truncate, or lower the model for more.",
            )
        if ids.size and (ids.min() < 0 or ids.max() >= count):
            raise DataError(
                f"{name} from 0 to {count - 1}",
                f"{ids.min()} to {ids.max()}",
                "Is this the model's own tokenizer?",
            )
        return ids.astype(np.int64, order="C")

    def _lengths(self, mask: Any, shape: tuple[int, ...]) -> NDArray[np.int64]:
        if mask is None:
            return np.full(shape[0], shape[1], np.int64)
        array = np.atleast_2d(np.asarray(mask))
        if array.shape != shape or array.dtype.kind not in "biu" or ((array != 0) & (array != 1)).any():
            raise MaskError(
                f"an attention_mask of 0 and 1, shape {shape}", f"{array.dtype} {array.shape}", "1 = token."
            )
        lengths: NDArray[np.int64] = (array != 0).sum(1)
        if (np.arange(shape[1]) < lengths[:, None]).astype(bool).tolist() != (array != 0).tolist():
            raise MaskError(
                "masks that begin with all their ones",
                "a mask with holes, or padding on the left",
                "Pad on the right.",
            )
        if (lengths == 0).any():
            raise MaskError("at least one token in every row", "an empty row", "Leave empty sequences out.")
        return lengths

    def __reduce__(self) -> tuple[type[IntegerModel], tuple[Program]]:
        return type(self), (self.program,)  # the engine is built anew

    def __repr__(self) -> str:
        return describe(self.program)

    def _repr_html_(self) -> str:
        return as_html(self.program)
