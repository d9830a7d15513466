"""C to WebAssembly, by clang with lld or by the package `ziglang`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from hccs.errors import HccsError, MissingExtraError

SHARED = (
    "-std=c11",
    "-O3",
    "-ffreestanding",
    "-fno-builtin",
    "-nostdlib",
    "-Wl,--no-entry",
    "-Wl,--strip-all",
)
STACK = 65536
"""Bytes. Newer linkers put the stack at address 0, older ones behind all data: nothing else may lie there."""


def compiler() -> list[list[str]]:
    """The command that compiles with SIMD128, and the one that compiles without."""
    clang = shutil.which("clang")
    if clang and shutil.which("wasm-ld"):
        plain = [clang, "--target=wasm32", "-mno-bulk-memory"]
        return [[*plain, "-msimd128"], plain]
    if find_spec("ziglang"):
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", "wasm32-freestanding"]
        return [[*zig, "-mcpu=mvp+simd128"], [*zig, "-mcpu=mvp"]]
    raise MissingExtraError(
        "a compiler for WebAssembly: clang with lld, or the package ziglang",
        "none of them",
        "pip install ziglang, or on Debian: apt install clang lld",
    )


def modules(folder: Path, sources: list[str], numbers: Mapping[str, int], first: int) -> tuple[bytes, bytes]:
    """The module with SIMD128 and the one without, whose own data begin at the address `first`."""
    found = []
    for name, command in zip(("simd", "plain"), compiler(), strict=True):
        defined = [f"-D{key}={value}{'ull' if value >= 2**31 else 'u'}" for key, value in numbers.items()]
        linked = [f"-Wl,--global-base={first}", f"-Wl,-z,stack-size={STACK}"]
        arguments = [*command, *SHARED, *defined, *linked, "-o", f"{name}.wasm", *sources]
        done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise HccsError(
                f"{command[0]} to compile the model",
                f"exit {done.returncode}: {done.stderr.strip()[-600:]}",
                "Report this with the version of the compiler; another one may do.",
            )
        found.append((folder / f"{name}.wasm").read_bytes())
    return found[0], found[1]
