"""Writing a whole folder at once: it appears complete or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hccs.errors import FileError


def replace(path: str | os.PathLike[str], contents: Mapping[str, str | bytes], marker: str) -> Path:
    """Write files by relative name into the folder `path`.

    An existing folder is replaced only if it is empty or holds `marker`, a file that an earlier export wrote,
    and only once the new one is complete.
    """
    folder = Path(path)
    ours = folder.is_dir() and ((folder / marker).exists() or not any(folder.iterdir()))
    if folder.exists() and not ours:
        raise FileError(
            f"{folder} to be new, empty, or an earlier export", "something else", "Choose another --out."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        fresh = Path(scratch) / "project"
        for name, content in contents.items():
            file = fresh / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(fresh, folder)
    return folder
