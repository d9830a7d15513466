"""Is integer attention on a GPU faster than the fastest SDPA of torch? Ratios over its backends (flash,
cuDNN, efficient, in float16 and bfloat16) in one run: int8 in, bfloat16 out, d = 64, a full GPU; all keys,
batches padded to lengths from n / 4 to n, and causal rows. Two columns: `call` is `hccs.attention` and SDPA
called from Python one after another, `graph` their launches recorded in a CUDA graph (of ours, what lies
below the checks of `hccs.attention`).

    python benchmarks/attention_gpu.py [--n 64 128 ...] [--kinds plain ...] [--tune] [--json results.json]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel

import hccs
from hccs.backends.triton.attention.launch import attention
from hccs.backends.triton.attention.tiles import Tile, tile_for

HEADS, D = 16, 64
# Rows of q over all heads: 0.67 GB of int8 in and bfloat16 out at every n, far more than the caches hold.
ROWS = 1 << 21
KINDS = ["plain", "padded", "causal"]
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


def median_ms(work: Callable[[], Any], rep: int = 60) -> float:
    """Of launches recorded in a CUDA graph, without the host's part in them."""
    return triton.testing.do_bench_cudagraph(work, rep=rep, return_mode="median")


def call_ms(work: Callable[[], Any]) -> float:
    """Of calls from Python, one after another, whatever the host does in them."""
    return triton.testing.do_bench(work, warmup=20, rep=60, return_mode="median")


def host_us(work: Callable[[], Any], calls: int = 300) -> float:
    """What the host takes for a call that leaves the GPU almost nothing to do."""
    for _ in range(calls):
        work()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls * 1e6


def parameters(n: int) -> tuple[hccs.HeadParams, hccs.Requant]:
    region = hccs.Region(n)
    reach = 40 if n <= 512 else 10
    slope = max(region.max_slope(reach), 0)
    theta = hccs.HeadParams(B=[region.max_base] * HEADS, S=[slope] * HEADS, D=[reach] * HEADS)
    # Random int8 heads: q.k spreads over some 43000, logits over 13 to 130 steps, of which the last saturate.
    factors = hccs.FixedPoint.nearest([0.0003 + 0.0002 * head for head in range(HEADS)])
    return theta, hccs.Requant(factors, [0.01 + 0.001 * head for head in range(HEADS)])


def integers(batch: int, n: int) -> list[torch.Tensor]:
    return [torch.randint(-128, 128, (batch, HEADS, n, D), dtype=torch.int8, device="cuda") for _ in range(3)]


def check(n: int, tile: Tile | None = None) -> None:
    """The integers of docs/spec.md in float64, which holds all of them."""
    (q, k, v), (theta, requant) = integers(2, n), parameters(n)
    N, Z = attention(q, k, v, theta, requant, out="pair", tile=tile)
    B, S, limit = (torch.tensor(theta.packed[:, i], device="cuda").long()[:, None, None] for i in range(3))
    M, r = (torch.tensor(requant.packed[:, i], device="cuda").long()[:, None, None] for i in range(2))
    acc = (q.double() @ k.double().transpose(-1, -2)).long()
    x = ((acc * M + (1 << (r - 1))) >> r).clamp(-128, 127)
    s = B - S * torch.minimum(x.amax(-1, keepdim=True) - x, limit)
    assert torch.equal(Z.long(), s.sum(-1)), (n, tile)
    assert torch.equal(N.double(), s.double() @ v.double()), (n, tile)


def mask_of(kind: str, batch: int, n: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Which keys take part, as `hccs.attention` and as SDPA are told."""
    if kind == "causal":
        return {"causal": True}, {"is_causal": True}
    if kind == "padded":
        lengths = torch.linspace(n // 4, n, batch, device="cuda").int().reshape(batch, 1, 1)
        return {"valid": lengths}, {"attn_mask": torch.arange(n, device="cuda") < lengths[..., None]}
    return {}, {}


def peers_ms(n: int, kind: str) -> dict[str, dict[str, float]]:
    """Every backend's milliseconds, as `graph` and as `call`."""
    found = {}
    shape = (ROWS // (n * HEADS), HEADS, n, D)
    _, told = mask_of(kind, shape[0], n)
    for dtype in (torch.bfloat16, torch.float16):
        q, k, v = (torch.randn(shape, dtype=dtype, device="cuda") for _ in range(3))
        for backend in BACKENDS:
            if kind == "padded" and backend == SDPBackend.FLASH_ATTENTION:
                continue  # takes no masks
            with sdpa_kernel([backend]), torch.no_grad():
                name = backend.name.removesuffix("_ATTENTION").lower()

                def work(q: Any = q, k: Any = k, v: Any = v) -> Any:
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **told)

                name = f"{name} {str(dtype).removeprefix('torch.')}"
                found[name] = {"graph": median_ms(work), "call": call_ms(work)}
    return found


def candidates(n: int) -> list[Tile]:
    """The tile in use, and its neighbours."""
    used = tile_for(n, n, D, hopper=True, many_heads=True)
    changes: list[dict[str, Any]] = [{"stages": stages} for stages in (1, 2, 3, 4) if stages != used.stages]
    changes += [{"registers": limit} for limit in (None, 80, 96, 128, 160, 168) if limit != used.registers]
    if used.persistent:
        changes += [{"persistent": used.persistent + step} for step in (-1, 1)]
    return [used, *(dataclasses.replace(used, **change) for change in changes)]


def measure(n: int, kind: str, tune: bool) -> dict[str, Any]:
    peers = peers_ms(n, kind)
    batch = ROWS // (n * HEADS)
    (q, k, v), (theta, requant), (told, _) = integers(batch, n), parameters(n), mask_of(kind, batch, n)

    def ours(tile: Tile | None = None) -> Any:
        return attention(q, k, v, theta, requant, out="bfloat16", tile=tile, **told)

    tiles = {}
    for tile in candidates(n) if tune and kind == "plain" else []:
        check(n, tile)
        tiles[repr(tile)] = median_ms(lambda tile=tile: ours(tile))
    check(n, tile_for(n, n, D, hopper=True, many_heads=True))
    ms = median_ms(ours)
    called = call_ms(lambda: hccs.attention(q, k, v, theta, requant, out="bfloat16", **told))
    fastest, fastest_called = (min(peers, key=lambda name: peers[name][how]) for how in ("graph", "call"))
    moved = 5 * q.numel()  # q, k, v and two bytes of output
    return {
        "n": n,
        "kind": kind,
        "ms": ms,
        "fastest_peer": fastest,
        "peer_ms": peers[fastest]["graph"],
        "ratio": peers[fastest]["graph"] / ms,
        "terabytes_per_s": moved / ms * 1e-9,
        "call_ms": called,
        "fastest_peer_called": fastest_called,
        "peer_call_ms": peers[fastest_called]["call"],
        "call_ratio": peers[fastest_called]["call"] / called,
        "peers": peers,
        "tiles": tiles,
    }


def host() -> dict[str, float]:
    (q, k, v), (theta, requant) = integers(1, 64), parameters(64)
    halves = [x.bfloat16() for x in (q, k, v)]
    return {
        "hccs": host_us(lambda: hccs.attention(q, k, v, theta, requant, out="bfloat16")),
        "sdpa": host_us(lambda: torch.nn.functional.scaled_dot_product_attention(*halves)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, nargs="+", default=[64, 128, 256, 512, 2048])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--tune", action="store_true", help="time neighbouring block sizes too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    for kind, n in itertools.product(options.kinds, options.n):
        found = measure(n, kind, options.tune)
        results.append(found)
        print(
            f"{kind:6s} n={n:4d}  call: hccs {found['call_ms']:.4f} ms, "
            f"{found['fastest_peer_called']} {found['peer_call_ms']:.4f} ms, {found['call_ratio']:.2f}x  "
            f"graph: hccs {found['ms']:.4f} ms ({found['terabytes_per_s']:.2f} TB/s), "
            f"{found['fastest_peer']} {found['peer_ms']:.4f} ms, {found['ratio']:.2f}x",
            flush=True,
        )
        for tile, ms in sorted(found["tiles"].items(), key=lambda item: item[1]):
            print(f"        {ms:.4f} ms  {tile}")
    calls = host()
    print(f"host, per call: hccs {calls['hccs']:.0f} us, SDPA {calls['sdpa']:.0f} us")
    if options.json:
        facts = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "heads": HEADS,
            "d": D,
            "host_us": calls,
        }
        options.json.write_text(json.dumps({**facts, "rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
