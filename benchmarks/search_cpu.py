"""How much of the memory's bandwidth does exact search over int8 vectors use, on one thread?

    python benchmarks/search_cpu.py [--rows 1000000] [--dims 384] [--k 10] [--turns 7] [--json FILE]

The bandwidth is that of the fastest pass over the same bytes: the C library's search for a byte that does not
occur, NumPy's largest 64-bit word, bitwise or, and dot product of float32. Every instruction set of this
machine is timed, best of the turns.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from provenance import write_json

from hccs.backends.cpu import instruction_sets as isa
from hccs.ops.top_k import top_k


def rate(call: Callable[[], Any], size: int, turns: int) -> float:
    """Bytes per second, the best of the turns."""
    best = float("inf")
    for _ in range(turns):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return size / best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    vectors = rng.integers(-127, 128, (options.rows, options.dims), dtype=np.int8)
    query = rng.integers(-127, 128, (1, options.dims), dtype=np.int8)
    size, turns = vectors.nbytes, options.turns
    words = vectors.reshape(-1)[: size // 8 * 8].view(np.uint64)
    floats = np.ones(size // 4, np.float32)
    first_of = ctypes.CDLL(None).memchr
    first_of.argtypes, first_of.restype = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t), ctypes.c_void_p
    passes = {
        "absent byte": rate(lambda: first_of(vectors.ctypes.data, 0x80, size), size, turns),
        "largest word": rate(lambda: words.max(), size, turns),
        "bitwise or": rate(lambda: np.bitwise_or.reduce(words), size, turns),
        "dot product": rate(lambda: np.dot(floats, floats), size, turns),
    }
    memory = max(passes.values())
    found: dict[str, Any] = {"rows": options.rows, "dims": options.dims, "passes": passes, "search": {}}
    print(f"memory, one thread: {memory / 1e9:.1f} GB/s")
    for name in isa.available():
        isa.select(name)
        speed = rate(lambda: top_k(vectors, query, options.k, threads=1), size, turns)
        found["search"][name] = {"bytes_per_second": speed, "of_memory": speed / memory}
        print(
            f"{name:8s} {speed / 1e9:6.1f} GB/s, {speed / memory:.2f} of memory, {1e3 * size / speed:.1f} ms"
        )
    isa.select("")
    if options.json:
        write_json(options.json, found)


if __name__ == "__main__":
    main()
