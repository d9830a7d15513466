"""What does HCCS cost in training? Time and memory of an attention step, forward and backward, in eager mode,
as ratios against the same attention with torch.softmax.

    python benchmarks/training_step.py [--device cuda] [--out results.json]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch
from provenance import write_json

import hccs
from hccs.nn.functional import hccs_softmax

SHAPES = [(32, 2, 64, 64), (32, 8, 64, 64), (16, 8, 128, 64), (8, 12, 256, 64)]


def attention(softmax, q, k, v):
    return softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5) @ v


def step(softmax, q, k, v) -> None:
    attention(softmax, q, k, v).sum().backward()


def saved_bytes(softmax, q, k, v) -> int:
    """Bytes of distinct storage that autograd keeps between forward and backward, inputs left out."""
    inputs = {t.untyped_storage().data_ptr() for t in (q, k, v)}
    kept: dict[int, int] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in inputs:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = attention(softmax, q, k, v)
    del result
    return sum(kept.values()) + sum(t.untyped_storage().nbytes() for t in (q, k, v))


def seconds(work, device: str) -> float:
    times = []
    for _ in range(15):
        if device == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[3:])


def compare(shape: tuple[int, int, int, int], device: str, masked: bool) -> dict[str, object]:
    batch, heads, n, _ = shape
    q, k, v = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))
    lengths = torch.randint(n // 2, n + 1, (batch, 1, 1, 1), device=device)
    valid = torch.arange(n, device=device) < lengths if masked else None
    additive = None if valid is None else torch.where(valid, 0.0, torch.finfo(torch.float32).min)
    region = hccs.Region(n)
    theta = torch.tensor(
        [[region.max_base, region.max_slope(60), 60]] * heads, dtype=torch.int32, device=device
    )
    scale = torch.full((heads,), 0.05, device=device)

    def ours(z):
        return hccs_softmax(z, theta, scale, "i16_div", valid)

    def peer(z):
        return torch.softmax(z if additive is None else z + additive, -1)

    # Interleaved, so that a busy moment of the machine hits both.
    times = {name: [] for name in ("ours", "peer")}
    for _ in range(4):
        for name, softmax in (("ours", ours), ("peer", peer)):
            times[name].append(seconds(lambda softmax=softmax: step(softmax, q, k, v), device))
    return {
        "shape": shape,
        "masked": masked,
        "time_ratio": min(times["ours"]) / min(times["peer"]),
        "memory_ratio": saved_bytes(ours, q, k, v) / saved_bytes(peer, q, k, v),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", nargs="+", metavar="B,H,N,D", help="others than the usual ones")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    shapes = SHAPES if options.device == "cpu" else [(b * 8, *rest) for b, *rest in SHAPES]
    if options.shapes:
        shapes = [tuple(int(size) for size in given.split(",")) for given in options.shapes]
    results = [compare(tuple(s), options.device, masked) for s in shapes for masked in (False, True)]
    for row in results:
        print(
            f"{row['shape']!s:22} masked={row['masked']!s:5}  "
            f"time {row['time_ratio']:.2f}x  memory {row['memory_ratio']:.2f}x"
        )
    if options.out:
        write_json(options.out, {"device": options.device, "rows": results})


if __name__ == "__main__":
    main()
