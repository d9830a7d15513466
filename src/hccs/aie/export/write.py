"""Writes a project folder, whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from hccs.aie.export import aie4ml_model, iron, vitis
from hccs.aie.export.project import Project, Target, emulation_sources, kernel_sources, vectors
from hccs.errors import FileError

_HOST_CHECK = """// Runs every tile's share on this machine and compares it with the reference's probabilities.
#include <cstdio>
#include <fstream>
#include <vector>

#include "hccs_parameters.hpp"

using probability = hccs::output<hccs::layer::selected>::type;

template <typename T>
static bool read(const char *path, T *into, std::size_t count) {
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char *>(into), std::streamsize(count * sizeof(T)));
    return bool(file);
}

int main() {
    constexpr std::size_t share = hccs::layer::rows_per_tile * hccs::layer::columns;
    constexpr std::size_t count = share * hccs::layer::tiles;
    static hccs::scratch scratch;
    alignas(32) static int8 logits[count];
    alignas(32) static probability got[count], expected[count];
    if (!read("vectors/logits.bin", logits, count) || !read("vectors/probabilities.bin", expected, count)) {
        std::fprintf(stderr, "run this in the project folder: vectors/*.bin not found or too short\\n");
        return 2;
    }
    for (unsigned t = 0; t < hccs::layer::tiles; ++t)
        hccs::softmax_tile<hccs::layer>(logits + t * share, got + t * share, t * hccs::layer::rows_per_tile,
                                        hccs::layer::rows_per_tile, scratch);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) wrong += got[i] != expected[i];
    std::printf("%zu of %zu outputs differ from the reference\\n", wrong, count);
    return wrong != 0;
}
"""

_BUILD = {
    Target.VITIS: """    make PLATFORM=/path/to/base.xpfm         # libadf.a
    make PLATFORM=/path/to/base.xpfm simulate  # aiesimulator, then compare with data/expected*.txt
    make host                                 # the same kernel here, against vectors/

`src/` is the kernel, `hccs_graph.hpp` the graph: {tiles} tiles of {rows_per_tile} rows. `data/` holds PLIO inputs and
the expected outputs.""",
    Target.IRON: """    make AIE_API=/path/to/include             # hccs_tile.o by Peano, hccs.mlir by the IRON design
    make xclbin                               # aiecc.py
    make host                                 # the same kernel here, against vectors/

`src/` is the kernel, `design.py` splits {tiles} times {rows_per_tile} rows over tiles, four to a column. IRON drives
Ryzen AI arrays: `DEVICE=npu1 ARCH=aie2` has the instruction set of the VEK280.""",
    Target.AIE4ML: """    pip install 'aie4ml[onnx]'
    python3 lower.py [PART]                   # writes a Vitis project with aie4ml's own HCCS kernel

`hccs_softmax.onnx` has one Softmax per head and `directives.json` their parameters. aie4ml's kernel takes full rows
only. `vectors/` holds int8 logits and the probabilities expected for them.""",
}

_README = """# HCCS softmax, layer {layer}

{heads} heads x {rows} rows x {columns} columns, {mode}; written by `hccs aie export --target {target}`.

{build}

`vectors/logits.bin` is int8 [{tiles}, {rows_per_tile}, {columns}], `vectors/probabilities.bin` {output} of the same
shape: what `hccs.reference` returns for it, bit for bit.
"""


def _contents(project: Project, target: Target) -> dict[str, str | bytes]:
    x, expected = vectors(project)
    made: dict[str, str | bytes] = {"vectors/logits.bin": x.tobytes(), "vectors/probabilities.bin": expected.tobytes()}
    if target is Target.AIE4ML:
        made.update(aie4ml_model.files(project))
    else:
        made.update({f"src/{name}": text for name, text in kernel_sources().items()})
        made.update({f"host/include/{path}": text for path, text in emulation_sources().items()})
        made["host/host_check.cpp"] = _HOST_CHECK
        made.update(vitis.files(project, x, expected) if target is Target.VITIS else iron.files(project))
    facts = dict(
        layer=project.layer, heads=project.heads, rows=project.rows, columns=project.columns, tiles=project.tiles,
        rows_per_tile=project.rows_per_tile, mode=project.mode.value, target=target.value,
        output=np.dtype(project.mode.dtype).name,
    )  # fmt: skip
    made["README.md"] = _README.format(build=_BUILD[target].format(**facts), **facts)
    return made


def export(project: Project, target: Target | str, out: str | os.PathLike[str]) -> Path:
    """Write the project folder `out`. An existing folder is replaced only if an export wrote it, and only when done."""
    target, folder = Target(target), Path(out)
    contents = _contents(project, target)
    if folder.exists() and not (folder.is_dir() and ((folder / "vectors/logits.bin").exists() or not any(folder.iterdir()))):
        raise FileError(f"{folder} to be new, empty, or an earlier export", "something else", "Choose another --out.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        fresh = Path(scratch) / "project"
        for name, content in contents.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(fresh, folder)
    return folder
