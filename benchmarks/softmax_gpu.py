"""How close is the CUDA row kernel to the speed of memory?

Ratios against a device copy of the same bytes, and against torch's bfloat16 softmax over as many elements, in
one run. Every cell is printed as it comes: n, lines and scores, mode, geometry, share of the copy.

    python benchmarks/softmax_gpu.py [--out results.json] [--only u8,two] [--tune]
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import torch
import triton
from provenance import write_json

import hccs
from hccs.backends.triton import softmax as rows
from hccs.reference.softmax import softmax as reference_softmax

ELEMENTS = 1 << 29
HEADS = 8


# Elements of a program, warps, parts of a row that a thread holds.
GEOMETRIES = [
    (4096, 4, 2),
    (4096, 4, 1),
    (8192, 8, 2),
    (2048, 2, 2),
    (8192, 4, 4),
    (4096, 2, 4),
    (16384, 8, 4),
]


def median_ms(work) -> float:
    return triton.testing.do_bench(work, warmup=10, rep=40, return_mode="median")


LINES = {
    "one line": None,
    "two lines": hccs.HeadParams([1023] * HEADS, 4, 50, 41, 20),
    "two lines, uint8 scores": hccs.HeadParams([1023] * HEADS, 4, 50, 40, 20, 2),
}


def theta_for(n: int, lines: str = "one line") -> hccs.HeadParams:
    wide = LINES[lines]
    if wide is not None:
        return wide
    region = hccs.Region(n)
    S = max(region.max_slope(40), 0)
    return hccs.HeadParams(B=[region.max_base] * HEADS, S=[S] * HEADS, D=[40] * HEADS)


def check(n: int, mode: hccs.Mode, lines: str) -> None:
    rows_per_head = max(rows._TILE // n, 1)  # whole blocks, as the measured call has
    x = torch.randint(-128, 128, (2, HEADS, rows_per_head, n), dtype=torch.int8, device="cuda")
    x[1] = x[1] % 28 + 100
    theta = theta_for(n, lines)
    expected = reference_softmax(x.cpu().numpy(), theta, mode)
    assert (hccs.softmax(x, theta, mode).cpu().numpy() == expected).all(), (n, mode, lines)


def copy_ms(moved: int) -> float:
    source = torch.randint(0, 255, (moved // 2,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return median_ms(lambda: target.copy_(source))


def measure(x: torch.Tensor, mode: hccs.Mode, lines: str) -> dict[str, Any]:
    n = x.shape[-1]
    check(n, mode, lines)
    theta = theta_for(n, lines)
    out = torch.empty(x.shape, dtype=torch.uint8 if mode.is_u8 else torch.int16, device="cuda")
    kernel = median_ms(lambda: hccs.softmax(x, theta, mode, out=out))
    copy = copy_ms(x.numel() * (1 + out.element_size()))  # right after, as warm as the kernel was
    return {
        "n": n,
        "mode": mode.value,
        "lines": lines,
        "ms": kernel,
        "of_copy": copy / kernel,
        "elements_per_s": x.numel() / kernel * 1e3,
    }


def torch_softmax_ms(n: int) -> float:
    z = torch.randn(ELEMENTS // (n * n * HEADS), HEADS, n, n, dtype=torch.bfloat16, device="cuda")
    return median_ms(lambda: torch.softmax(z, -1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="cells whose name has all of these, e.g. u8,two")
    parser.add_argument("--tune", action="store_true", help="try geometries instead of the one in use")
    options = parser.parse_args()
    in_use = (rows._TILE, rows._WARPS, rows._PARTS)
    results = []
    for n in (64, 128, 512):
        x = torch.randint(
            -128, 128, (ELEMENTS // (n * n * HEADS), HEADS, n, n), dtype=torch.int8, device="cuda"
        )
        peer = torch_softmax_ms(n)
        for lines, mode in itertools.product(LINES, hccs.Mode):
            if not all(word in f"{n} {lines} {mode.value}" for word in options.only.split(",")):
                continue
            for geometry in GEOMETRIES if options.tune else [in_use]:
                rows._TILE, rows._WARPS, rows._PARTS = geometry
                found = measure(x, mode, lines)
                found |= {"over_torch_bf16": peer / found["ms"]}
                found |= dict(zip(("tile", "warps", "parts"), geometry, strict=True))
                results.append(found)
                print(
                    f"n={n:4d} {lines:23s} {mode.value:8s} {'x'.join(map(str, geometry)):9s} "
                    f"{found['of_copy']:.3f} of copy  {found['ms']:.3f} ms  "
                    f"{found['elements_per_s'] / 1e12:.2f} T elements/s  "
                    f"{found['over_torch_bf16']:.2f}x torch bf16",
                    flush=True,
                )
            rows._TILE, rows._WARPS, rows._PARTS = in_use
    if options.out:
        facts = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
        }
        write_json(options.out, {**facts, "rows": results})


if __name__ == "__main__":
    main()
