"""Writes a project folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from hccs._files import folder as _folder
from hccs_aie.export import aie4ml_model, vitis
from hccs_aie.export.project import (
    Project,
    Target,
    emulation_sources,
    kernel_sources,
    parameter_header,
    vectors,
)
from hccs_aie.export.project_file import NAME, ProjectFile

TILES_PER_COLUMN = 4
"""A memory tile has six DMA channels each way: four tiles' shares fit, and one to and from outside."""


PRODUCTS = {
    Target.VITIS: ("libadf.a", "Work", "aiesimulator_output", "host_check"),
    Target.IRON: ("hccs_tile.o", "hccs.mlir", "hccs.mlir.prj", "hccs.xclbin", "insts.bin", "host_check"),
    Target.AIE4ML: ("project",),
}
"""What a project's own Makefile or script leaves in the folder."""


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
        NAME: ProjectFile(target, project).text(),
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
        made.update(vitis.data_files(x, expected))
    return made


def export(project: Project, target: Target | str, out: str | os.PathLike[str]) -> Path:
    """Write the project folder `out`.

    Only an export's own files are written or replaced; a folder that holds anything else is refused.
    """
    target = Target(target)
    _folder.require_free(out, products=PRODUCTS[target])
    contents = _contents(project, target)
    return _folder.replace(out, contents, products=PRODUCTS[target])
