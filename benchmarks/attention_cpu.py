"""How fast is `hccs.attention` on this CPU, per head, against every attention torch offers? One thread each.

All contenders of a length are timed in turns in one run, and each keeps its best time: neighbours on a shared
machine slow all of them alike, so ratios hold where absolute figures do not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from provenance import write_json
from rich.console import Console
from rich.progress import track
from rich.table import Table
from softmax_cpu import TWO_LINES, theta_for
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from turns import best_times

import hccs
from hccs.backends.cpu import instruction_sets as isa

LENGTHS = (64, 128, 256, 512)
DIM = 64
SECONDS = 0.003  # of one turn: short ones are more often undisturbed
QUANTUM = 1 / 32  # of q, k and v
# float16 is left out: torch has no fast product for it on CPUs, and takes up to 40 times as long.
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Call = Callable[[], object]


def heads_for(n: int) -> int:
    """Heads to a call: enough to spread what a call costs, which is most in torch."""
    return max(12, 3072 // n)


def integers(n: int) -> list[np.ndarray]:
    """q, k, v as int8 [1, heads, n, d]."""
    drawn = np.random.default_rng(n).normal(0, 1 / QUANTUM, (3, 1, heads_for(n), n, DIM))
    return list(np.clip(np.rint(drawn), -128, 127).astype(np.int8))


def requantiser() -> hccs.Requant:
    return hccs.Requant.from_scales(
        q_scale=QUANTUM,
        k_scale=QUANTUM,
        v_scale=QUANTUM,
        logit_scale=5 / 127,
        scaling=DIM**-0.5,
        out_scale=QUANTUM / 4,
    )


def ours(n: int, theta: hccs.HeadParams | None = None, **options) -> Call:
    q, k, v = integers(n)
    theta, requant = theta or theta_for(n), requantiser()
    return lambda: hccs.attention(q, k, v, theta, requant, threads=1, **options)


def peers(n: int) -> dict[str, Call]:
    """torch's attention in every precision: its fused kernel, its composed one, and a line of eager code."""
    calls: dict[str, Call] = {}
    for name, dtype in PRECISIONS.items():
        q, k, v = (torch.from_numpy(x * np.float32(QUANTUM)).to(dtype) for x in integers(n))

        def fused(backend, q=q, k=k, v=v):
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v)

        def eager(q=q, k=k, v=v):
            return torch.softmax(q @ k.transpose(-1, -2) * DIM**-0.5, -1) @ v

        calls[f"torch SDPA {name}"] = lambda q=q, k=k, v=v: scaled_dot_product_attention(q, k, v)
        calls[f"torch SDPA math {name}"] = lambda fused=fused: fused(SDPBackend.MATH)
        calls[f"torch eager {name}"] = eager
    calls["torch int8 q.k, then bfloat16"] = int8_logits(n)
    return calls


def int8_logits(n: int) -> Call:
    """torch's own int8 product for the logits, one head at a time as it must be; the rest in bfloat16."""
    q, k, v = (torch.from_numpy(x[0]) for x in integers(n))
    factor, v = QUANTUM**2 * DIM**-0.5, (v * QUANTUM).bfloat16()

    def run() -> torch.Tensor:
        logits = torch.stack([torch._int_mm(q[h], k[h].t()) for h in range(len(q))])
        return torch.softmax((logits * factor).bfloat16(), -1) @ v

    return run


def microseconds(n: int, turns: int) -> dict[str, float]:
    """Per head, of every contender at n keys and queries."""
    calls = {
        "hccs float32": ours(n),
        "hccs int8": ours(n, out="int8"),
        "hccs pair": ours(n, out="pair"),
        "hccs u8_div": ours(n, mode="u8_div"),
        "hccs u8_clb": ours(n, mode="u8_clb"),
        "hccs causal": ours(n, causal=True),
        "hccs lengths": ours(n, valid=np.array([n - n // 4])),
        "hccs mask": ours(n, valid=np.random.default_rng(0).random((n, n)) < 0.8),
        **{f"hccs two lines, {name}": ours(n, theta) for name, theta in TWO_LINES.items()},
        **{f"hccs int8, two lines, {name}": ours(n, theta, out="int8") for name, theta in TWO_LINES.items()},
        **peers(n),
    }
    best = {name: seconds / heads_for(n) * 1e6 for name, seconds in best_times(calls, turns, SECONDS).items()}
    if "avx2" in isa.available():
        isa.select("avx2")
        calls = {"hccs float32 (AVX2)": ours(n)}
        calls |= {f"hccs two lines, {name} (AVX2)": ours(n, theta) for name, theta in TWO_LINES.items()}
        try:
            for name, seconds in best_times(calls, turns, SECONDS).items():
                best[name] = seconds / heads_for(n) * 1e6
        finally:
            isa.select("")
    return best


def ratios(found: dict[str, float]) -> dict[str, float]:
    fastest = min(found[name] for name in found if name.startswith("torch"))
    return {
        "over torch SDPA float32": found["torch SDPA float32"] / found["hccs float32"],
        "over the fastest of torch, any precision": fastest / found["hccs float32"],
        "AVX2 over torch SDPA float32": found["torch SDPA float32"]
        / found.get("hccs float32 (AVX2)", float("nan")),
        "two lines, uint8 scores, over one, time": found["hccs two lines, uint8 scores"]
        / found["hccs float32"],
        "int8 out": found["hccs int8, two lines, uint8 scores"] / found["hccs int8"],
        "two lines, int16 scores, over one, time": found["hccs two lines, int16 scores"]
        / found["hccs float32"],
        "AVX2, two lines, uint8 scores, over one, time": found.get(
            "hccs two lines, uint8 scores (AVX2)", float("nan")
        )
        / found.get("hccs float32 (AVX2)", float("nan")),
    }


BARS = {
    "over torch SDPA float32": ">= 2.7",
    "over the fastest of torch, any precision": ">= 1.7",
    "AVX2 over torch SDPA float32": "none",
    "two lines, uint8 scores, over one, time": "<= 1.15",
    "int8 out": "<= 1.15",
    "two lines, int16 scores, over one, time": "none",
    "AVX2, two lines, uint8 scores, over one, time": "none",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--turns", type=int, default=40, help="how often each contender is timed")
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=LENGTHS, metavar="N", help="queries and keys"
    )
    arguments = parser.parse_args()
    lengths = arguments.lengths
    torch.set_num_threads(1)
    console = Console()
    console.print(f"hccs kernels: {hccs.backends.cpu.info()}; torch {torch.__version__}")
    with torch.inference_mode():
        found = {n: microseconds(n, arguments.turns) for n in track(lengths, "attention")}
    shown = Table(title=f"microseconds per head, d = {DIM}")
    shown.add_column("")
    for n in lengths:
        shown.add_column(f"n = {n}", justify="right")
    for name in found[lengths[0]]:
        shown.add_row(name, *(f"{found[n][name]:.1f}" for n in lengths))
    console.print(shown)
    shown = Table(title="ratios")
    for column in ("what", "bar", *(f"n = {n}" for n in lengths)):
        shown.add_column(column)
    bars = {n: ratios(found[n]) for n in lengths}
    for what, bar in BARS.items():
        shown.add_row(what, bar, *(f"{bars[n][what]:.2f}" for n in lengths))
    console.print(shown)
    if arguments.json:
        figures = {"isa": isa.info().isa, "torch": torch.__version__, "microseconds": found, "ratios": bars}
        write_json(arguments.json, figures)
        console.print(f"wrote {arguments.json}")


if __name__ == "__main__":
    main()
