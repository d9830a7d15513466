"""What only the Vitis project has: its vectors as PLIO text files, which the ADF graph reads and writes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PLIO_BYTES = 8
"""A 64-bit PLIO file has as many numbers per line as fit eight bytes."""


def plio_text(values: NDArray[Any]) -> str:
    """Numbers as a 64-bit PLIO reads them: eight bytes a line.

    >>> plio_text(np.arange(8, dtype=np.int16))
    '0 1 2 3\\n4 5 6 7\\n'
    """
    per_line = PLIO_BYTES // values.dtype.itemsize
    lines = values.reshape(-1, per_line).tolist()
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)


def data_files(x: NDArray[np.int8], expected: NDArray[Any]) -> dict[str, str]:
    """Each tile's input, and what its output must be."""
    files = {f"data/in{tile}.txt": plio_text(values) for tile, values in enumerate(x)}
    files |= {f"data/expected{tile}.txt": plio_text(values) for tile, values in enumerate(expected)}
    return files
