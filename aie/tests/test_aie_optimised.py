"""What an optimiser makes of the kernels: no vector shift appears, and loads stay before stores."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hccs.numbers.modes import Mode

HERE = Path(__file__).parent
KERNELS = HERE.parent / "src" / "hccs_aie" / "kernels"
VECTOR_SHIFT = re.compile(r"= (?:shl|lshr|ashr)\b.*<\d+ x")
SHAPES = [(1, False), (2, True), (4, False), (8, True), (0, True)]


def optimised(source: Path, *flags: str) -> str:
    """LLVM's intermediate code after -O2, with registers wide enough that no vector is split or passed on."""
    if shutil.which("clang++") is None:
        pytest.skip("clang++ is not installed")
    wide = ["-O2", "-mavx512f", "-mavx512bw", "-mavx512vl", "-fno-vectorize", "-fno-slp-vectorize"]
    includes = [f"-I{HERE / 'stand_ins' / 'opaque'}", f"-I{KERNELS}"]
    command = ["clang++", "--target=x86_64-linux-gnu", "-std=c++20", *wide, "-S", "-emit-llvm", "-o", "-"]
    done = subprocess.run(
        [*command, *includes, *flags, str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def kernel(mode: Mode, chunks: int, masked: bool, long: bool = False) -> str:
    flags = [f"-DHCCS_MODE={mode.value}", f"-DHCCS_CHUNKS={chunks}", f"-DHCCS_MASKED={str(masked).lower()}"]
    flags.append(f"-DHCCS_LONG={str(long).lower()}")
    return optimised(HERE / "optimised_check.cpp", *flags)


def blocks(code: str) -> list[list[str]]:
    """The basic blocks of all functions."""
    found: list[list[str]] = [[]]
    for line in code.splitlines():
        if re.match(r"^\d+:|^define|^}", line):
            found.append([])
        else:
            found[-1].append(line)
    return found


def loads_behind_stores(code: str) -> list[str]:
    wrong = []
    for block in blocks(code):
        stores = [i for i, line in enumerate(block) if line.lstrip().startswith("store ")]
        if stores:
            wrong += [line for line in block[stores[0] :] if "= load " in line]
    return wrong


@pytest.mark.parametrize("mode", list(Mode))
def test_no_vector_shift_and_no_load_behind_a_store(mode: Mode) -> None:
    for chunks, masked in SHAPES:
        code = kernel(mode, chunks, masked)
        assert "alloca" not in code, "a value lives in memory"
        assert [line for line in code.splitlines() if VECTOR_SHIFT.search(line)] == []
        assert loads_behind_stores(code) == [], (chunks, masked)
        # Long iterations load a pair of blocks between the stores of two others.
        assert not VECTOR_SHIFT.search(kernel(mode, chunks, masked, long=True))


def test_every_pass_tells_its_buffers_apart() -> None:
    code = kernel(Mode.I16_DIV, 2, False)
    for name in ("clamp_levels", "row_totals", "reciprocals", "normalise"):
        (header,) = [line for line in code.splitlines() if line.startswith("define") and name in line]
        arguments = header[header.index("(") :].split(", ")
        pointers = [argument for argument in arguments if "*" in argument or "ptr " in argument]
        # The head alone may be anywhere: it is read before the loops.
        assert sum("noalias" not in pointer for pointer in pointers) == 1, header


def test_the_check_sees_a_doubling(tmp_path: Path) -> None:
    source = tmp_path / "doubling.cpp"
    words = "aie::vector<uint32, 16>"
    source.write_text(
        f"#include <aie_api/aie.hpp>\nvoid f(uint32* p) {{ {words} v = aie::load_v<16>(p); "
        "aie::store_v(p, aie::add(v, v)); v = aie::load_v<16>(p + 16); aie::store_v(p + 32, v); }\n"
    )
    code = optimised(source)
    assert VECTOR_SHIFT.search(code)
    assert len(loads_behind_stores(code)) == 1
