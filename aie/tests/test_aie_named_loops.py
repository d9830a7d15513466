"""`hccs aie build` names every loop of a real compiler's output, in which functions are inlined.

No AI Engine compiler is at hand, so g++ compiles the exported kernels for this machine over the opaque
stand-in of the API, LLVM's own tools read the object, and jumps are spelled as the AI Engine's.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from aie.tests.test_aie_toolchain import fake_tool

from hccs import HeadParams, Mode
from hccs_aie import listing
from hccs_aie.export import Project, export
from hccs_aie.throughput import representative_theta, representative_two_lines, traced
from hccs_aie.toolchain import build

OPAQUE = Path(__file__).parent / "stand_ins" / "opaque" / "aie_api" / "aie.hpp"
FLAGS = "-O2 -g1 -std=c++20 -mavx512f -mavx512bw -mavx512vl -fno-tree-vectorize -w -DNDEBUG"
GROWTH = ("inline-unit-growth", "large-function-growth", "large-stack-frame-growth", "max-inline-insns-auto")
CASES = [(mode, n, lines) for mode in Mode for n, lines in ((32, 1), (64, 2), (160, 1))]


def for_gcc(header: str) -> str:
    """The opaque API with assembly that this machine's assembler takes, and vectors as GCC spells them."""
    header = header.replace('asm volatile("', 'asm volatile("nop # ').replace('asm("', 'asm("nop # ')
    header = header.replace("asm(#name", 'asm("nop # " #name').replace("typename native<T, N>::type(0)", "")
    header = header.replace("ext_vector_type(N)", "vector_size(sizeof(T) * N)")
    makers = "STAND_IN vector() : data() {}\n  STAND_IN vector(type d) : data(d) {}"
    return header.replace("\n  type data;\n", f"\n  type data;\n  {makers}\n")


@pytest.fixture
def gcc(tmp_path: Path) -> dict[str, str]:
    """A folder with Peano's file names whose tools are this machine's."""
    tools = {name: shutil.which(name) for name in ("g++", "llvm-objdump", "llvm-symbolizer")}
    for name, path in tools.items():
        if path is None:
            pytest.skip(f"{name} is not installed")
    root = tmp_path / "tools"
    (root / "aie_api").mkdir(parents=True)
    (root / "aie_api" / "aie.hpp").write_text(for_gcc(OPAQUE.read_text()))
    growth = " ".join(f"--param {name}=100000" for name in GROWTH)
    compile_it = f"{tools['g++']} {FLAGS} {growth} -I{root} -c src/hccs_tile.cc -o hccs_tile.o"
    fake_tool(root / "bin/clang++", compile_it)
    jumps = r"s/\tj[a-z]*\s*\(0x[0-9a-f]*\) <.*/\tjnz r0, #\1/"
    fake_tool(root / "bin/llvm-objdump", f"{tools['llvm-objdump']} -d hccs_tile.o | sed '{jumps}'")
    fake_tool(root / "bin/llvm-symbolizer", f'exec {tools["llvm-symbolizer"]} "$@"')
    return {"PEANO_INSTALL_DIR": str(root), "AIE_API_INCLUDE": "/nowhere"}


@pytest.mark.parametrize(("mode", "n", "lines"), CASES)
def test_every_loop_gets_its_name(
    mode: Mode, n: int, lines: int, gcc: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "DELAY_SLOTS", 0)
    theta = representative_two_lines(n) if lines == 2 else representative_theta(n)
    heads = HeadParams(*theta.packed[:, None], wide=lines == 2)
    # More rows would not fit a tile at n = 160.
    folder = export(Project(heads, mode, 0, n, 64, 2 if n == 160 else 1), "iron", tmp_path / "project")
    hints = (folder / "src/hints.hpp").read_text().replace("clang loop unroll(full)", "GCC unroll 64")
    hints = hints.replace("clang loop min_iteration_count(least) unroll(disable)", "GCC unroll 1")
    if (mode, n) == (Mode.U8_DIV, 32):  # whose long iterations GCC leaves rolled, whatever the pragma says
        hints = hints.replace("HCCS_LONG_BODIES true", "HCCS_LONG_BODIES false")
    (folder / "src/hints.hpp").write_text(hints)
    made = build(folder, environment=gcc)
    assert made.issued.missing == ()
    assert None not in [loop.name for loop in made.issued.loops]
    names = {loop.name for loop in listing.source_loops(traced("blocked", mode, n, lines))}
    assert names <= {loop.name for loop in made.issued.loops}
    assert made.issued.rows == (32 if n == 160 else 64)
    assert made.issued.per_row is not None
