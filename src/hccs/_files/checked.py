"""Files of our own: safetensors that name their format and version and hold a checksum of everything else."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs._files import safetensors
from hccs.errors import FileError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CHECKSUM = "sha256"


@dataclass(frozen=True)
class Format:
    """A kind of file: the version that is written, and what older versions' checksums cover.

    Versions up to `last_unchecked` have none, up to `last_arrays_only` one of the arrays alone; all later
    ones cover the metadata too.
    """

    name: str
    version: int
    last_unchecked: int = 0
    last_arrays_only: int = 0

    def save(
        self,
        path: str | os.PathLike[str],
        arrays: Mapping[str, NDArray[Any]],
        metadata: Mapping[str, str],
        version: int | None = None,
    ) -> None:
        """Write a file of the newest version, or of an older one that can hold it.

        It replaces an old file only once it is complete.
        """
        described = {"format": self.name, "version": str(version or self.version), **metadata}
        safetensors.write(path, arrays, {**described, _CHECKSUM: _digest(arrays, described)})

    def load(
        self, path: str | os.PathLike[str], *, mapped: bool = True
    ) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
        """Arrays and metadata of an intact file of this or an older version; any other is refused.

        The arrays are views of the mapped file, or of a copy of it in memory.
        """
        arrays, metadata = safetensors.read(path, mapped=mapped)
        known = {str(version): version for version in range(1, self.version + 1)}
        version = known.get(metadata.get("version", ""))
        if metadata.get("format") != self.name or version is None:
            raise FileError(
                f"{path} to be an {self.name} file of version {' or '.join(known)}",
                f"{metadata.get('format', 'no format')} version {metadata.get('version', 'none')}"
                f" with arrays {sorted(arrays)}",
                "Save it anew with this version of hccs, or install the version that wrote it.",
            )
        recorded = metadata.pop(_CHECKSUM, None)
        covered = {} if version <= self.last_arrays_only else metadata
        expected = None if version <= self.last_unchecked else _digest(arrays, covered)
        if recorded != expected:
            raise FileError(
                f"{path} to be intact", "contents that do not match their checksum", "Copy it again."
            )
        return arrays, metadata


def _digest(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    if metadata:
        digest.update(json.dumps(metadata, sort_keys=True).encode())
    return digest.hexdigest()
