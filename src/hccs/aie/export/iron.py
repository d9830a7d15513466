"""The IRON project: a Python design for Ryzen AI arrays, rows split over tiles through the memory tiles."""

from __future__ import annotations

from hccs.aie.export.project import Project, parameter_header

TILES_PER_COLUMN = 4
"""A memory tile has six DMA channels each way: four tiles' inputs and outputs fit, with one to and from outside."""

_KERNEL = """// The kernel that the design calls: one tile's share of rows.
#include "hccs_parameters.hpp"

static hccs::scratch tile_scratch;

extern "C" void hccs_tile(const int8 *in, OUTPUT *out, int32 first_row) {
    hccs::softmax_tile<hccs::layer>(in, out, unsigned(first_row), hccs::layer::rows_per_tile, tile_scratch);
}
"""

_DESIGN = '''"""HCCS softmax on {tiles} tiles. Usage: python3 design.py {{npu1,npu2}} > hccs.mlir"""

import sys

import numpy as np
from aie.iron import Kernel, ObjectFifo, Program, Runtime, Worker
from aie.iron.device import NPU1, NPU2
from aie.iron.placers import SequentialPlacer

TILES = {tiles}
ROWS_PER_TILE = {rows_per_tile}
COLUMNS = {columns}
TILES_PER_COLUMN = {tiles_per_column}
SHARE = ROWS_PER_TILE * COLUMNS


def groups():
    """The tiles, at most four to a column."""
    return [range(first, min(first + TILES_PER_COLUMN, TILES)) for first in range(0, TILES, TILES_PER_COLUMN)]


def tile_program(in_fifo, out_fifo, kernel, first_row):
    logits = in_fifo.acquire(1)
    probabilities = out_fifo.acquire(1)
    kernel(logits, probabilities, first_row)
    in_fifo.release(1)
    out_fifo.release(1)


def design(device):
    """The array program: every column splits its rows over its tiles and joins their results."""
    in_share = np.ndarray[(SHARE,), np.dtype[np.int8]]
    out_share = np.ndarray[(SHARE,), np.dtype[np.{output}]]
    kernel = Kernel("hccs_tile", "hccs_tile.o", [in_share, out_share, np.int32])
    workers, in_fifos, out_fifos = [], [], []
    for column, members in enumerate(groups()):
        count = len(members)
        offsets = [SHARE * i for i in range(count)]
        fed = ObjectFifo(np.ndarray[(count * SHARE,), np.dtype[np.int8]], name=f"in{{column}}")
        drained = ObjectFifo(np.ndarray[(count * SHARE,), np.dtype[np.{output}]], name=f"out{{column}}")
        inputs = fed.cons().split(offsets, obj_types=[in_share] * count, names=[f"in{{column}}_{{i}}" for i in range(count)])
        outputs = drained.prod().join(
            offsets, obj_types=[out_share] * count, names=[f"out{{column}}_{{i}}" for i in range(count)]
        )
        for i, tile in enumerate(members):
            workers.append(Worker(tile_program, [inputs[i].cons(), outputs[i].prod(), kernel, tile * ROWS_PER_TILE]))
        in_fifos.append(fed)
        out_fifos.append(drained)

    runtime = Runtime()
    all_in = np.ndarray[(TILES * SHARE,), np.dtype[np.int8]]
    all_out = np.ndarray[(TILES * SHARE,), np.dtype[np.{output}]]
    with runtime.sequence(all_in, all_out) as (logits, probabilities):
        runtime.start(*workers)
        for column, members in enumerate(groups()):
            part = dict(
                sizes=[1, 1, 1, len(members) * SHARE],
                strides=[0, 0, 0, 1],
                offset=members[0] * SHARE,
            )
            runtime.fill(in_fifos[column].prod(), logits, tap=access(part))
            runtime.drain(out_fifos[column].cons(), probabilities, tap=access(part), wait=True)
    return Program(device, runtime).resolve_program(SequentialPlacer())


def access(part):
    from aie.helpers.taplib import TensorAccessPattern

    return TensorAccessPattern((TILES * SHARE,), part["offset"], part["sizes"], part["strides"])


if __name__ == "__main__":
    print(design({{"npu1": NPU1, "npu2": NPU2}}[sys.argv[1]]()))
'''

_MAKEFILE = """# PEANO_INSTALL_DIR: llvm-aie. AIE_API: the folder that holds aie_api/ (mlir-aie's include folder has it).
ARCH ?= aie2
DEVICE ?= npu1

all: hccs_tile.o hccs.mlir

hccs_tile.o: src/hccs_tile.cc src/*.hpp
\t$(PEANO_INSTALL_DIR)/bin/clang++ --target=$(ARCH)-none-unknown-elf -O2 -std=c++20 -DNDEBUG \\
\t    -I$(AIE_API) -Isrc -c src/hccs_tile.cc -o $@

hccs.mlir: design.py
\tpython3 design.py $(DEVICE) > $@

xclbin: hccs_tile.o hccs.mlir
\taiecc.py --aie-generate-xclbin --aie-generate-npu-insts --no-compile-host \\
\t    --xclbin-name=hccs.xclbin --npu-insts-name=insts.bin hccs.mlir

# The same kernel on this machine, no AI Engine tools needed.
host: host_check
\t./host_check

host_check: host/host_check.cpp src/*.hpp
\t$(CXX) -std=c++20 -O2 -Ihost/include -Isrc host/host_check.cpp -o $@

.PHONY: all xclbin host
"""


def files(project: Project) -> dict[str, str]:
    """Everything in the folder that only IRON needs; its vectors are the binary files beside."""
    return {
        "src/hccs_parameters.hpp": parameter_header(project),
        "src/hccs_tile.cc": _KERNEL.replace("OUTPUT", project.output_type),
        "design.py": _DESIGN.format(
            tiles=project.tiles,
            rows_per_tile=project.rows_per_tile,
            columns=project.columns,
            tiles_per_column=TILES_PER_COLUMN,
            output=project.output_type,
        ),
        "Makefile": _MAKEFILE,
    }
