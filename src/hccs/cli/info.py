"""`hccs info`: what runs on this machine."""

from __future__ import annotations

from rich.console import Console

import hccs
from hccs.backends import cpu


def info() -> None:
    """Show the version and the instruction set that the native kernels use."""
    found = cpu.info()
    console = Console()
    console.print(f"hccs {hccs.__version__}")
    console.print(f"kernels: [bold]{found.isa}[/bold] of {', '.join(found.available)}; {found.cores} cores")
