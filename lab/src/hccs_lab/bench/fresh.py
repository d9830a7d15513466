"""One runtime in a process of its own: how much memory it takes to load a model and answer, and how long.

    python -m hccs_lab.bench.fresh KIND PATH SENTENCES.npz THREADS

prints one JSON object. The parent measures the time, from before the interpreter starts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hccs.errors import HccsError


class FreshProcessError(HccsError):
    """A runtime that did not answer in a process of its own."""


def in_fresh_process(kind: str, path: Path, sentences: Path, threads: int) -> dict[str, float]:
    """Peak resident `memory` in bytes, and `first_answer` in seconds, of a process that opens and answers."""
    command = [sys.executable, "-m", __name__, kind, str(path), str(sentences), str(threads)]
    began = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        raise FreshProcessError(
            f"{kind} to answer in a process of its own", lines[-1] if lines else "nothing", "See its error."
        )
    return {"memory": json.loads(ended.stdout.splitlines()[-1])["memory"], "first_answer": seconds}


def peak_memory() -> int:
    """Bytes of this process that were resident at once."""
    try:
        # getrusage would count the parent's, which the process was for a moment.
        status = Path("/proc/self/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    except OSError:  # not Linux
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else 1024 * used


def main(arguments: list[str]) -> dict[str, Any]:
    """Open, answer, and say what it took."""
    import numpy as np

    from hccs_lab.bench.opening import OPENERS

    kind, path, sentences, threads = arguments
    with np.load(sentences) as file:
        batch = {name: file[name] for name in file.files}
    answer = OPENERS[kind](Path(path), int(threads))(batch)
    return {"memory": peak_memory(), "answers": len(answer)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
