"""Tables of examples from files and from saved folders of `datasets`; texts also from plain text."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hccs._extras import require
from hccs.errors import DataError, FileError, HccsError

LARGEST_CELL = 2**31 - 1
"""Characters of a CSV cell; Python's own limit of 128 KiB is less than a long document has."""

Numbered = Iterator[tuple[int, dict[str, Any]]]


@dataclass(frozen=True)
class TextTable:
    """Rows with values as their source has them, and the numbers under which messages name the rows."""

    where: str
    rows: Sequence[dict[str, Any]]
    numbers: Sequence[int]

    def cells(self, column: str, *, lists: bool = True, one_kind: bool = False) -> list[str]:
        """A column as text: missing values are empty, and `lists` have blanks between their parts."""
        found, first = [], ""
        for number, row in zip(self.numbers, self.rows, strict=True):
            try:
                found.append(_text(row.get(column), lists))
                kind = _kind(row.get(column)) if one_kind and found[-1] else first
                if first and kind != first:
                    raise ValueError(f"a {kind} after a {first}")
            except ValueError as error:
                raise DataError(
                    f"text or numbers{' or lists of them' * lists} in column {column} of {self.where}",
                    f"{error} in row {number}",
                    "Correct or remove the row.",
                ) from error
            first = first or kind
        return found

    def texts(self, columns: Sequence[str]) -> list[tuple[str, ...]]:
        """The columns beside each other; one that is empty in every row is refused."""
        found = [self.cells(column) for column in columns]
        for column, cells in zip(columns, found, strict=True):
            if not any(cell.strip() for cell in cells):
                raise DataError(
                    f"text in column {column} of {self.where}",
                    f"{len(cells)} empty cells",
                    "Name another column with --text.",
                )
        return list(zip(*found, strict=True))


def _text(value: Any, lists: bool) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError("bytes that are not UTF-8") from None
    if isinstance(value, list | tuple) and lists:
        parts = [_text(part, False) for part in value]
        if not all(parts):
            raise ValueError("a list with an empty part")
        return " ".join(parts)
    if isinstance(value, list | tuple | dict):
        raise ValueError(f"a {_kind(value)}")
    text = str(value)
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("half of a surrogate pair, which is no character,")
    return text


def _kind(value: Any) -> str:
    kinds = {
        bool: "truth value",
        int: "number",
        float: "number",
        list: "list",
        tuple: "list",
        dict: "mapping",
    }
    return next((name for kind, name in kinds.items() if isinstance(value, kind)), "text")


def read_table(path: Path, columns: Sequence[str], *, if_missing: str, if_other_columns: str) -> TextTable:
    """The columns of a file in UTF-8, with or without a byte-order mark, or of a saved folder.

    What to do about a missing file or column depends on where its name came from, so the caller says it.
    """
    suffix = path.suffix.lower()
    try:
        if path.is_dir() or suffix in (".parquet", ".pq"):
            header, numbered = _columnar(path, columns)
        elif suffix in (".jsonl", ".ndjson", ".json"):
            header, numbered = _objects(read_text(path, if_missing))
        else:
            header, numbered = _separated(read_text(path, if_missing), tabs=suffix in (".tsv", ".tab"))
        missing = [column for column in columns if column not in header]
        repeated = [column for column in columns if header.count(column) > 1]
        if header and (missing or repeated):
            raise DataError(
                f"columns {', '.join(columns)} in {path}",
                f"two columns {', '.join(repeated)}"
                if repeated
                else f"no {', '.join(missing)} among {', '.join(map(str, header))}",
                "Give the columns different names." if repeated else if_other_columns,
            )
        found = list(numbered)
    except HccsError:
        raise
    except OSError as error:
        raise FileError(f"the data file {path}", error.strerror or str(error), if_missing) from error
    except ValueError as error:
        raise FileError(
            f"{path} to be CSV, TSV, JSON lines or Parquet", str(error), "Check the file."
        ) from error
    if not found:
        raise DataError(f"examples in {path}", "an empty file", "It needs at least one row.")
    return TextTable(str(path), [row for _, row in found], [number for number, _ in found])


def is_saved_dataset(path: Path) -> bool:
    """Whether `datasets` has saved a table in this folder."""
    return (path / "state.json").is_file() and (path / "dataset_info.json").is_file()


def open_saved(path: Path) -> Any:
    """The table that `datasets` has saved in a folder."""
    try:
        return require("datasets", "hf", "to read saved folders").load_from_disk(str(path))
    except HccsError:
        raise
    except Exception as error:  # whatever a damaged folder brings up
        what = " ".join(str(error).split())
        raise FileError(f"a data set that was saved in {path}", what, "Save it again.") from error


def label_names(feature: Any) -> tuple[str, ...]:
    """The names of a column of labels, or of lists of labels; none where it has no names."""
    own = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)
    return tuple(own or ())


def named(value: Any, feature: Any) -> Any:
    """A label of `datasets` by its name where it has one; what marks a missing label becomes None.

    >>> from types import SimpleNamespace
    >>> [named(label, SimpleNamespace(names=["no", "yes"])) for label in (1, -1)]
    ['yes', None]
    """
    names = label_names(feature)
    if not names or isinstance(value, str):
        return value
    if isinstance(value, list):
        return [named(part, feature) for part in value]
    return names[value] if value is not None and 0 <= value < len(names) else None


def _columnar(path: Path, columns: Sequence[str]) -> tuple[list[str], Numbered]:
    if path.is_dir():
        if not is_saved_dataset(path):
            raise IsADirectoryError(0, "a folder that `datasets` has not saved")
        saved = open_saved(path)
        return saved.column_names, _named_rows(saved, columns)
    parquet = require("pyarrow.parquet", "hf", "to read Parquet")
    try:
        file = parquet.ParquetFile(path)
        return file.schema_arrow.names, enumerate(file.read(columns=[*columns]).to_pylist(), 1)
    except (OSError, ValueError):
        raise
    except Exception as error:  # pyarrow has errors of its own for what it does not implement
        raise ValueError(str(error)) from error


def _named_rows(saved: Any, columns: Sequence[str]) -> Numbered:
    for number, row in enumerate(saved.select_columns([*columns]), 1):
        yield number, {name: named(row[name], saved.features[name]) for name in columns}


def _objects(text: str) -> tuple[list[str], Numbered]:
    """JSON lines, or one array of objects."""
    if text.lstrip().startswith("["):
        items = list(enumerate(_parsed(text, ""), 1))
    else:
        lines = enumerate(text.split("\n"), 1)
        items = [(number, _parsed(line, f" in line {number}")) for number, line in lines if line.strip()]
    for number, item in items:
        if not isinstance(item, dict):
            raise ValueError(f"a JSON {_kind(item)} instead of an object in row {number}")
    return [*items[0][1]] if items else [], iter(items)


def _parsed(text: str, place: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError(f"an object with two values of one name{place}")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg}{place or f' in line {error.lineno}'}") from error
    except RecursionError:
        raise ValueError(f"lists within lists, too deep{place}") from None


def _separated(text: str, tabs: bool) -> tuple[list[str], Numbered]:
    """Rows under a header; in tab-separated text quotes are characters like any other."""
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    reader = csv.reader(io.StringIO(text, newline=""), **options)
    limit = csv.field_size_limit(LARGEST_CELL)
    try:
        records = [(number, record) for number, record in enumerate(reader, 1) if record]
    except csv.Error as error:
        raise ValueError(f"{error} in line {reader.line_num}") from error
    finally:
        csv.field_size_limit(limit)
    header = records[0][1] if records else []
    for number, record in records:
        if any(record[len(header) :]):
            raise ValueError(
                f"{len(record)} cells in row {number} under a header of {len(header)}; are quotes missing?"
            )
    blank = [""] * len(header)
    return header, (
        (number, dict(zip(header, record + blank[len(record) :], strict=False)))
        for number, record in records[1:]
    )


def read_text(path: Path, if_missing: str) -> str:
    """A file in UTF-8, with the line breaks that it has."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return file.read()
    except OSError as error:
        raise FileError(f"the data file {path}", error.strerror or str(error), if_missing) from error
    except UnicodeDecodeError as error:
        raise FileError(
            f"{path} to be text in UTF-8", _encoding(path), "Save it as UTF-8 and try again."
        ) from error


def read_texts(path: Path, columns: Sequence[str]) -> list[tuple[str, ...]]:
    """The texts of a file without labels: columns of a table, or the lines of a .txt file.

    Where there are two columns, a line of plain text has a tab between the two. Empty lines do not count. A
    table by the name of plain text is refused: its labels would be read as words.
    """
    where = "Check --unlabelled."
    if path.suffix.lower() != ".txt":
        other = "Name the columns of text with --text, or give lines of plain text the ending .txt."
        return read_table(path, columns, if_missing=where, if_other_columns=other).texts(columns)
    # Other line breaks may stand within a text.
    lines = read_text(path, where).replace("\r\n", "\n").replace("\r", "\n").split("\n")
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


def _encoding(path: Path) -> str:
    """What a file that is not UTF-8 looks like."""
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
