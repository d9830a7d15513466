"""`project.json`: what an exported folder is, for `hccs aie build` and for people."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hccs._files.folder import Manifest
from hccs.errors import FileError, HccsError
from hccs.numbers.heads import NAMES, ONE_LINE, HeadParams
from hccs_aie.export.project import Project, Target

NAME = "project.json"
_FORMAT = "hccs.aie.project"
_VERSION = 1
_NUMBERS = ("layer", "columns", "rows", "tiles")


@dataclass(frozen=True)
class ProjectFile:
    """A project and the tool flow it was written for, as they stand in an export's `project.json`."""

    target: Target
    project: Project

    def text(self) -> str:
        """The file's content: numbers by name, and (B, S, D) of each head."""
        content = {"format": _FORMAT, "version": _VERSION, "target": self.target.value}
        content |= {"mode": self.project.mode.value}
        content |= {name: getattr(self.project, name) for name in _NUMBERS}
        lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()]
        heads = ",\n    ".join(map(json.dumps, self.project.theta.packed.tolist()))
        return "{\n" + ",\n".join([*lines, f'  "theta": [\n    {heads}\n  ]']) + "\n}\n"

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> ProjectFile:
        """Read an exported folder's file; refuses folders that are no export, or one that was interrupted."""
        root = Path(folder)
        path = root / NAME
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise FileError(
                f"{root} to be a folder that hccs aie export wrote",
                f"no readable {NAME} in it ({error.strerror})",
                "Run hccs aie export.",
            ) from error
        except (ValueError, RecursionError) as error:
            raise _damaged(path, str(error)) from error
        found = content if isinstance(content, dict) else {}
        if (found.get("format"), found.get("version")) != (_FORMAT, _VERSION):
            raise FileError(
                f"{path} to be of format {_FORMAT}, version {_VERSION}",
                f"{found.get('format')!r}, version {found.get('version')!r}",
                "Export anew with this version of hccs.",
            )
        manifest = Manifest.load(root)
        if manifest is not None and not manifest.complete:
            raise FileError(f"{root} to be complete", "an export that was stopped", "Export it again.")
        try:
            return _parsed(found)
        except (HccsError, KeyError, TypeError, ValueError) as error:
            raise _damaged(path, repr(error) if isinstance(error, KeyError) else str(error)) from error


def _parsed(found: dict[str, Any]) -> ProjectFile:
    rows = found["theta"]
    widths = {len(row) if isinstance(row, list) else 0 for row in rows} if isinstance(rows, list) else set()
    if rows != [] and (len(widths) != 1 or not widths <= {ONE_LINE, len(NAMES)}):
        raise ValueError("theta that is not a list of B, S, D, or of these and S2, D2, f")
    width = widths.pop() if widths else ONE_LINE
    theta = HeadParams(*([row[i] for row in rows] for i in range(width)), wide=width > ONE_LINE)
    project = Project(theta, found["mode"], **{name: found[name] for name in _NUMBERS})
    return ProjectFile(Target(found["target"]), project)


def _damaged(path: Path, got: str) -> FileError:
    return FileError(f"{path} to be as hccs aie export wrote it", got, "Export it again.")
