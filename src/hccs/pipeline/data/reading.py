"""Tables of examples from CSV, TSV and JSON-lines files, and texts from those and from plain text."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from hccs.errors import DataError, FileError


def read_table(
    path: Path, columns: Sequence[str], *, if_missing: str, if_other_columns: str
) -> list[dict[str, str]]:
    """The rows of a file in UTF-8, with or without a byte-order mark; empty cells are empty strings.

    It must have the columns. What to do about a missing file or column depends on where its name came from,
    so the caller says it.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = _rows(file, path.suffix)
    except OSError as error:
        raise FileError(f"the data file {path}", error.strerror or str(error), if_missing) from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} to be text in UTF-8", _encoding(path), _SAVE_AS) from error
    except (ValueError, csv.Error, AttributeError) as error:
        raise FileError(f"{path} to be CSV, TSV or JSON lines", str(error), "Check the file.") from error
    if not rows:
        raise DataError(
            f"examples in {path}", "an empty file", "It needs a header line and at least one row."
        )
    missing = [column for column in columns if column not in rows[0]]
    if missing:
        raise DataError(
            f"columns {', '.join(columns)} in {path}",
            f"no {', '.join(missing)} among {', '.join(map(str, rows[0]))}",
            if_other_columns,
        )
    return rows


def read_texts(path: Path, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """The texts of a file without labels: columns of CSV, TSV or JSON lines, or the lines of a .txt file.

    Where there are two columns, a line of plain text has a tab between the two. Empty lines do not count.
    """
    where = "Check --unlabelled."
    if path.suffix != ".txt":
        other = "Name the columns of text with --text."
        rows = read_table(path, columns, if_missing=where, if_other_columns=other)
        return [tuple(row[column] for column in columns) for row in rows]
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as error:
        raise FileError(f"the data file {path}", error.strerror or str(error), where) from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} to be text in UTF-8", _encoding(path), _SAVE_AS) from error
    split = [(n, line.split("\t") if len(columns) > 1 else [line]) for n, line in enumerate(lines, 1)]
    found = [(n, tuple(parts)) for n, parts in split if any(part.strip() for part in parts)]
    for number, parts in found:
        if len(parts) != len(columns):
            raise DataError(
                f"{len(columns)} texts with tabs between them in every line of {path}",
                f"{len(parts)} in line {number}",
                "Or give a table with named columns.",
            )
    if not found:
        raise DataError(f"texts in {path}", "an empty file", "It needs at least one line.")
    return [parts for _, parts in found]


_SAVE_AS = "Save it as UTF-8 and try again."


def _rows(file: IO[str], suffix: str) -> list[dict[str, str]]:
    if suffix in (".jsonl", ".json"):
        return [{k: _cell(v) for k, v in json.loads(line).items()} for line in file if line.strip()]
    # Plain tab-separated text: quotes are characters like any other.
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if suffix == ".tsv" else {}
    return list(csv.DictReader(file, restval="", **options))


def _cell(value: Any) -> str:
    """A JSON value as the cell of a table; a list of words or labels as they stand in one, between blanks."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def _encoding(path: Path) -> str:
    """In words, what a file that is not UTF-8 looks like."""
    content = path.read_bytes()
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return 'UTF-16, which spreadsheets save as "Unicode text"'
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            return (
                f"byte 0x{line[error.start]:02x} in line {number}, "
                "as in files saved as Latin-1 or Windows-1252"
            )
    return "bytes that are not"  # a file that changed while it was read
