"""Sentences from a file, one per line: token ids, or text that the model's own tokenizer reads."""

from __future__ import annotations

from pathlib import Path

from hccs.conversion.predict import TextReader
from hccs.errors import DataError
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
    if all(part.isdecimal() for line in lines for part in line.split()):
        return [[int(part) for part in line.split()][: program.longest] for line in lines]
    read = TextReader(program, model if model.is_dir() else model.parent)
    return [list(read(line).ids) for line in lines]
