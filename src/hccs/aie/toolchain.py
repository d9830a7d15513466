"""Compiles an exported kernel with a real AI Engine compiler, if one is installed, and counts its bundles."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hccs.aie import throughput
from hccs.aie.cycles.machine import Isa
from hccs.aie.emulator import Kernel
from hccs.errors import FileError, HccsError
from hccs.numbers.modes import Mode

PEANO_VARIABLE = "PEANO_INSTALL_DIR"
VITIS_VARIABLE = "XILINX_VITIS"
API_VARIABLE = "AIE_API_INCLUDE"

_SYMBOL = re.compile(r"^[0-9a-f]+ <(?P<name>[^>]+)>:$")
_BUNDLE = re.compile(r"^\s*(?P<address>[0-9a-f]+):\s")
_TARGETS = {Isa.AIE2: "aie2-none-unknown-elf", Isa.AIE2PS: "aie2ps-none-unknown-elf"}
_STARTED = re.compile(
    r"static constexpr (?:mode selected = mode::(?P<mode>\w+)|unsigned columns = (?P<columns>\d+))"
)


class ToolchainError(HccsError, RuntimeError):
    """No AI Engine compiler, or one that failed."""


@dataclass(frozen=True)
class Build:
    """What a compiler made of a kernel: bundles per function, measured.

    And the model's bundles for the same code.
    """

    compiler: str
    object_file: Path
    bundles: dict[str, int]
    modelled_bundles: int

    @property
    def total(self) -> int:
        """Bundles of the whole object, each issued once: code size, not cycles."""
        return sum(self.bundles.values())


def count_bundles(disassembly: str) -> dict[str, int]:
    """Bundles per function in `llvm-objdump -d` output: one address is one bundle."""
    counts: dict[str, int] = {}
    current = ""
    for line in disassembly.splitlines():
        if symbol := _SYMBOL.match(line):
            current = symbol["name"]
            counts[current] = 0
        elif current and _BUNDLE.match(line):
            counts[current] += 1
    return counts


def modelled_code_size(isa: Isa, mode: Mode, n: int) -> int:
    """Bundles of the modelled kernel's code.

    Pipelined loops hold a prologue, one interval and an epilogue.
    """
    regions = throughput.modelled(isa, Kernel.BLOCKED, mode, n).regions
    return sum(
        2 * r.schedule.length - r.schedule.ii if r.schedule.ii is not None else r.schedule.length
        for r in regions
    )


def _project(folder: Path) -> tuple[Mode, int]:
    header = folder / "src" / "hccs_parameters.hpp"
    if not header.is_file():
        raise FileError(
            f"{folder} to be a vitis or iron export", "no src/hccs_parameters.hpp", "Run hccs aie export."
        )
    found = [m.groupdict() for m in _STARTED.finditer(header.read_text(encoding="utf-8"))]
    mode = next(item["mode"] for item in found if item["mode"])
    columns = next(item["columns"] for item in found if item["columns"])
    return Mode(mode), int(columns)


def _run(command: list[str], cwd: Path) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolchainError(f"{command[0]} to run", str(error), "Check the installation folder.") from error
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
        raise ToolchainError(
            f"{Path(command[0]).name} to succeed", last, "The full command was: " + " ".join(command)
        )
    return done.stdout


def build(
    folder: str | os.PathLike[str],
    isa: Isa | str = Isa.AIE2,
    platform: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Build:
    """Compile an exported project's kernel.

    With Peano if PEANO_INSTALL_DIR is set, else with Vitis (XILINX_VITIS).
    """
    environment = os.environ if environment is None else environment
    root, isa = Path(folder), Isa(isa)
    mode, n = _project(root)
    if PEANO_VARIABLE in environment:
        return _with_peano(root, isa, mode, n, environment)
    if VITIS_VARIABLE in environment:
        return _with_vitis(root, isa, mode, n, platform, environment)
    raise ToolchainError(
        f"{PEANO_VARIABLE} or {VITIS_VARIABLE} in the environment",
        "neither",
        "Install llvm-aie (open source) or Vitis and set one; `make host` in the folder needs neither.",
    )


def _with_peano(root: Path, isa: Isa, mode: Mode, n: int, environment: Mapping[str, str]) -> Build:
    api = environment.get(API_VARIABLE)
    if api is None:
        raise ToolchainError(
            f"{API_VARIABLE}: the folder that holds aie_api/aie.hpp",
            "not set",
            "mlir-aie's include folder has it.",
        )
    tools = Path(environment[PEANO_VARIABLE]) / "bin"
    source = root / "src" / "hccs_tile.cc"
    if not source.is_file():
        raise FileError(
            f"{root} to be an iron export", "no src/hccs_tile.cc", "Export with --target iron for Peano."
        )
    target = root / "hccs_tile.o"
    flags = [f"--target={_TARGETS[isa]}", "-O2", "-std=c++20", "-DNDEBUG", f"-I{api}", "-Isrc"]
    _run([str(tools / "clang++"), *flags, "-c", "src/hccs_tile.cc", "-o", target.name], root)
    listing = _run([str(tools / "llvm-objdump"), "-d", target.name], root)
    return Build("peano", target, count_bundles(listing), modelled_code_size(isa, mode, n))


def _with_vitis(
    root: Path, isa: Isa, mode: Mode, n: int, platform: str | None, environment: Mapping[str, str]
) -> Build:
    if platform is None:
        raise ToolchainError(
            "--platform, an .xpfm file", "none", "Vitis compiles for a platform, such as VEK280's."
        )
    if not (root / "graph.cpp").is_file():
        raise FileError(
            f"{root} to be a vitis export", "no graph.cpp", "Export with --target vitis for Vitis."
        )
    _run(["make", f"PLATFORM={platform}"], root)
    counts: dict[str, int] = {}
    for listing in sorted((root / "Work" / "aie").rglob("*.lst")):
        for name, bundles in count_bundles(listing.read_text(encoding="utf-8", errors="replace")).items():
            counts[f"{listing.stem}:{name}"] = bundles
    return Build("vitis", root / "libadf.a", counts, modelled_code_size(isa, mode, n))
