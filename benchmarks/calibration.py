"""How fast is calibration, and how good, against the direct formula and the paper's coarse scan?

    python benchmarks/calibration.py [--logits FILE.npz] [--logits128 FILE.npz] [--curve NAME=FILE.npz] ...

Without files the logits are random with the spread and the row lengths of text. A file holds `logits`
[layers, heads, rows, k] (float) and `lengths` [rows]; heads are repeated where a measurement wants more.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path

import numpy as np
from provenance import write_json
from rich.console import Console
from rich.table import Table

import hccs
from hccs.backends.cpu import info
from hccs.calibration import HeadStatistics, LogitRange, fidelity, quantise, search
from hccs.calibration.searching import TIE, objectives
from hccs.numbers.modes import MAX_DISTANCE
from hccs.numbers.region import Region

rng = np.random.default_rng(7)


def text_like(heads: int, rows: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Random float logits whose heads range from broad to focused, with the row lengths of short text."""
    lengths = np.clip(rng.lognormal(np.log(n / 3.5), 0.55, rows), 3, n).astype(np.int32)
    spread = np.linspace(0.8, 3.5, heads)[None, :, None, None]
    return (rng.normal(0, 1, (1, heads, rows, n)) * spread).astype(np.float32), lengths


def load(path: str) -> tuple[np.ndarray, np.ndarray]:
    archive = np.load(path)
    return archive["logits"].astype(np.float32), archive["lengths"].astype(np.int32)


def quantised(z: np.ndarray, lengths: np.ndarray, heads: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """int8 logits [1, heads, rows, k] with max-abs scales [1, heads], heads repeated to the number wanted."""
    extremes = LogitRange(z.shape[:2])
    extremes.update(z, lengths)
    valid = np.arange(z.shape[-1]) < lengths[:, None]
    x = quantise(z, extremes.scale, valid).reshape(1, -1, *z.shape[2:])
    scale = extremes.scale.reshape(1, -1)
    chosen = np.arange(heads or x.shape[1]) % x.shape[1]
    return x[:, chosen], scale[:, chosen]


def collected(x: np.ndarray, scale: np.ndarray, lengths: np.ndarray) -> HeadStatistics:
    stats = HeadStatistics(x.shape[:2], x.shape[-1], scale)
    stats.update(x, lengths)
    return stats


def coarse_grid(n: int) -> np.ndarray:
    """The paper's grid: every eighth D, and at most 12 values of S for a D and of B for a pair (S, D)."""

    def spaced(first: int, last: int) -> list[int]:
        return np.unique(np.linspace(first, last, min(12, last - first + 1)).round().astype(int)).tolist()

    region = Region(n)
    return np.array(
        [
            (B, S, D)
            for D in (*range(8, MAX_DISTANCE, 8), MAX_DISTANCE)
            for S in spaced(0, region.max_slope(D))
            for B in spaced(region.min_base(S, D), region.max_base)
        ]
    )


def coarse_scan(stats: HeadStatistics) -> list[float]:
    """The least KL of every head over the grid, as section III-C of the paper searches."""
    grid = coarse_grid(stats.n)
    return [float(objectives(stats, [head], grid).min()) for head in range(stats.scale.size)]


def best_of(times: int, work, clock=time.perf_counter) -> float:
    """The least of some timings, in seconds."""
    found = []
    for _ in range(times):
        start = clock()
        work()
        found.append(clock() - start)
    return min(found)


def direct_formula(x: np.ndarray, lengths: np.ndarray, scale: float):
    """KL of one triple by the formula as written, in NumPy; what does not depend on it is computed once."""
    valid = np.arange(x.shape[-1]) < lengths[:, None]
    wide = np.where(valid, x.astype(np.int32), -1000)
    delta = wide.max(-1, keepdims=True) - wide
    p = np.where(valid, np.exp(-delta * scale), 0.0)
    p /= p.sum(-1, keepdims=True)
    entropy = float((p[valid] * np.log(p[valid])).sum())

    def kl(B: int, S: int, D: int) -> float:
        s = np.where(valid, B - S * np.minimum(delta, D), 0)
        rho = 32767 // s.sum(-1, keepdims=True)
        return (entropy - float((p[valid] * np.log((s * rho)[valid] / 32767)).sum())) / len(x)

    return kl


def agreement(x, scale, lengths, stats, triples) -> float:
    worst = 0.0
    for head in range(min(4, x.shape[1])):
        kl = direct_formula(x[0, head], lengths, float(scale[0, head]))
        expected = [kl(*triple) for triple in triples]
        worst = max(worst, float(abs(objectives(stats, [head], triples) - expected).max()))
    return worst


def random_triples(n: int, count: int) -> list[tuple[int, int, int]]:
    every = list(Region(n))
    chosen = [every[i] for i in rng.choice(len(every), count, replace=False)]
    return sorted(chosen, key=lambda t: t[::-1])


def update_speed(rows: int, n: int = 64) -> float:
    """Logits per second on one core (a head has one thread), with so many rows that they are counted."""
    x, scale = quantised(text_like(1, rows, n)[0], np.full(rows, n, np.int32))
    stats = HeadStatistics((1, 1), n, scale)
    stats.update(x)
    return x.size / best_of(5, lambda: stats.update(x))


def held_out(z: np.ndarray, lengths: np.ndarray) -> list[dict[str, float]]:
    """Mean KL on rows not calibrated on, against the number of rows calibrated on.

    Rows are taken in the file's order, so a file in the order of the text is split between sentences.
    """
    x, scale = quantised(z, lengths)
    rows = len(lengths) // 2
    test = collected(x[:, :, rows:], scale, lengths[rows:])
    best = search(test).kl
    curve = []
    sizes = [
        size for size in (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768) if size <= rows
    ]
    for size in sizes:
        kl = []
        for repeat in range(max(1, min(8, rows // size))):
            chosen = slice(repeat * size, (repeat + 1) * size)
            table = search(collected(x[:, :, chosen], scale, lengths[chosen])).table
            kl.append(float(fidelity(test, table)[..., 0].mean()))
        curve.append(
            {"rows": size, "kl": float(np.mean(kl)), "worst": float(np.max(kl)), "best_possible": best}
        )
    return curve


def draw(curves: dict[str, list[dict[str, float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    panel = figure.subplots()
    for i, (name, curve) in enumerate(curves.items()):
        rows = [point["rows"] for point in curve]
        panel.plot(rows, [point["kl"] for point in curve], "o-", ms=3, color=f"C{i}", label=name)
        panel.axhline(curve[0]["best_possible"], color=f"C{i}", lw=0.8, ls=":")
    panel.set_xscale("log", base=2)
    panel.set_xlabel("calibration rows per head")
    panel.set_ylabel("mean KL on held-out rows")
    panel.legend(
        frameon=False, fontsize=8, title="dotted: the optimum of the held-out rows", title_fontsize=7
    )
    figure.savefig(path)


TWO_LINES = "search of two lines, 32 heads, n = 64, {} scores, s"


def measure(z64, lengths64, z128, lengths128, at_most: int, quick: bool) -> dict[str, float]:
    found: dict[str, float] = {}

    def times(usual: int) -> int:
        return 1 if quick else usual

    x, scale = quantised(z64[:, :, :at_most], lengths64[:at_most], 32)
    lengths = lengths64[:at_most]
    stats = collected(x, scale, lengths)
    found["rows per head, n = 64"] = x.shape[2]
    triples = random_triples(64, 4 if quick else 16)
    found["objective against the direct formula, largest difference"] = agreement(
        x, scale, lengths, stats, triples
    )
    found["memory per head, MB"] = float(stats.memory.mean()) / 1e6

    exact = search(stats)
    found["search of 32 heads, n = 64, s"] = best_of(times(3), lambda: search(stats))
    one = collected(x[:, :1], scale[:, :1], lengths)
    found["search of one head, n = 64, one core, s"] = best_of(times(3), lambda: search(one, threads=1))
    for scores in ("int16", "uint8"):
        two = search(stats, lines=2, scores=scores)
        found[f"mean KL, two lines, {scores} scores"] = two.kl
        found[TWO_LINES.format(scores)] = best_of(
            times(2), lambda scores=scores: search(stats, lines=2, scores=scores)
        )
    coarse = coarse_scan(stats)
    gains = [kl - head.kl for kl, head in zip(coarse, exact.heads, strict=True)]
    found["mean KL, exact"], found["mean KL, coarse scan"] = exact.kl, float(np.mean(coarse))
    found["heads where the exact search is worse"] = sum(gain < -TIE for gain in gains)
    found["gain over the coarse scan, mean"] = float(np.mean(gains))
    found["coarse scan of 32 heads, s"] = best_of(times(2), lambda: coarse_scan(stats))

    kl = direct_formula(x[0, 0], lengths, float(scale[0, 0]))
    per_triple = best_of(3, lambda: [kl(*triple) for triple in triples[:4]]) / 4
    found["direct formula, one triple, ms"] = 1e3 * per_triple
    found["direct formula over the region, extrapolated, h"] = per_triple * len(Region(64)) / 3600
    found["speed-up over the direct formula"] = (
        per_triple * len(Region(64)) / found["search of one head, n = 64, one core, s"]
    )

    found["statistics update, M logits/s and core"] = update_speed(10 * at_most) / 1e6

    rows = len(lengths64)
    x, scale = quantised(z64, lengths64)
    x, scale = x[:, :4], scale[:, :4]
    part = rows // 10
    small = collected(x[:, :, :part], scale, lengths64[:part])
    large = collected(x, scale, lengths64)
    few, many = [], []
    for _ in range(times(7)):  # in turn, and in processor time: what else runs on the machine must not decide
        few.append(best_of(1, lambda: search(small, threads=1), time.process_time))
        many.append(best_of(1, lambda: search(large, threads=1), time.process_time))
    found["rows of the 10x comparison"] = rows
    found["search time for 10x the data, ratio"] = min(many) / min(few)
    found["memory per head at 10x, MB"] = float(large.memory.mean()) / 1e6

    x, scale = quantised(z128[:, :, :at_most], lengths128[:at_most], 144)
    wide = collected(x, scale, lengths128[:at_most])
    found["rows per head, n = 128"] = x.shape[2]
    found["search of 144 heads, n = 128, s"] = best_of(1, lambda: search(wide))
    return found


BARS = {
    "objective against the direct formula, largest difference": ("<=", 1e-10),
    "search of 32 heads, n = 64, s": ("<=", 10.0),
    TWO_LINES.format("int16"): ("<=", 10.0),
    TWO_LINES.format("uint8"): ("<=", 10.0),
    "search of 144 heads, n = 128, s": ("<=", 60.0),
    "speed-up over the direct formula": (">=", 10_000.0),
    "statistics update, M logits/s and core": (">=", 100.0),
    "search time for 10x the data, ratio": ("<=", 1.2),
    "heads where the exact search is worse": ("<=", 0.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--logits", help="real logits for n = 64 (200,000 rows make the 10x comparison 20,000)"
    )
    parser.add_argument("--logits128", help="real logits for n = 128")
    parser.add_argument(
        "--curve", action="append", default=[], metavar="NAME=FILE", help="held-out curve of a file"
    )
    parser.add_argument("--json", type=Path, help="write the figures as JSON")
    parser.add_argument("--figure", type=Path, help="draw the held-out curves")
    parser.add_argument(
        "--quick", action="store_true", help="fewer triples for the direct formula, every time taken once"
    )
    parser.add_argument("--rows", type=int, default=20_000, help="rows per head; ten times as many for some")
    options = parser.parse_args()

    rows = options.rows
    z64, lengths64 = load(options.logits) if options.logits else text_like(4, 10 * rows, 64)
    z128, lengths128 = load(options.logits128) if options.logits128 else text_like(16, rows, 128)
    found = measure(z64, lengths64, z128, lengths128, rows, options.quick)
    curves = {}
    for entry in options.curve:
        name, path = entry.split("=", 1)
        curves[name] = held_out(*load(path))

    table = Table(title=f"calibration, hccs {hccs.__version__}, {info().cores} cores")
    for column in ("what", "measured", "bar"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, value in found.items():
        sign, bar = BARS.get(name, ("", None))
        kept = bar is None or (value <= bar if sign == "<=" else value >= bar)
        table.add_row(
            name, f"{value:.4g}" if kept else f"[red]{value:.4g}", f"{sign} {bar:g}" if sign else ""
        )
    Console().print(table)
    for name, curve in curves.items():
        points = ", ".join(f"{point['rows']}: {point['kl']:.4f}" for point in curve)
        Console().print(f"held-out KL, {name}: {points}; possible {curve[0]['best_possible']:.4f}")
    if options.json:
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
        content = {
            "data": options.logits or "random",
            "machine": machine,
            "measured": found,
            "held_out": curves,
        }
        write_json(options.json, content)
    if options.figure and curves:
        draw(curves, options.figure)


if __name__ == "__main__":
    main()
