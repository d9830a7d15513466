import os
import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def triton_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a process of its own: Triton decides on import whether kernels are interpreted."""

    def run(code: str, *, interpreted: bool) -> subprocess.CompletedProcess[str]:
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        if interpreted:
            environment["TRITON_INTERPRET"] = "1"
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )

    return run
