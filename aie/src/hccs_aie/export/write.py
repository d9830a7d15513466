"""Writes a project folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs._files import folder as _folder
from hccs_aie.export import aie4ml_model
from hccs_aie.export.project import (
    PROJECT_FILE,
    Project,
    ProjectFile,
    Target,
    emulation_sources,
    kernel_sources,
    parameter_header,
    vectors,
)

TILES_PER_COLUMN = 4
"""A memory tile has six DMA channels each way: four tiles' shares fit, and one to and from outside."""

PLIO_BYTES = 8
"""A 64-bit PLIO file has as many numbers per line as fit eight bytes."""

PRODUCTS = {
    Target.VITIS: ("libadf.a", "Work", "aiesimulator_output", "host_check"),
    Target.IRON: ("hccs_tile.o", "hccs.mlir", "hccs.mlir.prj", "hccs.xclbin", "insts.bin", "host_check"),
    Target.AIE4ML: ("project",),
}
"""What a project's own Makefile or script leaves in the folder."""


def plio_text(values: NDArray[Any]) -> str:
    """Numbers as a 64-bit PLIO reads them: eight bytes a line.

    >>> plio_text(np.arange(8, dtype=np.int16))
    '0 1 2 3\\n4 5 6 7\\n'
    """
    per_line = PLIO_BYTES // values.dtype.itemsize
    lines = values.reshape(-1, per_line).tolist()
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)


def plio_files(x: NDArray[np.int8], expected: NDArray[Any]) -> dict[str, str]:
    files = {f"data/in{tile}.txt": plio_text(values) for tile, values in enumerate(x)}
    files |= {f"data/expected{tile}.txt": plio_text(values) for tile, values in enumerate(expected)}
    return files


def _templates(name: str, facts: Mapping[str, object]) -> dict[str, str]:
    """The files of a template folder, each @name@ replaced by its fact."""
    found: dict[str, str] = {}

    def visit(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                visit(entry, f"{prefix}{entry.name}/")
            else:
                text = entry.read_text(encoding="utf-8")
                for fact, value in facts.items():
                    text = text.replace(f"@{fact}@", str(value))
                found[prefix + entry.name.removesuffix(".in")] = text

    visit(resources.files("hccs_aie.export") / "templates" / name, "")
    return found


def _contents(project: Project, target: Target) -> dict[str, str | bytes]:
    x, expected = vectors(project)
    facts = {
        "layer": project.layer,
        "heads": project.heads,
        "rows": project.rows,
        "columns": project.columns,
        "tiles": project.tiles,
        "rows_per_tile": project.rows_per_tile,
        "mode": project.mode.value,
        "target": target.value,
        "output": project.output_type,
        "tiles_per_column": TILES_PER_COLUMN,
    }
    made: dict[str, str | bytes] = {
        PROJECT_FILE: ProjectFile(target, project).text(),
        "vectors/logits.bin": x.tobytes(),
        "vectors/probabilities.bin": expected.tobytes(),
        **_templates(target.value, facts),
    }
    if target is Target.AIE4ML:
        return {**made, **aie4ml_model.files(project)}
    made["src/hccs_parameters.hpp"] = parameter_header(project)
    made.update({f"src/{name}": text for name, text in kernel_sources().items()})
    made.update({f"host/include/{path}": text for path, text in emulation_sources().items()})
    made.update(_templates("common", facts))
    if target is Target.VITIS:
        made.update(plio_files(x, expected))
    return made


def export(project: Project, target: Target | str, out: str | os.PathLike[str]) -> Path:
    """Write the project folder `out`.

    Only an export's own files are written or replaced; a folder that holds anything else is refused.
    """
    target = Target(target)
    _folder.require_free(out, products=PRODUCTS[target])
    contents = _contents(project, target)
    return _folder.replace(out, contents, products=PRODUCTS[target])
