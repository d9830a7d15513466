"""`hccs predict RUN TEXT...`: a run's integer model answers texts, with NumPy and `tokenizers` alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.errors import DataError, FileError
from hccs.program import IntegerModel
from hccs.program.files import IN_RUN
from hccs.text.reading import Reader

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Answer:
    """The label of a text, or of one of its words, and its probability; a regression has a value alone."""

    text: str
    label: str
    score: float


def predict(run: str | Path, texts: Sequence[str]) -> list[list[Answer]]:
    """The answers of a run's integer model: one for each text, or one for each word of a text.

    A tab separates the two texts of a pair, where the run was converted on pairs.
    """
    file, folder = _files(Path(run))
    model = IntegerModel.load(file)
    if model.program.embed.image is not None:
        raise DataError("a model of texts", "a model of images", "Call hccs.IntegerModel on pixels.")
    pairs, words = _reads_pairs(folder), model.program.per_token
    given = [_parts(text, pairs, words) for text in texts]
    encodings = Reader(model.program, model.program.longest).read(given, words=words)
    found = []
    for text, encoded in zip(texts, encodings, strict=True):
        types = [encoded.type_ids] if any(encoded.type_ids) else None
        logits = model([encoded.ids], None, types).logits[0]
        if words:
            found.append(_of_words(text.split(), encoded.word_ids, logits, model.labels))
        else:
            found.append([_answer(text, logits, model.labels)])
    return found


def _files(run: Path) -> tuple[Path, Path]:
    """The integer model's file and the folder that it lies in."""
    file = run / IN_RUN if run.is_dir() else run
    if not file.is_file():
        raise FileError(
            f"{run} to hold an integer model",
            f"no {IN_RUN} in it" if run.is_dir() else "no such file",
            "Name a run that hccs convert has finished with --integer whole, or its model.hccs.",
        )
    return file, file.parent


def _reads_pairs(folder: Path) -> bool:
    """Whether the settings beside a model name two columns of text."""
    try:
        return len(json.loads((folder / "settings.json").read_bytes())["task"]["text"]) == 2
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _answer(text: str, logits: NDArray[Any], labels: Sequence[str]) -> Answer:
    if len(labels) == 1:
        return Answer(text, labels[0], float(logits[0]))
    powers = np.exp(logits.astype(np.float64) - logits.max())
    best = int(logits.argmax())
    return Answer(text, labels[best], float(powers[best] / powers.sum()))


def _of_words(
    words: Sequence[str], places: Sequence[int | None], logits: NDArray[Any], labels: Sequence[str]
) -> list[Answer]:
    """The first token of a word answers for it; words beyond the longest sequence have no answer."""
    first: dict[int, int] = {}
    for place, word in enumerate(places):
        if word is not None:
            first.setdefault(word, place)
    return [_answer(words[word], logits[place], labels) for word, place in first.items()]


def _parts(text: str, pair: bool, words: bool) -> Any:
    """What the tokenizer reads: a text, the two texts around a tab, or the words between blanks."""
    if words:
        return text.split()
    first, tab, second = text.partition("\t")
    if not pair:
        return text
    if not tab:
        raise DataError("two texts with a tab between them", repr(text), "The run was converted on pairs.")
    return first, second
