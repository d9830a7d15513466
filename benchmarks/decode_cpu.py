"""How fast is a step of generation on this CPU: one query over a cache, against every attention torch offers?

All contenders are timed in turns in one run, and each keeps its best time, as in attention_cpu.py. Every call
goes through the public function; torch reads floats, we read the int8 cache.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from attention_cpu import DIM, PRECISIONS, QUANTUM, SECONDS, Call, requantiser
from provenance import write_json
from rich.console import Console
from rich.table import Table
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from turns import best_times

import hccs
from hccs.backends.cpu import instruction_sets as isa

CASES = {"32 heads": (32, 1), "32 heads on 8 of k and v": (32, 4), "9 heads on 3 of k and v": (9, 3)}
THETA = {
    "one line": lambda keys: hccs.HeadParams(32767 // keys, 0 if keys > 2000 else 1, 15),
    "one line, wide sums": lambda keys: hccs.HeadParams(444, 4, 100, wide=True),
    "two lines, int16 scores": lambda keys: hccs.HeadParams(1023, 4, 50, 41, 20),
    "two lines, uint8 scores": lambda keys: hccs.HeadParams(1023, 4, 50, 41, 20, 2),
}


def integers(keys: int, heads: int, shared: int) -> list[np.ndarray]:
    """int8 q [1, heads, 1, d] and k, v [1, key heads, keys, d]."""
    rng = np.random.default_rng(keys)
    shapes = [(1, heads, 1, DIM), *[(1, heads // shared, keys, DIM)] * 2]
    return [np.clip(np.rint(rng.normal(0, 1 / QUANTUM, s)), -128, 127).astype(np.int8) for s in shapes]


def ours(operands: list[np.ndarray], theta: hccs.HeadParams, threads: int) -> Call:
    requant = requantiser()
    return lambda: hccs.attention(*operands, theta, requant, threads=threads)


def peers(operands: list[np.ndarray]) -> dict[str, Call]:
    """torch's attention: fused and composed, both orders of the cache, heads shared natively or repeated."""
    calls: dict[str, Call] = {}
    shared = operands[0].shape[1] // operands[1].shape[1]
    for name, dtype in PRECISIONS.items():
        q, k, v = (torch.from_numpy(x * np.float32(QUANTUM)).to(dtype) for x in operands)
        by_token = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
        for order, (keys, values) in {"": (k, v), ", by token": by_token}.items():

            def call(q=q, k=keys, v=values):
                return scaled_dot_product_attention(q, k, v, enable_gqa=shared > 1)

            def math(call=call):
                with sdpa_kernel(SDPBackend.MATH):
                    return call()

            def eager(q=q, k=keys, v=values):
                grouped = q.unflatten(1, (-1, shared)).squeeze(3) if shared > 1 else q
                return torch.softmax(grouped @ k.transpose(-1, -2) * DIM**-0.5, -1) @ v

            calls[f"torch SDPA {name}{order}"] = call
            calls[f"torch SDPA math {name}{order}"] = math
            calls[f"torch eager {name}{order}"] = eager
    return calls


def measure(keys: int, heads: int, shared: int, threads: int, turns: int) -> dict[str, float]:
    """Microseconds of a call of every contender."""
    torch.set_num_threads(threads)
    operands = integers(keys, heads, shared)
    calls = {f"hccs {name}": ours(operands, theta(keys), threads) for name, theta in THETA.items()}
    best = best_times({**calls, **peers(operands)}, turns, SECONDS)
    return {name: seconds * 1e6 for name, seconds in best.items()}


def ratio(found: dict[str, float], ours: str) -> float:
    return min(time for name, time in found.items() if name.startswith("torch")) / found[f"hccs {ours}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console, found = Console(), {}
    for keys in arguments.keys:
        for case, (heads, shared) in CASES.items():
            for threads in arguments.threads:
                name = f"{keys} keys, {case}, threads {threads}"
                found[name] = measure(keys, heads, shared, threads, arguments.turns)
                table = Table("contender", "us", title=name)
                for contender, time in sorted(found[name].items(), key=lambda pair: pair[1]):
                    table.add_row(contender, f"{time:.1f}")
                console.print(table)
                console.print({form: f"{ratio(found[name], form):.2f}x" for form in THETA})
    if arguments.json:
        content = {"isa": isa.info().isa, "torch": torch.__version__, "microseconds": found}
        write_json(arguments.json, content)
        console.print(f"wrote {arguments.json}")


if __name__ == "__main__":
    main()
