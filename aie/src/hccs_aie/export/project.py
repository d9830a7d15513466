"""What every export shares: rows of each tile, parameters, `project.json`, kernel sources, test vectors."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hccs._files.folder import Manifest
from hccs.errors import FileError, HccsError, ParameterError, ShapeError
from hccs.numbers.heads import NAMES, ONE_LINE, HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.table import ParamTable
from hccs.reference.softmax import softmax as reference_softmax
from hccs_aie.arguments import Choice, integer
from hccs_aie.emulator import LANES, MAX_COLUMNS, require_theta, rows_multiple, takes_columns
from hccs_aie.throughput import TILES

TILE_MEMORY = 65536
RESERVED_MEMORY = 10240
"""Stack, scratch arrays and constants of the kernel."""

SECOND_LEVELS = 4608
"""What the clamp levels of a second line take besides."""

MAX_TILES = max(max(tiles) for tiles in TILES.values())


PROJECT_FILE = "project.json"
_FORMAT = "hccs.aie.project"
_VERSION = 1
_NUMBERS = ("layer", "columns", "rows", "tiles")


class Target(Choice):
    """The tool flow a project is written for."""

    VITIS = "vitis"
    IRON = "iron"
    AIE4ML = "aie4ml"


@dataclass(frozen=True)
class Project:
    """One layer's softmax on an array of tiles: heads * rows rows of `columns` logits, dealt out in order.

    Refuses what no tile could run: rows that do not come in whole batches, shares that do not fit a tile.
    """

    theta: HeadParams
    mode: Mode
    layer: int
    columns: int
    rows: int
    tiles: int

    kernel: ClassVar[str] = "softmax"
    sources: ClassVar[tuple[str, ...]] = (
        "hints.hpp", "hccs_softmax.hpp", "hccs_reciprocals.hpp", "hccs_normalise.hpp", "hccs_tile.hpp",
    )  # fmt: skip
    vector_names: ClassVar[tuple[str, str]] = ("logits", "probabilities")

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", Mode(self.mode))
        for name in ("layer", "columns", "rows", "tiles"):
            object.__setattr__(self, name, integer(name, getattr(self, name)))
        if self.layer < 0:
            raise ParameterError("a layer from 0 on", str(self.layer), "Layers count from 0.")
        if len(self.theta.shape) != 1:
            raise ShapeError("theta of one layer, [heads]", f"shape {self.theta.shape}", "Name the layer.")
        fitting = fitting_tiles(self.theta, self.mode, self.columns, self.rows)
        if self.tiles not in fitting:
            raise ParameterError(
                f"a number of tiles that divides {self.heads * self.rows} rows into fitting shares of "
                f"{rows_multiple(self.columns)}s",
                str(self.tiles),
                f"These do: {', '.join(map(str, fitting))}.",
            )

    @property
    def heads(self) -> int:
        return self.theta.shape[0]

    @property
    def rows_per_tile(self) -> int:
        return self.heads * self.rows // self.tiles

    @property
    def output_type(self) -> str:
        return "uint8" if self.mode.is_u8 else "int16"

    @property
    def step(self) -> int:
        return self.rows_per_tile

    @property
    def in_elements(self) -> int:
        return self.rows_per_tile * self.columns

    out_elements = in_elements

    @property
    def description(self) -> str:
        return self.mode.value

    @property
    def vector_text(self) -> str:
        shape = f"[{self.tiles}, {self.rows_per_tile}, {self.columns}]"
        return (
            f"`vectors/logits.bin` is int8 {shape}, `vectors/probabilities.bin` {self.output_type}\n"
            "of the same shape: what `hccs.reference` returns for it, bit for bit."
        )

    def text(self, target: str) -> str:
        """`project.json`."""
        return ProjectFile(Target(target), self).text()

    def vectors(self) -> tuple[NDArray[np.int8], NDArray[Any]]:
        return vectors(self)

    def parameter_header(self) -> str:
        return parameter_header(self)


def fitting_tiles(theta: HeadParams, mode: Mode, columns: int, rows: int) -> list[int]:
    """The numbers of tiles that a layer's rows can be dealt out to; never empty.

    Every tile gets whole batches of rows, and memory for its share twice: one filled, one worked on.
    """
    if not takes_columns(columns):
        longer = min(max(-(-columns // LANES), 1) * LANES, MAX_COLUMNS)
        raise ShapeError(
            f"a multiple of {LANES} columns, up to {MAX_COLUMNS}",
            f"{columns} columns",
            f"Exported kernels take full rows: calibrate for n = {longer}, or name fewer columns.",
        )
    batch = rows_multiple(columns)
    if rows < batch or rows % batch:
        raise ShapeError(
            f"rows per head in multiples of {batch} at {columns} columns",
            str(rows),
            "Pad the queries; extra rows cost little.",
        )
    require_theta(theta, columns)
    batches = theta.shape[0] * rows // batch
    memory = 2 * batch * columns * (1 + mode.dtype.itemsize)
    most = (TILE_MEMORY - RESERVED_MEMORY - (SECOND_LEVELS if theta.wide else 0)) // memory
    fitting = [n for n in range(1, min(batches, MAX_TILES) + 1) if batches % n == 0 and batches // n <= most]
    if not fitting:
        raise ParameterError(
            f"rows that at most {MAX_TILES} tiles can share, {most * batch} a tile",
            f"{theta.shape[0]} heads of {rows} rows",
            "Ask for fewer rows; a larger batch runs the same tiles again.",
        )
    return fitting


def plan(
    table: ParamTable,
    layer: int = 0,
    rows: int = 64,
    columns: int | None = None,
    tiles: int | None = None,
    mode: Mode | str | None = None,
) -> Project:
    """Deal a layer's rows out to tiles; without `tiles`, to the fewest whose memory holds their share."""
    layers, _ = table.shape
    layer, rows = integer("layer", layer), integer("rows", rows)
    if not 0 <= layer < layers:
        raise ParameterError(f"a layer from 0 to {layers - 1}", str(layer), "Layers count from 0.")
    columns = table.n if columns is None else integer("columns", columns)
    theta = table.layer(layer)
    mode = table.mode if mode is None else Mode(mode)
    if tiles is None:
        tiles = fitting_tiles(theta, mode, columns, rows)[0]
    return Project(theta, mode, layer, columns, rows, tiles)


def parameter_header(project: Project) -> str:
    """`hccs_parameters.hpp`: the layer as compile-time constants."""
    wide = project.theta.wide
    heads = (theta[: 5 if wide else 3] for theta in project.theta.packed.tolist())
    rows = ",\n        ".join(f"{{{', '.join(map(str, theta))}}}" for theta in heads)
    return f"""// Head parameters of layer {project.layer}, written by `hccs aie export`.
#pragma once

#include "hccs_tile.hpp"

namespace hccs {{

struct layer {{
    using theta = {"two_lines" if wide else "head"};
    using result = {project.output_type};
    static constexpr mode selected = mode::{project.mode.value};
    static constexpr unsigned columns = {project.columns};
    static constexpr unsigned rows_per_head = {project.rows};
    static constexpr unsigned heads = {project.heads};
    static constexpr unsigned tiles = {project.tiles};
    static constexpr unsigned rows_per_tile = {project.rows_per_tile}, step = rows_per_tile;
    static constexpr unsigned in_elements = rows_per_tile * columns, out_elements = in_elements;
    // {"B, S, D, S2, D2" if wide else "B, S, D"} of each head.
    static constexpr theta thetas[heads] = {{
        {rows}}};
}};

using tile_scratch = scratch_of<layer::theta>;
inline void run_tile(const int8 *in, layer::result *out, unsigned first, tile_scratch &s) {{
    softmax_tile<layer>(in, out, first, layer::rows_per_tile, s);
}}

}}  // namespace hccs
"""


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
        path = root / PROJECT_FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise FileError(
                f"{root} to be a folder that hccs aie export wrote",
                f"no readable {PROJECT_FILE} in it ({error.strerror})",
                "Run hccs aie export.",
            ) from error
        except (ValueError, RecursionError) as error:
            raise _damaged(path, str(error)) from error
        found = content if isinstance(content, dict) else {}
        if (found.get("format"), found.get("version")) != (_FORMAT, _VERSION):
            raise FileError(
                f"{path} to be of format {_FORMAT}, version {_VERSION}",
                f"{found.get('format')!r}, version {found.get('version')!r}",
                "Export it again with this version of hccs.",
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


def kernel_sources(names: tuple[str, ...] = Project.sources) -> dict[str, str]:
    """Kernel headers by name, as they ship in the package."""
    folder = resources.files("hccs_aie") / "kernels"
    return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in names}


def emulation_sources() -> dict[str, str]:
    """The host emulation of the AIE API by path: it checks an exported kernel without any tools."""
    folder = resources.files("hccs_aie") / "emulation" / "include" / "aie_api"
    return {f"aie_api/{entry.name}": entry.read_text(encoding="utf-8") for entry in folder.iterdir()}


def vectors(project: Project, seed: int = 0) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Logits [tiles, rows_per_tile, columns] and the reference's probabilities for them.

    Rows come in four kinds: wide, narrow, constant and saturated at both ends.
    """
    rng = np.random.default_rng(seed)
    shape = (project.heads, project.rows, project.columns)
    x = rng.integers(-128, 128, shape).astype(np.int8)
    x[:, 1::4] = np.clip(np.round(rng.normal(0, 12, x[:, 1::4].shape)), -128, 127)
    x[:, 2::4] = x[:, 2::4, :1]
    x[:, 3::4] = np.where(rng.random(x[:, 3::4].shape) < 0.5, -128, 127)
    expected = reference_softmax(x, project.theta, project.mode)
    share = (project.tiles, project.rows_per_tile, project.columns)
    return x.reshape(share), expected.reshape(share)
