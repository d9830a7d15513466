"""Sentences from a file, one per line: token ids, or text that the model's own tokenizer reads."""

from __future__ import annotations

from pathlib import Path

from hccs.cli.boundary import require_models
from hccs.errors import DataError, FileError
from hccs.program import Program


def read_sentences(file: Path, program: Program, model: Path) -> list[list[int]]:
    """Token ids of every line, at most `program.longest` of each.

    A file of whole numbers alone holds ids, special ones among them. Any other is text: its tokenizer lies
    where the program says, beside the file or in the run `model`.
    """
    if program.embed.image is not None:
        raise DataError("a model of texts for --sentences", "one of images", "Leave the option out.")
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise DataError(f"sentences in {file}", "none", "Write one per line.")
    if all(word.isdecimal() for line in lines for word in line.split()):
        return [[int(word) for word in line.split()][: program.longest] for line in lines]
    folder = (model if model.is_dir() else model.parent) / program.tokenizer
    if not program.tokenizer or not folder.is_dir():
        raise FileError(
            f"the tokenizer that reads the text in {file}",
            f"none at {folder}" if program.tokenizer else "a model that names none",
            "Give token ids instead, one sentence a line.",
        )
    require_models()
    from hccs.conversion.models import load_tokenizer

    read = load_tokenizer(str(folder))
    ids: list[list[int]] = read(lines, truncation=True, max_length=program.longest)["input_ids"]
    return ids
