"""How close is the CUDA row kernel to the speed of memory?

Ratios against a device copy of the same bytes, and against torch's bfloat16 softmax over as many elements, in
one run.

    python benchmarks/softmax_gpu.py [--out results.json] [--tune]
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import torch
import triton

import hccs
from hccs.backends.triton import softmax as rows
from hccs.reference.softmax import softmax as reference_softmax

ELEMENTS = 1 << 29
HEADS = 8


def median_ms(work) -> float:
    return triton.testing.do_bench(work, warmup=20, rep=60, return_mode="median")


LINES = {
    "one line": None,
    "two lines": hccs.HeadParams([1023] * HEADS, 4, 50, 41, 20),
    "two lines, uint8 scores": hccs.HeadParams([1023] * HEADS, 4, 50, 41, 20, 2),
}


def theta_for(n: int, lines: str = "one line") -> hccs.HeadParams:
    wide = LINES[lines]
    if wide is not None:
        return wide
    region = hccs.Region(n)
    S = max(region.max_slope(40), 0)
    return hccs.HeadParams(B=[region.max_base] * HEADS, S=[S] * HEADS, D=[40] * HEADS)


def check(n: int, mode: hccs.Mode, lines: str) -> None:
    x = torch.randint(-128, 128, (2, HEADS, 3, n), dtype=torch.int8, device="cuda")
    theta = theta_for(n, lines)
    expected = reference_softmax(x.cpu().numpy(), theta, mode)
    assert (hccs.softmax(x, theta, mode).cpu().numpy() == expected).all(), (n, mode)


def measure(n: int, mode: hccs.Mode, lines: str) -> dict[str, Any]:
    check(n, mode, lines)
    x = torch.randint(-128, 128, (ELEMENTS // (n * n * HEADS), HEADS, n, n), dtype=torch.int8, device="cuda")
    theta = theta_for(n, lines)
    out = torch.empty(x.shape, dtype=torch.uint8 if mode.is_u8 else torch.int16, device="cuda")
    kernel = median_ms(lambda: hccs.softmax(x, theta, mode, out=out))
    moved = x.numel() * (1 + out.element_size())
    source = torch.randint(0, 255, (moved // 2,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = median_ms(lambda: target.copy_(source))
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
    parser.add_argument("--tune", action="store_true", help="try block sizes instead of the ones in use")
    options = parser.parse_args()
    results = []
    for n in (64, 128, 512):
        peer = torch_softmax_ms(n)
        for lines, mode in itertools.product(LINES, hccs.Mode):
            in_use = (rows._TILE, rows._WARPS)
            tried = [(t, w) for t in (2048, 4096, 8192) for w in (2, 4, 8)]
            for tile, warps in tried if options.tune else [in_use]:
                rows._TILE, rows._WARPS = tile, warps
                found = measure(n, mode, lines)
                found |= {"over_torch_bf16": peer / found["ms"], "tile": tile, "warps": warps}
                results.append(found)
                print(
                    f"n={n:4d} {lines:23s} {mode.value:8s} tile={tile:5d}x{warps} {found['ms']:.3f} ms  "
                    f"{found['of_copy']:.3f} of copy  {found['elements_per_s'] / 1e12:.2f} T elements/s  "
                    f"{found['over_torch_bf16']:.2f}x torch bf16",
                    flush=True,
                )
            rows._TILE, rows._WARPS = in_use
    if options.out:
        facts = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
        }
        options.out.write_text(json.dumps({**facts, "rows": results}, indent=1))


if __name__ == "__main__":
    main()
