"""Compiles an exported kernel with a real AI Engine compiler, if one is installed, and counts its bundles."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hccs.errors import FileError, HccsError
from hccs.numbers.modes import Mode
from hccs_aie import emulator, throughput
from hccs_aie.cycles.machine import Generation
from hccs_aie.cycles.model import Compiler, KernelCycles
from hccs_aie.emulator import Kernel
from hccs_aie.export.project import Project, ProjectFile, Target
from hccs_aie.listing import (
    Chains,
    CodeFunction,
    PassBundles,
    count,
    functions,
    loop_chains,
    source_loops,
)

PEANO_VARIABLE = "PEANO_INSTALL_DIR"
VITIS_VARIABLE = "XILINX_VITIS"
API_VARIABLE = "AIE_API_INCLUDE"

_TARGETS = {Generation.AIE2: "aie2-none-unknown-elf", Generation.AIE2PS: "aie2ps-none-unknown-elf"}
_FLAGS = ("-Isrc", "-O2", "-std=c++20", "-DNDEBUG", "-gline-tables-only")
_PLATFORM = re.compile(r"[A-Za-z0-9_./+][A-Za-z0-9_./+-]*")
"""make expands what it is given, and a shell reads that: only what means itself to both."""


class ToolchainError(HccsError, RuntimeError):
    """No AI Engine compiler, or one that failed."""


@dataclass(frozen=True)
class Build:
    """What a compiler made of a kernel: bundles per function, per loop and per row, beside the model's."""

    compiler: str
    object_file: Path
    bundles: dict[str, int]
    modelled_bundles: int
    issued: PassBundles
    modelled: KernelCycles

    @property
    def total(self) -> int:
        """Bundles of the whole object, each issued once: code size, not cycles."""
        return sum(self.bundles.values())


def modelled_code_size(generation: Generation, mode: Mode, n: int, lines: int = 1) -> int:
    """Bundles of the modelled kernel's code; pipelined loops have a prologue, one interval, an epilogue."""
    regions = throughput.modelled(generation, Kernel.BLOCKED, mode, n, lines=lines).regions
    return sum(
        2 * r.schedule.length - r.schedule.ii if r.schedule.ii is not None else r.schedule.length
        for r in regions
    )


def _run(command: list[str], cwd: Path) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, encoding="utf-8", errors="replace", check=False
        )
    except OSError as error:
        raise ToolchainError(f"{command[0]} to run", str(error), "Check the installation folder.") from error
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
        raise ToolchainError(
            f"{Path(command[0]).name} to succeed", last, f"The full command was: {shlex.join(command)}"
        )
    return done.stdout


def build(
    folder: str | os.PathLike[str],
    generation: Generation | str = Generation.AIE2,
    platform: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Build:
    """Compile an exported kernel with Peano if PEANO_INSTALL_DIR is set, else with Vitis (XILINX_VITIS)."""
    environment = os.environ if environment is None else environment
    root, generation = Path(folder), Generation(generation)
    exported = ProjectFile.load(root)
    if environment.get(PEANO_VARIABLE):
        return _with_peano(root, generation, exported, environment)
    if environment.get(VITIS_VARIABLE):
        return _with_vitis(root, generation, exported, platform)
    raise ToolchainError(
        f"{PEANO_VARIABLE} or {VITIS_VARIABLE} in the environment",
        "neither",
        "Install llvm-aie (open source) or Vitis and set one; `make host` in the folder needs neither.",
    )


def _require_target(root: Path, exported: ProjectFile, target: Target, source: str) -> None:
    got = f"one for {exported.target.value}"
    if exported.target is target:
        if (root / source).is_file():
            return
        got = f"no {source}"
    raise FileError(
        f"{root} to be an export for {target.value}", got, f"Export with --target {target.value}."
    )


def _made(
    compiler: str,
    object_file: Path,
    code: list[CodeFunction],
    generation: Generation,
    project: Project,
    profile: Compiler,
    chains: Chains | None = None,
) -> Build:
    if not code:
        raise ToolchainError(f"functions in what {compiler} made", "none", "Look at the compiler's output.")
    mode, n, lines = project.mode, project.columns, 2 if project.theta.wide else 1
    modelled = throughput.modelled(generation, Kernel.BLOCKED, mode, n, profile, lines)
    rows = min(emulator.TILE_ROWS, project.rows, project.rows_per_tile)
    loops = source_loops(throughput.traced(Kernel.BLOCKED, mode, n, lines, rows, profile is Compiler.OPEN))
    return Build(
        compiler,
        object_file,
        {function.name: function.bundles for function in code},
        modelled_code_size(generation, mode, n, lines),
        count(code, loops, rows, chains),
        modelled,
    )


def _with_peano(
    root: Path, generation: Generation, exported: ProjectFile, environment: Mapping[str, str]
) -> Build:
    api = environment.get(API_VARIABLE)
    if not api:
        raise ToolchainError(
            f"{API_VARIABLE}: the folder that holds aie_api/aie.hpp",
            "not set",
            "mlir-aie's include folder has it.",
        )
    # The tools run in the project's folder: paths that are relative to ours are made absolute.
    tools = Path(environment[PEANO_VARIABLE]).absolute() / "bin"
    _require_target(root, exported, Target.IRON, "src/hccs_tile.cc")
    object_file = root / "hccs_tile.o"
    flags = [f"--target={_TARGETS[generation]}", f"-I{Path(api).absolute()}", *_FLAGS]
    _run([str(tools / "clang++"), *flags, "-c", "src/hccs_tile.cc", "-o", object_file.name], root)
    code = functions(_run([str(tools / "llvm-objdump"), "-d", "-r", object_file.name], root))
    chains = _loop_chains(tools, object_file, code)
    return _made("peano", object_file, code, generation, exported.project, Compiler.OPEN, chains)


def _loop_chains(tools: Path, object_file: Path, code: list[CodeFunction]) -> Chains:
    """The source loops of the first section's bundles; none if the compiler came without a symbolizer."""
    symbolizer, root = tools / "llvm-symbolizer", object_file.parent
    addresses = [hex(at) for function in code if function.section == ".text" for at in function.addresses]
    if not symbolizer.is_file() or not addresses:
        return {}
    asked = [str(symbolizer), f"--obj={object_file.name}", "--inlines", "--output-style=JSON", *addresses]
    sources = {path.name: path.read_text(encoding="utf-8") for path in (root / "src").glob("*.hpp")}
    return loop_chains(_run(asked, root), sources)


def _with_vitis(root: Path, generation: Generation, exported: ProjectFile, platform: str | None) -> Build:
    if platform is None:
        raise ToolchainError(
            "--platform, an .xpfm file", "none", "Vitis compiles for a platform, such as VEK280's."
        )
    if Path(platform).is_file():
        platform = str(Path(platform).absolute())
    if not _PLATFORM.fullmatch(platform):
        raise ToolchainError(
            "--platform of letters, digits and _ . + - / only, which make and a shell leave alone",
            repr(platform),
            "Link the platform's folder to a path without spaces or signs.",
        )
    _require_target(root, exported, Target.VITIS, "graph.cpp")
    _run(["make", f"PLATFORM={platform}"], root)
    code: list[CodeFunction] = []
    for listing in sorted((root / "Work" / "aie").rglob("*.lst")):
        for function in functions(listing.read_text(encoding="utf-8", errors="replace")):
            code.append(replace(function, name=f"{listing.stem}:{function.name}"))
    return _made("vitis", root / "libadf.a", code, generation, exported.project, Compiler.PIPELINED)
