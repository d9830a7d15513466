"""Tables of examples from files and from saved folders of `datasets`; texts also from plain text."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from hccs._extras import require
from hccs.errors import DataError, FileError


def read_table(
    path: Path, columns: Sequence[str], *, if_missing: str, if_other_columns: str
) -> list[dict[str, str]]:
    """The rows of a file in UTF-8, with or without a byte-order mark; empty cells are empty strings.

    It must have the columns. What to do about a missing file or column depends on where its name came from,
    so the caller says it.
    """
    try:
        if path.suffix == ".parquet" or is_saved_dataset(path):
            rows = _columnar(path)
        else:
            with open(path, encoding="utf-8-sig", newline="") as file:
                rows = _rows(file, path.suffix)
    except OSError as error:
        raise FileError(f"the data file {path}", error.strerror or str(error), if_missing) from error
    except UnicodeDecodeError as error:
        raise FileError(f"{path} to be text in UTF-8", _encoding(path), _SAVE_AS) from error
    except (ValueError, csv.Error, AttributeError) as error:
        raise FileError(
            f"{path} to be CSV, TSV, JSON lines or Parquet", str(error), "Check the file."
        ) from error
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
    for row in rows:  # of JSON lines, which need not be alike
        for column in columns:
            row.setdefault(column, "")
    return rows


def is_saved_dataset(path: Path) -> bool:
    """Whether `datasets` has saved a table in this folder."""
    return (path / "state.json").is_file() and (path / "dataset_info.json").is_file()


def _columnar(path: Path) -> list[dict[str, str]]:
    """The rows of a Parquet file or a saved folder; numbers of named labels become their names."""
    if path.is_dir():
        datasets = require("datasets", "hf", "to read saved folders")
        try:
            saved = datasets.load_from_disk(str(path))
        except Exception as error:  # whatever a damaged folder brings up
            raise ValueError(" ".join(str(error).split())) from error
        named = {name: kind.names for name, kind in saved.features.items() if hasattr(kind, "names")}
        rows = saved.to_list()
    else:
        named, rows = {}, require("pyarrow.parquet", "hf", "to read Parquet").read_table(path).to_pylist()
    for name, names in named.items():
        for row in rows:
            row[name] = names[row[name]] if row[name] is not None and row[name] >= 0 else None
    return [{name: _cell(value) for name, value in row.items()} for row in rows]


def read_texts(path: Path, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """The texts of a file without labels: columns of CSV, TSV or JSON lines, or the lines of a .txt file.

    Where there are two columns, a line of plain text has a tab between the two. Empty lines do not count. A
    table by the name of plain text is refused: its labels would be read as words.
    """
    where = "Check --unlabelled."
    if path.suffix.lower() != ".txt":
        other = "Name the columns of text with --text, or give lines of plain text the ending .txt."
        rows = read_table(path, columns, if_missing=where, if_other_columns=other)
        return [tuple(row[column] for column in columns) for row in rows]
    try:
        lines = path.read_text("utf-8-sig").split("\n")  # other breaks may stand within a text
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
    if len(columns) == 1 and len(found) > 1 and all("\t" in text for _, (text,) in found):
        raise DataError(
            f"one text in every line of {path}",
            "tabs in all of them, as in a table",
            "Give it the ending .tsv and name the columns of text with --text; two of them make a pair.",
        )
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
