"""Sentences from a file, one per line: token ids, or text that the model's own tokenizer reads."""

from __future__ import annotations

from pathlib import Path

from hccs.errors import DataError, FileError
from hccs.program import Program
from hccs.text.text_model import Reader


def read_sentences(file: Path, program: Program) -> list[list[int]]:
    """Token ids of every line, at most `program.longest` of each.

    A file of whole numbers alone holds ids, special ones among them. Any other is text, which the tokenizer
    in the program's file reads.
    """
    if program.embed.image is not None:
        raise DataError("a model of texts for --sentences", "one of images", "Leave the option out.")
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise DataError(f"sentences in {file}", "none", "Write one per line.")
    if all(part.isdecimal() for line in lines for part in line.split()):
        return [[int(part) for part in line.split()][: program.longest] for line in lines]
    if not program.tokenizer:
        raise FileError(
            f"the tokenizer that reads the text in {file}",
            "a model without one",
            "Give token ids instead, one sentence a line.",
        )
    return [encoding.ids for encoding in Reader(program, program.longest).read(lines)]
