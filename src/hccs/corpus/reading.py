"""Texts of files, folders, object stores and stdin, one after the other in constant memory."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hccs._extras import require
from hccs.errors import DataError, FileError, ParameterError

KINDS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
"""Kinds of files by their suffixes."""

STDIN = "-"
MOST_BYTES = 16 << 20
"""Bytes of a line."""

GROUP_BYTES = 64 << 20
"""Files are read in groups of about this size: what one machine of many reads."""

Row = tuple[str, str, int]
"""An id, a text, and how many bytes of its file were read by then."""


@dataclass(frozen=True)
class Columns:
    """Which column or field holds the texts and which their ids; None finds the texts, and numbers them."""

    text: str | None = None
    id: str | None = None


@dataclass(frozen=True)
class Source:
    """A file, by path or URI, or stdin; its kind and its bytes."""

    name: str
    kind: str
    size: int = 0


def sources(given: Sequence[str], kind: str | None) -> list[Source]:
    """The files that paths, folders and URIs mean, in order; `kind` reads all of them as one kind."""
    if kind is not None and kind not in KINDS.values():
        raise ParameterError(
            f"a kind among {', '.join(dict.fromkeys(KINDS.values()))}", kind, "Leave it out."
        )
    found: list[Source] = []
    for name in given:
        if name == STDIN:
            found.append(Source(STDIN, kind or "text"))
        elif "://" in name:
            found += _in_store(name, kind)
        elif os.path.isdir(name):
            inside = sorted(str(path) for path in Path(name).rglob("*") if path.is_file())
            found += [_file(path, kind) for path in inside if kind or Path(path).suffix.lower() in KINDS]
        else:
            found.append(_file(name, kind))
    if not found:
        raise DataError(
            f"files that end in {', '.join(KINDS)}", f"none in {', '.join(given)}", "Name a file or a kind."
        )
    name, times = Counter(source.name for source in found).most_common(1)[0]
    if times > 1:
        raise ParameterError("every file once", f"{name} {times} times", "Name it once.")
    return found


def groups(listed: Sequence[Source]) -> list[list[Source]]:
    """Sources in order, small ones together: each group is read by one process, and has parts of its own."""
    found: list[list[Source]] = []
    size = 0
    for source in listed:
        if not found or size + source.size > GROUP_BYTES:
            found.append([])
            size = 0
        found[-1].append(source)
        size += source.size
    return found


def rows(source: Source, columns: Columns) -> Iterator[Row]:
    """Ids and texts of a source."""
    reader = {"csv": _table, "tsv": _table, "jsonl": _jsonl, "parquet": _parquet, "text": _lines_of_text}
    with _opened(source) as file:
        yield from reader[source.kind](source, columns, file)


def _file(name: str, kind: str | None) -> Source:
    found = kind or KINDS.get(Path(name).suffix.lower())
    if found is None:
        raise FileError(f"{name} to end in one of {', '.join(KINDS)}", "another name", "Say --reads KIND.")
    try:
        return Source(name, found, os.stat(name).st_size)
    except OSError as error:
        raise FileError(f"{name} to be readable", error.strerror or str(error), "Check the path.") from error


def _in_store(uri: str, kind: str | None) -> list[Source]:
    """The files at a URI that pyarrow reads: s3://, gs://, hdfs://, file://."""
    fs = require("pyarrow.fs", "corpus", "to read object stores")
    try:
        system, path = fs.FileSystem.from_uri(uri)
        info = system.get_file_info(path)
        listed = [info]
        if info.type == fs.FileType.Directory:
            listed = sorted(system.get_file_info(fs.FileSelector(path, recursive=True)), key=lambda e: e.path)
    except (OSError, ValueError, NotImplementedError) as error:
        raise FileError(
            f"{uri} to be readable", str(error), "Check the address and the permissions."
        ) from error
    start, found = uri[: len(uri) - len(path)], []
    for entry in listed:
        read = kind or KINDS.get(Path(entry.path).suffix.lower())
        if entry.type == fs.FileType.File and read is not None:
            found.append(Source(start + entry.path, read, entry.size))
    if not found:
        raise DataError(f"files that end in {', '.join(KINDS)}", f"none at {uri}", "Name a file or a kind.")
    return found


def _opened(source: Source) -> Any:
    if source.name == STDIN:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    try:
        if "://" not in source.name:
            return open(source.name, "rb")
        system, path = require("pyarrow.fs", "corpus").FileSystem.from_uri(source.name)
        return system.open_input_file(path)
    except OSError as error:
        raise FileError(f"{source.name} to be readable", str(error), "Check the path.") from error


def _lines(source: Source, file: BinaryIO, read: Callable[[int], None]) -> Iterator[str]:
    """Lines with their ends; what is no UTF-8 is refused with its line."""
    buffered: Any = file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)
    number = 0
    while line := buffered.readline(MOST_BYTES + 1):
        number += 1
        if len(line) > MOST_BYTES:
            raise DataError(
                f"lines of at most {MOST_BYTES >> 20} MiB", f"more in {source.name}:{number}", "Cut it."
            )
        read(len(line))
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"UTF-8 in {source.name}",
                f"byte 0x{line[error.start]:02x} in line {number}",
                "Convert the file, for example with iconv -t utf-8.",
            ) from None


class _Counted:
    def __init__(self) -> None:
        self.bytes = 0

    def __call__(self, more: int) -> None:
        self.bytes += more


def _lines_of_text(source: Source, columns: Columns, file: BinaryIO) -> Iterator[Row]:
    if columns.id is not None:
        raise ParameterError(f"a file with columns for --id {columns.id}", source.name, "Leave it out.")
    counted = _Counted()
    for number, line in enumerate(_lines(source, file, counted), 1):
        if text := line.strip():
            yield f"{source.name}:{number}", text, counted.bytes


def _table(source: Source, columns: Columns, file: BinaryIO) -> Iterator[Row]:
    counted = _Counted()
    tabs = source.kind == "tsv"
    options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    limit = csv.field_size_limit(MOST_BYTES)
    table = csv.reader(_lines(source, file, counted), **options)
    try:
        names = next(table, None)
        if not names:
            raise DataError(
                f"a header in {source.name}", "an empty file", "Its first line names the columns."
            )
        at = names.index(_column(source.name, columns.text, names))
        id_at = None if columns.id is None else names.index(_column(source.name, columns.id, names))
        for row in table:
            if not row:
                continue
            if len(row) != len(names):
                raise DataError(
                    f"{len(names)} columns in {source.name}:{table.line_num}", str(len(row)), "Repair it."
                )
            name = f"{source.name}:{table.line_num}" if id_at is None else row[id_at]
            yield name, row[at], counted.bytes
    except csv.Error as error:
        raise DataError(f"a table in {source.name}:{table.line_num}", str(error), "Repair it.") from error
    finally:
        csv.field_size_limit(limit)


def _jsonl(source: Source, columns: Columns, file: BinaryIO) -> Iterator[Row]:
    counted = _Counted()
    text_field: str | None = None
    for number, line in enumerate(_lines(source, file, counted), 1):
        if not line.strip():
            continue
        where = f"{source.name}:{number}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"JSON in {where}", str(error)[:80], "Repair the line.") from None
        if isinstance(entry, str) and columns == Columns():
            yield where, entry, counted.bytes
            continue
        if not isinstance(entry, dict):
            raise DataError(f"an object or a text in {where}", type(entry).__name__, "Repair the line.")
        text_field = _column(where, text_field or columns.text, list(entry))  # the first object decides
        name = where if columns.id is None else entry[_column(where, columns.id, list(entry))]
        yield _id(name, where), _text(entry[text_field], where), counted.bytes


def _parquet(source: Source, columns: Columns, file: BinaryIO) -> Iterator[Row]:
    pq = require("pyarrow.parquet", "corpus", "to read Parquet")
    arrow = require("pyarrow", "corpus")
    if source.name == STDIN:
        raise ParameterError("CSV, TSV, JSONL or text at stdin", "Parquet", "Name a file.")
    number = 0
    try:
        table = pq.ParquetFile(file)
        names = table.schema_arrow.names
        wanted = [_column(source.name, columns.text, names)]
        wanted += [] if columns.id is None else [_column(source.name, columns.id, names)]
        for batch in table.iter_batches(batch_size=1024, columns=wanted):
            texts = batch.column(wanted[0]).to_pylist()
            ids = texts if columns.id is None else batch.column(wanted[1]).to_pylist()
            for text, name in zip(texts, ids, strict=True):
                number += 1
                where = f"{source.name}:{number}"
                done = source.size * number // table.metadata.num_rows
                yield where if columns.id is None else _id(name, where), _text(text, where), done
    except (arrow.ArrowException, OSError) as error:
        raise FileError(f"a whole Parquet file {source.name}", str(error)[:120], "Write it again.") from error


def _column(where: str, wanted: str | None, names: Sequence[str]) -> str:
    """The column that was asked for; of texts, when none was, `text` or the only one there is."""
    if wanted is None:
        wanted = names[0] if len(names) == 1 else "text"
    if wanted not in names:
        raise DataError(
            f"a column {wanted!r} in {where}",
            f"columns {', '.join(map(repr, names)) or 'none'}",
            "Choose one with --column, or --id for ids.",
        )
    return wanted


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        kind = "nothing" if given is None else type(given).__name__
        raise DataError(f"a text in {where}", kind, "Leave such rows out.")
    return given


def _id(given: Any, where: str) -> str:
    if not isinstance(given, str | int) or isinstance(given, bool):
        raise DataError(f"an id in {where}: a text or an integer", repr(given)[:40], "Choose another --id.")
    return str(given)
