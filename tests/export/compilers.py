"""The C compilers of this machine, and the projects that the exports write, made and checked with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SANITIZED = ("-O0", "-g", "-fsanitize=undefined,address", "-fno-sanitize-recover=all")


def runs_sanitized(compiler: str) -> bool:
    """Whether it makes sanitized programs that run: Debian's clang comes without the sanitizers' library."""
    if shutil.which(compiler) is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder, "empty.c"), Path(folder, "empty")
        source.write_text("int main(void) { return 0; }\n")
        build = subprocess.run(
            [compiler, *SANITIZED, "-o", program, source], capture_output=True, check=False
        )
        return build.returncode == 0 and subprocess.run([program], check=False).returncode == 0


COMPILERS = [name for name in ("gcc", "clang") if runs_sanitized(name)]
in_c = pytest.mark.skipif(
    not COMPILERS or not shutil.which("make"), reason="no C compiler with sanitizers, or no make"
)


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs make with the first of the compilers, unless the words name another."""
    return subprocess.run(
        ["make", "-s", "-C", folder, *words],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "CC": COMPILERS[0]},
    )


def require_pass(done: subprocess.CompletedProcess[str], examples: int, values: str = "scores") -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{examples} examples, 0 {values} differ: PASS" in done.stdout
    assert done.stderr == ""
