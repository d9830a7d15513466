"""Work for pools of processes, in a module that takes no time to import."""

import os
import signal
import sys
import time
from pathlib import Path

from hccs.errors import FileError
from hccs_lab.processes import in_processes


def leave_a_mark(item: tuple[str, str]) -> None:
    """Leaves its process's number in a file, then does what the file's name says."""
    folder, name = item
    (Path(folder) / name).write_text(str(os.getpid()))
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "fails":
        raise FileError("a", "b", "c")
    while name.startswith("waits"):
        time.sleep(0.05)


if __name__ == "__main__":
    in_processes(leave_a_mark, [(sys.argv[1], name) for name in sys.argv[2:]], 2, "stubs")
