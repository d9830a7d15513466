"""What every export shares.

Which rows go to which tile, the parameter header, the kernel sources, the test vectors.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hccs.aie.emulator import require_columns, rows_multiple
from hccs.errors import FileError, HccsError, ParameterError, ShapeError
from hccs.numbers.heads import HeadParams
from hccs.numbers.modes import Mode
from hccs.numbers.table import CONVERTED, ParamTable
from hccs.reference.softmax import softmax as reference_softmax

if TYPE_CHECKING:
    from numpy.typing import NDArray

TILE_MEMORY = 65536
RESERVED_MEMORY = 6144
"""Stack, scratch arrays and constants of the kernel."""


class Target(str, enum.Enum):
    """The tool flow a project is written for."""

    VITIS = "vitis"
    IRON = "iron"
    AIE4ML = "aie4ml"


@dataclass(frozen=True)
class Project:
    """One layer's softmax on an array of tiles: heads * rows rows of `columns` logits, dealt out in order."""

    theta: HeadParams
    mode: Mode
    layer: int
    columns: int
    rows: int
    tiles: int

    @property
    def heads(self) -> int:
        """Heads of the layer."""
        return int(self.theta.packed.shape[0])

    @property
    def rows_per_tile(self) -> int:
        """Rows of each tile's buffers."""
        return self.heads * self.rows // self.tiles

    @property
    def output_type(self) -> str:
        """The C++ type of the probabilities."""
        return "uint8" if self.mode.is_u8 else "int16"


def find_table(run: str | os.PathLike[str]) -> ParamTable:
    """The parameter table of a run: its file, the one `hccs convert` left, or the only one in a folder."""
    path = Path(run)
    converted = path / CONVERTED
    if path.is_file() or converted.is_file():
        return ParamTable.load(path if path.is_file() else converted)
    found = []
    for candidate in sorted(path.rglob("*.safetensors")) if path.is_dir() else []:
        try:
            found.append(ParamTable.load(candidate))
        except HccsError:
            continue
    if len(found) != 1:
        raise FileError(
            f"{path} to be a parameter table, or a folder that holds one",
            f"{len(found)} tables found" if path.exists() else "no such file or folder",
            "Give the path that ParamTable.save wrote.",
        )
    return found[0]


def _memory(rows: int, columns: int, mode: Mode) -> int:
    return (
        2 * rows * columns * (1 + mode.dtype.itemsize)
    )  # input and output, each twice: one filled, one worked on


def plan(
    table: ParamTable,
    layer: int = 0,
    rows: int = 64,
    columns: int | None = None,
    tiles: int | None = None,
    mode: Mode | str | None = None,
) -> Project:
    """Deal a layer's rows out to tiles; without `tiles`, to the fewest whose memory holds their share."""
    layers, heads = table.shape
    if not 0 <= layer < layers:
        raise ParameterError(f"a layer from 0 to {layers - 1}", str(layer), "Layers count from 0.")
    columns = table.n if columns is None else columns
    require_columns(columns)
    batch = rows_multiple(columns)
    if rows < batch or rows % batch:
        raise ShapeError(
            f"rows per head in multiples of {batch} at {columns} columns",
            str(rows),
            "Pad the queries; extra rows cost little.",
        )
    theta = table.layer(layer)
    theta.require_columns(columns)
    mode = Mode(mode or table.mode)
    batches = heads * rows // batch
    fitting = [
        count
        for count in range(1, batches + 1)
        if batches % count == 0
        and _memory(batches // count * batch, columns, mode) <= TILE_MEMORY - RESERVED_MEMORY
    ]
    if tiles is None:
        tiles = fitting[0]
    if tiles not in fitting:
        raise ParameterError(
            f"a number of tiles that divides {heads * rows} rows into fitting shares of {batch}s",
            str(tiles),
            f"These do: {', '.join(map(str, fitting))}.",
        )
    return Project(theta, mode, layer, columns, rows, tiles)


def parameter_header(project: Project) -> str:
    """`hccs_parameters.hpp`: the layer as compile-time constants."""
    rows = ",\n        ".join(f"{{{B}, {S}, {D}}}" for B, S, D in project.theta.packed.tolist())
    return f"""// Head parameters of layer {project.layer}, written by `hccs aie export`.
#pragma once

#include "hccs_tile.hpp"

namespace hccs {{

struct layer {{
    static constexpr mode selected = mode::{project.mode.value};
    static constexpr unsigned columns = {project.columns};
    static constexpr unsigned rows_per_head = {project.rows};
    static constexpr unsigned heads = {project.heads};
    static constexpr unsigned tiles = {project.tiles};
    static constexpr unsigned rows_per_tile = {project.rows_per_tile};
    // B, S, D of each head.
    static constexpr head thetas[heads] = {{
        {rows}}};
}};

}}  // namespace hccs
"""


def kernel_sources() -> dict[str, str]:
    """The kernel headers by name, as they ship in the package."""
    folder = resources.files("hccs.aie") / "kernels"
    names = ("hints.hpp", "hccs_softmax.hpp", "hccs_normalise.hpp", "hccs_tile.hpp")
    return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in names}


def emulation_sources() -> dict[str, str]:
    """The host emulation of the AIE API by path: it checks an exported kernel without any tools."""
    folder = resources.files("hccs.aie") / "emulation" / "include" / "aie_api"
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
