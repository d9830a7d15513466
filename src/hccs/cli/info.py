"""`hccs info`: what runs on this machine."""

from __future__ import annotations

import hccs
from hccs.backends import cpu
from hccs.cli.output import Json, Output


def info(json: Json = False) -> None:
    """Show the version and the instruction set that the native kernels use."""
    found, output = cpu.info(), Output(json)
    output.results(
        {
            "version": hccs.__version__,
            "isa": found.isa,
            "available": list(found.available),
            "cores": found.cores,
        }
    )
    if not json:
        output.say(f"hccs {hccs.__version__}")
        output.say(f"kernels: {found.isa} of {', '.join(found.available)}; {found.cores} cores")
