"""The folder of a corpus: what was asked for, parts that appear whole, and a summary once all are there."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._extras import require
from hccs._files.atomic import TEMPORARY, replace
from hccs.errors import DataError, FileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMATS = ("parquet", "npy")
SETTINGS, SUMMARY = "corpus.json", "summary.json"
VERSION = 1
_PART = r"part-\d{5}-\d{5}"
_VECTORS = re.compile(rf"{_PART}\.npy")
_LEFT = re.compile(rf"\.({_PART}\.\w+|{SETTINGS}|{SUMMARY})\.[0-9a-f]{{8}}{re.escape(TEMPORARY)}")
KEY = b"hccs"
"""Where a Parquet file has the facts of its part."""


@dataclass(frozen=True)
class CorpusSettings:
    """What decides every byte of a corpus beside its texts. `model` is where its file was found."""

    model: str
    fingerprint: str = ""
    dims: int = 0
    dtype: str = "int8"
    prompt: str = ""
    format: str = "parquet"
    part_rows: int = 16384
    column: str | None = None
    id: str | None = None
    inputs: str = ""
    """How many files, and a digest of their names."""


@dataclass(frozen=True)
class Part:
    """Texts that become one part: their place, their ids, and how many bytes of the input they end at."""

    name: str
    ids: list[str]
    texts: list[str]
    done: int

    def digest(self) -> str:
        """SHA-256 of ids and texts, each with its length in bytes before it."""
        found = sha256()
        for pair in zip(self.ids, self.texts, strict=True):
            for text in pair:
                data = text.encode("utf-8", "surrogatepass")
                found.update(len(data).to_bytes(8, "little") + data)
        return found.hexdigest()


@dataclass(frozen=True)
class Facts:
    """What a part says of itself."""

    rows: int
    tokens: int
    cut: int
    digest: str


class Folder:
    """A corpus on disk."""

    def __init__(self, path: Path, settings: CorpusSettings) -> None:
        self.path, self.settings = path, settings

    @classmethod
    def load(cls, path: Path) -> Folder:
        """A folder that `prepared` began."""
        try:
            content = json.loads((path / SETTINGS).read_text(encoding="utf-8"))
            version = content.pop("version")
            if version != VERSION:
                raise ValueError(f"version {version}")
            return cls(path, CorpusSettings(**content))
        except FileNotFoundError:
            raise FileError(
                f"{path} to be a folder of hccs embed", f"no {SETTINGS} in it", "Embed it."
            ) from None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileError(
                f"{path / SETTINGS} of version {VERSION}", str(error), "Embed it again."
            ) from error

    @classmethod
    @contextmanager
    def prepared(cls, path: Path, settings: CorpusSettings) -> Iterator[Folder]:
        """The folder for these settings, new or begun earlier, while no other process writes to it."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise FileError(
                f"{path} to be a folder", error.strerror or str(error), "Choose another --out."
            ) from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FileError(f"{path} to be written once at a time", "another at work", "Wait.") from None
            except OSError:
                pass  # a file system without locks
            yield cls._begun(path, settings)
        finally:
            os.close(handle)

    @classmethod
    def _begun(cls, path: Path, settings: CorpusSettings) -> Folder:
        names, left = _names_and_left(path)
        if SETTINGS in names or not names:
            _remove(left)
        if SETTINGS in names:
            begun = cls.load(path)
            if begun.names() == []:  # nothing was made with them yet
                return cls._new(path, settings)
            old, new = asdict(begun.settings), asdict(settings)
            different = [name for name in old if old[name] != new[name] and name != "model"]
            if different:
                raise FileError(
                    f"the settings that {path} was begun with",
                    ", ".join(f"{name} {new[name]!r} in place of {old[name]!r}" for name in different),
                    "Use those, or choose another --out.",
                )
            return begun
        if names:
            few = ", ".join(sorted(names)[:3])
            raise FileError(f"{path} to be new or empty", few, "Choose another --out.")
        return cls._new(path, settings)

    @classmethod
    def _new(cls, path: Path, settings: CorpusSettings) -> Folder:
        content = json.dumps({"version": VERSION, **asdict(settings)}, indent=1) + "\n"
        replace(path / SETTINGS, content.encode())
        return cls(path, settings)

    # --- parts ----------------------------------------------------------------------------------------------

    @property
    def _marker(self) -> str:
        """How the file ends that makes a part complete."""
        return ".parquet" if self.settings.format == "parquet" else ".json"

    def names(self) -> list[str]:
        """The parts that are complete, in order."""
        return sorted(entry.stem for entry in self.path.glob(f"part-*{self._marker}"))

    def facts(self, name: str) -> Facts | None:
        """What a part says of itself; None where there is none yet."""
        file = self.path / f"{name}{self._marker}"
        if not file.exists():
            return None
        try:
            if self.settings.format == "npy":
                content = json.loads(file.read_text(encoding="utf-8"))
                del content["ids"]
                return Facts(**content)
            metadata = require("pyarrow.parquet", "corpus").read_schema(file).metadata
            return Facts(**json.loads(metadata[KEY]))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise _damaged(file, error) from error

    def write(self, part: Part, units: NDArray[Any], tokens: int, cut: int) -> Facts:
        """Put a part on disk, whole or not at all; vectors have the settings' dtype."""
        if len(set(part.ids)) < len(part.ids):
            twice, _ = Counter(part.ids).most_common(1)[0]
            raise DataError(
                "ids that occur once", f"{twice[:80]!r} again in {part.name}", "Choose another --id."
            )
        facts = Facts(len(part.ids), tokens, cut, part.digest())
        if self.settings.format == "parquet":
            replace(self.path / f"{part.name}.parquet", _parquet_bytes(part, units, facts))
            return facts
        content = io.BytesIO()
        np.save(content, units)
        replace(self.path / f"{part.name}.npy", content.getvalue())
        listed = json.dumps({**asdict(facts), "ids": part.ids}, ensure_ascii=False)
        replace(self.path / f"{part.name}.json", listed.encode("utf-8", "surrogatepass"))
        return facts

    def vectors(self, name: str) -> NDArray[Any]:
        """The vectors of a part [rows, dims]; those in .npy files are mapped."""
        dims = self.settings.dims
        try:
            if self.settings.format == "npy":
                array: NDArray[Any] = np.load(self.path / f"{name}.npy", mmap_mode="r")
            else:
                values = self._column(name, "vector").combine_chunks().values
                array = values.to_numpy(zero_copy_only=False).reshape(-1, dims)
        except (OSError, ValueError, LookupError, AttributeError) as error:
            raise _damaged(self.path / name, error) from error
        if array.shape[1:] != (dims,) or array.dtype != self.settings.dtype:
            raise _damaged(self.path / name, f"{array.dtype} {array.shape}")
        return array

    def ids(self, name: str) -> list[str]:
        return self._strings(name, "id") or []

    def texts(self, name: str) -> list[str] | None:
        """The texts of a part; .npy files come without."""
        return self._strings(name, "text")

    def _strings(self, name: str, column: str) -> list[str] | None:
        try:
            if self.settings.format == "parquet":
                return list(self._column(name, column).to_pylist())
            content = json.loads((self.path / f"{name}.json").read_text(encoding="utf-8"))
            return list(content["ids"]) if column == "id" else None
        except (OSError, ValueError, LookupError) as error:
            raise _damaged(self.path / name, error) from error

    def _column(self, name: str, column: str) -> Any:
        """A column of a Parquet part; pages whose checksums are wrong are refused."""
        pq = require("pyarrow.parquet", "corpus", "to read Parquet")
        file = self.path / f"{name}.parquet"
        return pq.read_table(file, columns=[column], page_checksum_verification=True).column(column)

    # --- the end --------------------------------------------------------------------------------------------

    def finish(self, expected: list[str]) -> dict[str, Any]:
        """Write and return the summary; refuses parts of other inputs, and ids that occur in two parts."""
        _remove(_names_and_left(self.path)[1])  # of workers that were killed
        names = self.names()
        if foreign := sorted({*names} ^ {*expected}):
            raise FileError(f"the parts of these inputs in {self.path}", foreign[0], "Choose another --out.")
        if self.settings.id is not None:
            self._require_unique(names)
        every = [(name, self.facts(name)) for name in names]
        found = [(name, facts) for name, facts in every if facts is not None]
        content = {
            **asdict(self.settings),
            "rows": sum(facts.rows for _, facts in found),
            "tokens": sum(facts.tokens for _, facts in found),
            "cut": sum(facts.cut for _, facts in found),
            "parts": {name: facts.rows for name, facts in found},
            "digest": sha256("".join(facts.digest for _, facts in found).encode()).hexdigest(),
        }
        replace(self.path / SUMMARY, (json.dumps(content, indent=1) + "\n").encode())
        return content

    @property
    def complete(self) -> bool:
        return (self.path / SUMMARY).exists()

    def _require_unique(self, names: list[str]) -> None:
        """Eight bytes of memory for every id; within a part they were compared when it was written."""
        hashes = [
            np.frombuffer(b"".join(_short(text) for text in self.ids(name)), np.uint64) for name in names
        ]
        together = np.sort(np.concatenate(hashes)) if hashes else np.empty(0, np.uint64)
        twice = {*together[1:][together[1:] == together[:-1]].tolist()}
        if not twice:
            return
        seen: dict[str, str] = {}
        for name, own in zip(names, hashes, strict=True):
            for text, number in zip(self.ids(name), own.tolist(), strict=True):
                if number in twice and seen.setdefault(text, name) != name:
                    got = f"{text[:80]!r} in {seen[text]} and in {name}"
                    raise DataError("ids that occur once", got, "Choose another --id and another --out.")


def _names_and_left(path: Path) -> tuple[set[str], list[Path]]:
    """The names of a folder's files, and the files that a killed process did not finish."""
    names = {entry.name for entry in path.iterdir()}
    left = {name for name in names if _LEFT.fullmatch(name)}
    left |= {name for name in names if _VECTORS.fullmatch(name) and f"{name[:-4]}.json" not in names}
    return names - left, [path / name for name in left]


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _short(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _damaged(file: Path, error: object) -> FileError:
    return FileError(f"a whole part {file}", str(error)[:120], "Remove it and embed again: it is made anew.")


def _parquet_bytes(part: Part, units: NDArray[Any], facts: Facts) -> bytes:
    pa = require("pyarrow", "corpus", "to write Parquet")
    pq = require("pyarrow.parquet", "corpus")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(units.reshape(-1)), units.shape[1])
    table = pa.table({"id": pa.array(part.ids, pa.string()), "text": pa.array(part.texts, pa.string())})
    table = table.append_column("vector", vectors)
    table = table.replace_schema_metadata({KEY: json.dumps(asdict(facts)).encode()})
    content = io.BytesIO()
    # Parquet has no integers of one or two bytes: a dictionary stores them in as many.
    leaf = "vector.list.element"
    compression = {"id": "zstd", "text": "zstd", leaf: "none"}
    pq.write_table(
        table,
        content,
        compression=compression,
        use_dictionary=[leaf],
        write_statistics=False,
        write_page_checksum=True,
    )
    return content.getvalue()
