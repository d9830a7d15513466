"""The Vitis project: an ADF graph of one kernel object per tile, fed and drained by PLIO text files."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs.aie.export.project import Project, parameter_header

PLIO_BYTES = 8
"""A 64-bit PLIO file has as many numbers per line as fit eight bytes."""

_TILE_HEADER = """// One tile's kernel object: the share of rows that begins at first_row.
#pragma once

#include <adf.h>

#include "hccs_parameters.hpp"

class hccs_tile_kernel {
  public:
    explicit hccs_tile_kernel(int first_row) : first_row_(first_row) {}
    void run(adf::input_buffer<int8> &in, adf::output_buffer<OUTPUT> &out);
    static void registerKernelClass() { REGISTER_FUNCTION(hccs_tile_kernel::run); }

  private:
    int first_row_;
    hccs::scratch scratch_;
};
"""

_TILE_SOURCE = """#include "hccs_tile_kernel.hpp"

void hccs_tile_kernel::run(adf::input_buffer<int8> &in, adf::output_buffer<OUTPUT> &out) {
    hccs::softmax_tile<hccs::layer>(in.data(), out.data(), unsigned(first_row_), hccs::layer::rows_per_tile, scratch_);
}
"""

_GRAPH = """// Rows are independent, so every tile has a stream in and a stream out of its own (paper, eq. 12).
#pragma once

#include <adf.h>

#include <string>

#include "hccs_tile_kernel.hpp"

class hccs_graph : public adf::graph {
  public:
    adf::input_plio in[hccs::layer::tiles];
    adf::output_plio out[hccs::layer::tiles];

    hccs_graph() {
        constexpr unsigned elements = hccs::layer::rows_per_tile * hccs::layer::columns;
        for (unsigned t = 0; t < hccs::layer::tiles; ++t) {
            const std::string number = std::to_string(t);
            tiles_[t] = adf::kernel::create_object<hccs_tile_kernel>(int(t * hccs::layer::rows_per_tile));
            adf::source(tiles_[t]) = "src/hccs_tile_kernel.cpp";
            adf::runtime<adf::ratio>(tiles_[t]) = 0.9;
            in[t] = adf::input_plio::create("in" + number, adf::plio_64_bits, "data/in" + number + ".txt");
            out[t] = adf::output_plio::create("out" + number, adf::plio_64_bits, "data/out" + number + ".txt");
            adf::connect(in[t].out[0], tiles_[t].in[0]);
            adf::connect(tiles_[t].out[0], out[t].in[0]);
            adf::dimensions(tiles_[t].in[0]) = {elements};
            adf::dimensions(tiles_[t].out[0]) = {elements};
        }
    }

  private:
    adf::kernel tiles_[hccs::layer::tiles];
};
"""

_MAIN = """#include "hccs_graph.hpp"

hccs_graph graph;

int main() {
    graph.init();
    graph.run(1);
    graph.end();
    return 0;
}
"""

_MAKEFILE = """# PLATFORM: an .xpfm of a VEK280 (AIE-ML) or VEK385 (AIE-MLv2) base platform.
TARGET ?= hw

all: libadf.a

libadf.a: graph.cpp src/*
\tv++ -c --mode aie --target $(TARGET) --platform $(PLATFORM) --include ./src --include . \\
\t    --aie.Xchess="main:cpp.std=c++20" --work_dir ./Work --output $@ graph.cpp

simulate: libadf.a
\taiesimulator --pkg-dir=./Work --profile
\tpython3 compare.py aiesimulator_output/data

# The same kernel on this machine, no AI Engine tools needed.
host: host_check
\t./host_check

host_check: host/host_check.cpp src/*.hpp
\t$(CXX) -std=c++20 -O2 -Ihost/include -Isrc host/host_check.cpp -o $@

.PHONY: all simulate host
"""

_COMPARE = '''"""Compare the simulator's PLIO output with the expected files. Usage: python3 compare.py FOLDER"""

import pathlib
import sys

folder = pathlib.Path(sys.argv[1])
wrong = 0
for expected in sorted(pathlib.Path("data").glob("expected*.txt")):
    got = folder / expected.name.replace("expected", "out")
    words = [w for line in got.read_text().splitlines() if not line.startswith("T") for w in line.split()]
    wanted = expected.read_text().split()
    wrong += sum(a != b for a, b in zip(words, wanted)) + abs(len(words) - len(wanted))
print(f"{wrong} outputs differ" if wrong else "every output equals the reference")
sys.exit(bool(wrong))
'''


def plio_text(values: NDArray[Any]) -> str:
    """Numbers as a 64-bit PLIO reads them: eight bytes a line."""
    per_line = PLIO_BYTES // values.dtype.itemsize
    lines = values.reshape(-1, per_line).tolist()
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)


def files(project: Project, x: NDArray[np.int8], expected: NDArray[Any]) -> dict[str, str]:
    """Everything in the folder that only Vitis needs."""
    made = {
        "src/hccs_parameters.hpp": parameter_header(project),
        "src/hccs_tile_kernel.hpp": _TILE_HEADER.replace("OUTPUT", project.output_type),
        "src/hccs_tile_kernel.cpp": _TILE_SOURCE.replace("OUTPUT", project.output_type),
        "hccs_graph.hpp": _GRAPH,
        "graph.cpp": _MAIN,
        "Makefile": _MAKEFILE,
        "compare.py": _COMPARE,
    }
    for tile in range(project.tiles):
        made[f"data/in{tile}.txt"] = plio_text(x[tile])
        made[f"data/expected{tile}.txt"] = plio_text(expected[tile])
    return made
