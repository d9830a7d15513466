"""Files of our own: safetensors that name their format and version and hold a checksum of everything else."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs._files import safetensors
from hccs.errors import FileError

_CHECKSUM = "sha256"


@dataclass(frozen=True)
class Format:
    """A kind of file, and the one version of it that is written and read."""

    name: str
    version: int

    def save(
        self, path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
    ) -> None:
        """Write a file, which replaces an old one only once it is complete."""
        described = {"format": self.name, "version": str(self.version), **metadata}
        safetensors.write(path, arrays, {**described, _CHECKSUM: _digest(arrays, described)})

    def load(
        self, path: str | os.PathLike[str], *, mapped: bool = True
    ) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
        """Arrays and metadata of an intact file of this version; any other is refused.

        The arrays are views of the mapped file, or of a copy of it in memory.
        """
        arrays, metadata = safetensors.read(path, mapped=mapped)
        if (metadata.get("format"), metadata.get("version")) != (self.name, str(self.version)):
            raise FileError(
                f"{path} to be an {self.name} file of version {self.version}",
                f"{metadata.get('format', 'no format')} version {metadata.get('version', 'none')}"
                f" with arrays {sorted(arrays)}",
                "Make it again with this version of hccs, or install the version that wrote it.",
            )
        if metadata.pop(_CHECKSUM, None) != _digest(arrays, metadata):
            raise FileError(
                f"{path} to be intact", "contents that do not match their checksum", "Copy it again."
            )
        return arrays, metadata


def _digest(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    digest.update(json.dumps(metadata, sort_keys=True).encode())
    return digest.hexdigest()
