"""How fast is `hccs.softmax` on this CPU, against every softmax people have installed? One thread each.

All contenders of a table are timed in turns in one run, and each keeps its best time: neighbours on a shared
machine slow all of them alike, so ratios hold where absolute figures do not.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
from provenance import write_json
from rich.console import Console
from rich.progress import track
from rich.table import Table
from softmax_peers import LEFT_OUT, PEERS, logits
from turns import best_times

import hccs
from hccs.backends.cpu import _native
from hccs.backends.cpu import instruction_sets as isa

LENGTHS = (32, 64, 128, 256, 512)
IN_CACHE = 3 << 18  # bytes in and out together: three quarters of a 1 MiB L2
BEYOND_CACHE = 256  # MiB in and out together: far past any last-level cache
MODES = ("u8_div", "u8_clb", "i16_div", "i16_clb")


def theta_for(n: int) -> hccs.HeadParams:
    """About what calibration finds on BERT-small for SST-2 and MNLI: D from 5 to 55, median 25 to 28."""
    region = hccs.Region(n)
    return hccs.HeadParams(region.max_base, region.max_slope(28), 28)


TWO_LINES = {
    "int16 scores": hccs.HeadParams(B=2047, S=5, D=54, S2=77, D2=22),
    "uint8 scores": hccs.HeadParams(B=1023, S=3, D=53, S2=39, D2=21, f=2),
}
"""What calibration finds on BERT-tiny."""


def ours(mode: str, rows: int, n: int, threads: int = 1, valid=None) -> Callable[[], object]:
    x, theta = logits(rows, n), theta_for(n)
    out = np.empty(x.shape, hccs.Mode(mode).dtype)
    return lambda: hccs.softmax(x, theta, mode, valid, out=out, threads=threads)


def copy(rows: int, n: int) -> Callable[[], object]:
    x = logits(rows, n)
    out = np.empty_like(x)
    return lambda: np.copyto(out, x)


def rates(n: int, size: int, turns: int) -> dict[str, float]:
    """Gelem/s of every contender at row length n; `size` is the bytes each reads and writes."""
    calls, elements = {}, {}

    def add(name: str, call: Callable[[], object], count: int) -> None:
        calls[name], elements[name] = call, count

    for mode in MODES:
        rows = size // (2 if mode.startswith("u8") else 3) // n
        add(f"hccs {mode}", ours(mode, rows, n), rows * n)
    rows = size // 2 // n
    add("memcpy", copy(rows, n), rows * n)
    for peer in PEERS:
        # In cache a peer gets what fits in its own format and also our longer array: the best counts.
        own = size // peer.bytes_per_element
        for count in {own, size // 2} if size == IN_CACHE else {own}:
            add(f"{peer.name}|{count}", peer.make(count // n, n), count // n * n)
    best = best_times(calls, turns)
    found: dict[str, float] = {}
    for name, seconds in best.items():
        key = name.split("|")[0]
        found[key] = max(found.get(key, 0.0), elements[name] / seconds / 1e9)
    return found


def avx2_rates(n: int, turns: int) -> dict[str, float]:
    isa.select("avx2")
    rows = IN_CACHE // 2 // n
    try:
        best = best_times({mode: ours(mode, rows, n) for mode in ("u8_div", "u8_clb")}, turns)
    finally:
        isa.select("")
    return {f"hccs {mode} (AVX2)": rows * n / seconds / 1e9 for mode, seconds in best.items()}


def mask_costs(n: int, turns: int) -> dict[str, float]:
    """Time with a mask over time without: u8_div, square attention [sequences, n, n]."""
    sequences = IN_CACHE // 2 // n // n
    x, theta = logits(sequences * n, n).reshape(sequences, n, n), theta_for(n)
    out = np.empty(x.shape, np.uint8)
    rng = np.random.default_rng(0)
    lengths = rng.integers(n // 2, n + 1, (sequences, 1))
    selections = {
        "unmasked": None,
        "padding lengths": lengths,
        "padding mask": np.arange(n) < lengths[..., None],
        "causal lengths": np.arange(1, n + 1),
        "another mask in every row": rng.random(x.shape) < 0.9,
    }

    def call(valid):
        return lambda: hccs.softmax(x, theta, "u8_div", valid, out=out, threads=1)

    best = best_times({name: call(valid) for name, valid in selections.items()}, turns)
    return {name: seconds / best["unmasked"] for name, seconds in best.items() if name != "unmasked"}


def two_line_costs(n: int, mode: str, turns: int) -> dict[str, float]:
    """Time of two lines over the time of one."""
    x = logits(IN_CACHE // 2 // n, n)
    out = np.empty(x.shape, hccs.Mode(mode).dtype)

    def call(theta):
        return lambda: hccs.softmax(x, theta, mode, out=out, threads=1)

    best = best_times(
        {name: call(theta) for name, theta in {"one": theta_for(n), **TWO_LINES}.items()}, turns
    )
    return {name: best[name] / best["one"] for name in TWO_LINES}


def call_overhead(turns: int) -> float:
    """Microseconds of one call on a 1 x 64 row above an empty native call."""
    x, theta = logits(1, 64), hccs.HeadParams(444, 11, 40)
    best = best_times({"call": lambda: hccs.softmax(x, theta, "u8_div"), "empty": _native.empty}, turns)
    return (best["call"] - best["empty"]) * 1e6


def two_threads(n: int, size: int, turns: int) -> float:
    rows = size // 2 // n
    best = best_times({str(t): ours("u8_div", rows, n, threads=t) for t in (1, 2)}, turns)
    return best["1"] / best["2"]


def two_copies(size: int, turns: int) -> float:
    """What the machine's memory grants a second thread: memcpy by two over memcpy by one."""
    x = logits(size // 2 // 128, 128)
    out, half = np.empty_like(x), len(x) // 2

    def both() -> None:
        other = threading.Thread(target=np.copyto, args=(out[half:], x[half:]))
        other.start()
        np.copyto(out[:half], x[:half])
        other.join()

    best = best_times({"1": lambda: np.copyto(out, x), "2": both}, turns)
    return best["1"] / best["2"]


def fastest(found: dict[str, float], kind: str) -> float:
    return max(found[peer.name] for peer in PEERS if peer.kind == kind)


def show_rates(console: Console, title: str, table: dict[int, dict[str, float]]) -> None:
    shown = Table(title=title)
    shown.add_column("Gelem/s")
    for n in table:
        shown.add_column(f"n = {n}", justify="right")
    for name in next(iter(table.values())):
        shown.add_row(name, *(f"{found[name]:.2f}" for found in table.values()))
    console.print(shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--turns", type=int, default=25, help="how often each contender is timed")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=LENGTHS, metavar="N", help="columns of a row"
    )
    parser.add_argument(
        "--beyond", type=int, default=BEYOND_CACHE, metavar="MIB", help="of arrays beyond the caches"
    )
    arguments = parser.parse_args()
    console, turns, lengths, beyond = Console(), arguments.turns, arguments.lengths, arguments.beyond << 20
    console.print(f"hccs kernels: {hccs.backends.cpu.info()}")
    for peer in LEFT_OUT:
        console.print(f"{peer.name} is left out: {peer.package} is not installed")

    cached = {n: rates(n, IN_CACHE, turns) for n in track(lengths, "arrays in L2")}
    avx2 = {}
    if "avx2" in isa.available():
        for n in lengths:
            avx2[n] = avx2_rates(n, turns)
            cached[n].update(avx2[n])
    memory = {n: rates(n, beyond, max(2, turns // 8)) for n in track(lengths, "beyond the caches")}
    masks = {n: mask_costs(n, turns) for n in track(lengths, "masks")}
    show_rates(console, "arrays in L2", cached)
    show_rates(console, "arrays beyond the last-level cache", memory)

    bars: list[tuple[str, str, dict[str, float]]] = []

    def bar(what: str, wanted: str, figures: dict[int, float] | float) -> None:
        by_length = figures if isinstance(figures, dict) else {"": figures}
        bars.append((what, wanted, {str(n): value for n, value in by_length.items()}))

    for mode in ("u8_div", "u8_clb"):
        bar(
            f"{mode} over the fastest float32",
            ">= 7 (n = 32: 5)",
            {n: f[f"hccs {mode}"] / fastest(f, "float32") for n, f in cached.items()},
        )
        bar(
            f"{mode} over the fastest int8",
            ">= 8",
            {n: f[f"hccs {mode}"] / fastest(f, "int8") for n, f in cached.items()},
        )
        bar(
            f"{mode} over memcpy, beyond the caches",
            ">= 0.85 at n = 256",
            {n: f[f"hccs {mode}"] / f["memcpy"] for n, f in memory.items()},
        )
    for mode in ("i16_div", "i16_clb"):
        bar(
            f"{mode} over the fastest float32",
            ">= 4 (n >= 64)",
            {n: f[f"hccs {mode}"] / fastest(f, "float32") for n, f in cached.items()},
        )
    if avx2:
        bar(
            "AVX2 u8_div over the fastest float32",
            ">= 3 (n >= 64)",
            {n: avx2[n]["hccs u8_div (AVX2)"] / fastest(f, "float32") for n, f in cached.items()},
        )
    bar("two threads over one", ">= 1.8", {n: two_threads(n, beyond, max(3, turns // 4)) for n in lengths})
    bar("memcpy by two threads over one", "the memory's limit", two_copies(beyond, max(3, turns // 4)))
    for name in next(iter(masks.values())):
        wanted = "<= 1.15" if "lengths" in name else "<= 1.5"
        bar(f"cost of {name}", wanted, {n: found[name] for n, found in masks.items()})
    for mode, wanted in (("u8_div", "<= 1.15"), ("u8_clb", "<= 1.15"), ("i16_div", "")):
        costs = {n: two_line_costs(n, mode, turns) for n in lengths}
        for name in TWO_LINES:
            bar(f"two lines over one, {mode}, {name}", wanted, {n: found[name] for n, found in costs.items()})
    bar("one call on 1 x 64, us", "<= 3", call_overhead(turns))

    shown = Table(title="ratios")
    for column in ("what", "bar", *(f"n = {n}" for n in lengths)):
        shown.add_column(column)
    for what, wanted, values in bars:
        cells = [f"{values[str(n)]:.2f}" if str(n) in values else "" for n in lengths]
        shown.add_row(what, wanted, *(cells if "" not in values else [f"{values['']:.2f}", *cells[1:]]))
    console.print(shown)
    if arguments.json:
        figures = {"isa": isa.info().isa, "cached": cached, "memory": memory, "masks": masks, "bars": bars}
        write_json(arguments.json, figures)
        console.print(f"wrote {arguments.json}")


if __name__ == "__main__":
    main()
