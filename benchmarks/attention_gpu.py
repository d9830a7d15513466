"""Is integer attention on a GPU faster than the fastest SDPA of torch?

Ratios over its backends (flash, cuDNN, efficient, in float16 and bfloat16; SageAttention where installed) in
one run: int8 in, bfloat16 out, d = 64, a full GPU; all keys, batches padded to lengths from n / 4 to n,
causal rows, a mask with rows of its own, two lines, and a decoder's step. `hccs.attention` and SDPA are timed
as a user calls them, one call after the other, and beside that recorded in CUDA graphs, which leave out the
host's part.

    python benchmarks/attention_gpu.py [--n 64 128 ...] [--kinds plain ...] [--tune] [--json results.json]

`--n` without a number leaves all but the decoder's step and the host's part out.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from provenance import write_json
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.runtime.errors import PTXASError

import hccs
from hccs.backends.triton.attention.launch import attention
from hccs.backends.triton.attention.plans import Request, plan_for
from hccs.backends.triton.attention.tuning import Kernel, Tuning
from hccs.ops import arguments

HEADS, D = 16, 64
# Rows of q over all heads: 0.67 GB of int8 in and bfloat16 out at every n, far more than the caches hold.
ROWS = 1 << 21
KINDS = ["plain", "two lines", "causal", "two lines, causal", "padded", "mask"]
# A decoder's step: one query of each of 32 heads on 4,096 keys, in a batch of 8.
BATCH, DECODER_HEADS, KEYS = 8, 32, 4096
BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]


def graph_ms(work: Callable[[], Any], rep: int = 60) -> float:
    """Of calls recorded in a CUDA graph, without the host's part in them."""
    return triton.testing.do_bench_cudagraph(work, rep=rep, return_mode="median")


def call_ms(work: Callable[[], Any], rep: int = 60) -> float:
    """Of calls as a user makes them."""
    return triton.testing.do_bench(work, rep=rep, return_mode="median")


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


def parameters(n: int, lines: int = 1) -> tuple[hccs.HeadParams, hccs.Requant]:
    region = hccs.Region(n)
    reach = 40 if n <= 512 else 10
    slope = max(region.max_slope(reach), 0)
    theta = hccs.HeadParams(B=[region.max_base] * HEADS, S=[slope] * HEADS, D=[reach] * HEADS)
    if lines == 2:  # with uint8 scores
        theta = hccs.HeadParams([1023] * HEADS, 4, 50, 41, 20, 2)
    # Random int8 heads: q.k spreads over some 43000, logits over 13 to 130 steps, of which the last saturate.
    factors = hccs.FixedPoint.nearest([0.0003 + 0.0002 * head for head in range(HEADS)])
    return theta, hccs.Requant(factors, [0.01 + 0.001 * head for head in range(HEADS)])


def integers(batch: int, n: int) -> list[torch.Tensor]:
    return [torch.randint(-128, 128, (batch, HEADS, n, D), dtype=torch.int8, device="cuda") for _ in range(3)]


def expected(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    theta: hccs.HeadParams,
    requant: hccs.Requant,
    seen: Any,
) -> torch.Tensor:
    """N / Z of docs/spec.md in bfloat16, from integers in float64, which holds all of them."""
    packed = np.zeros((HEADS, 6), np.int64)
    packed[:, : theta.packed.shape[-1]] = theta.packed
    B, S, D1, S2, D2, f = torch.tensor(packed.T, device="cuda")[:, :, None, None]
    M, r = (torch.tensor(requant.packed[:, i], device="cuda").long()[:, None, None] for i in range(2))
    acc = (q.double() @ k.double().transpose(-1, -2)).long()
    x = ((acc * M + (1 << (r - 1))) >> r).clamp(-128, 127)
    distance = torch.where(seen, x, -128).amax(-1, keepdim=True) - x
    s = (B - S * torch.minimum(distance, D1) - S2 * torch.minimum(distance, D2)) >> f
    s = torch.where(seen, s, 0)
    quotient = (s.double() @ v.double()).float() / s.sum(-1, keepdim=True).float()
    return (quotient * torch.tensor(requant.v_scale, device="cuda")[:, None, None]).bfloat16()


def mask_of(kind: str, batch: int, n: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Which keys take part, as `hccs.attention` and as SDPA are told."""
    if kind.endswith("causal"):
        return {"causal": True}, {"is_causal": True}
    if kind == "mask":
        mask = torch.rand((batch, 1, n, n), device="cuda") < 0.6
        return {"valid": mask}, {"attn_mask": mask}
    if kind == "padded":
        lengths = torch.linspace(n // 4, n, batch, device="cuda").int().reshape(batch, 1, 1)
        return {"valid": lengths}, {"attn_mask": torch.arange(n, device="cuda") < lengths[..., None]}
    return {}, {}


def seen_by(told: dict[str, Any], batch: int, n: int) -> torch.Tensor:
    """The same for the first of the batch, as `expected` is told."""
    if "is_causal" in told:
        return torch.ones((n, n), dtype=torch.bool, device="cuda").tril()
    return told.get("attn_mask", torch.ones(batch, 1, 1, 1, dtype=torch.bool, device="cuda"))[:batch]


def peers_ms(n: int, kind: str) -> dict[str, dict[str, float]]:
    """Of every backend of SDPA: by calls, and in a graph."""
    found = {}
    shape = (ROWS // (n * HEADS), HEADS, n, D)
    _, told = mask_of(kind, shape[0], n)
    for dtype in (torch.bfloat16, torch.float16):
        q, k, v = (torch.randn(shape, dtype=dtype, device="cuda") for _ in range(3))
        for backend in BACKENDS:
            if "attn_mask" in told and backend == SDPBackend.FLASH_ATTENTION:
                continue  # takes no masks
            with sdpa_kernel([backend]), torch.no_grad():
                name = backend.name.removesuffix("_ATTENTION").lower()

                def work(q: Any = q, k: Any = k, v: Any = v) -> Any:
                    return torch.nn.functional.scaled_dot_product_attention(q, k, v, **told)

                times = {"call_ms": call_ms(work), "graph_ms": graph_ms(work)}
                found[f"{name} {str(dtype).removeprefix('torch.')}"] = times
        if sage := sage_attention(q, k, v, told):
            found[f"sage {str(dtype).removeprefix('torch.')}"] = {
                "call_ms": call_ms(sage),
                "graph_ms": graph_ms(sage),
            }
    return found


def sage_attention(q: Any, k: Any, v: Any, told: dict[str, Any]) -> Callable[[], Any] | None:
    """SageAttention's call, where it is installed and takes this mask."""
    try:
        sageattn = importlib.import_module("sageattention").sageattn
    except ImportError:
        return None
    if "attn_mask" in told:
        return None
    return lambda: sageattn(q, k, v, is_causal=told.get("is_causal", False))


def candidates(n: int, theta: hccs.HeadParams, requant: hccs.Requant) -> list[Tuning]:
    """The tuning in use for rows without a mask, and its neighbours."""
    shape = (ROWS // (n * HEADS), HEADS, n, D)
    request = Request(
        shape, HEADS, n, shape[:2], theta, requant, torch.device("cuda", torch.cuda.current_device()),
        dtype=torch.bfloat16, dense=True, aligned=True,
    )  # fmt: skip
    used = plan_for(request).tuning
    changes: list[dict[str, Any]] = [{"stages": stages} for stages in (1, 2, 3, 4) if stages != used.stages]
    changes += [{"registers": limit} for limit in (None, 80, 96, 128, 160, 168) if limit != used.registers]
    if used.persistent:
        changes += [{"persistent": used.persistent + step} for step in (-1, 1)]
    return [used, *(dataclasses.replace(used, **change) for change in changes)]


def measure(n: int, kind: str, tune: bool) -> dict[str, Any]:
    peers = peers_ms(n, kind)
    batch = ROWS // (n * HEADS)
    lines = 2 if kind.startswith("two lines") else 1
    (q, k, v), (theta, requant) = integers(batch, n), parameters(n, lines)
    told, of_peers = mask_of(kind, batch, n)
    some = min(batch, 2)
    right = expected(q[:some], k[:some], v[:some], theta, requant, seen_by(of_peers, some, n))

    def ours() -> Any:
        return hccs.attention(q, k, v, theta, requant, out="bfloat16", **told)

    def tuned(tuning: Tuning) -> Any:
        valid = told.get("valid")
        masking = arguments.NO_MASK if valid is None else arguments.kind_of(valid)
        causal = told.get("causal", False)
        return attention(q, k, v, theta, requant, masking, valid, causal, out="bfloat16", tuning=tuning)

    tunings = {}
    for tuning in candidates(n, theta, requant) if tune and kind == "plain" else []:
        try:
            assert torch.equal(tuned(tuning)[:some], right), tuning
        except PTXASError:  # too few registers
            continue
        tunings[repr(tuning)] = graph_ms(lambda tuning=tuning: tuned(tuning))
    assert torch.equal(ours()[:some], right), (n, kind)
    times = {"call_ms": call_ms(ours), "graph_ms": graph_ms(ours)}
    fastest = {way: min(peers, key=lambda name, way=way: peers[name][way]) for way in times}
    moved = 5 * q.numel()  # q, k, v and two bytes of output
    return {
        "n": n,
        "kind": kind,
        **times,
        "fastest_peer": fastest,
        "ratio": {way: peers[fastest[way]][way] / ms for way, ms in times.items()},
        "terabytes_per_s": moved / times["graph_ms"] * 1e-9,
        "peers": peers,
        "tunings": tunings,
    }


def candidates_for_one_query() -> list[Tuning]:
    """A program per head, by warps, keys of a block and blocks ahead; before those the split over keys."""
    sizes = [(8, 256, 2), (8, 256, 1), (8, 256, 3), (16, 256, 2), (16, 256, 4), (16, 512, 2), (8, 128, 4)]
    return [
        Tuning(Kernel.SPLIT_KEYS, 16, 128, stages=4, split=2048),
        *(
            Tuning(Kernel.ONE_QUERY, 1, keys, warps=w, stages=ahead, registers=128)
            for w, keys, ahead in sizes
        ),
    ]


def decode(tune: bool) -> dict[str, Any]:
    """A decoder's step, over a cache in int8 against one in bfloat16."""
    q, k, v = (
        torch.randint(-128, 128, (BATCH, DECODER_HEADS, n, D), dtype=torch.int8, device="cuda")
        for n in (1, KEYS, KEYS)
    )
    theta = hccs.HeadParams([1023] * DECODER_HEADS, 4, 50, 41, 20, 2)
    requant = hccs.Requant(hccs.FixedPoint.nearest([0.0004] * DECODER_HEADS), 0.01)
    peers = {}
    halves = [x.bfloat16() for x in (q, k, v)]
    for backend in BACKENDS:
        with sdpa_kernel([backend]), torch.no_grad():

            def work() -> Any:
                return torch.nn.functional.scaled_dot_product_attention(*halves)

            name = backend.name.removesuffix("_ATTENTION").lower()
            peers[name] = {"call_ms": call_ms(work), "graph_ms": graph_ms(work)}

    def ours() -> Any:
        return hccs.attention(q, k, v, theta, requant, out="bfloat16")

    def tuned(tuning: Tuning) -> Any:
        return attention(q, k, v, theta, requant, out="bfloat16", tuning=tuning)

    tunings = {}
    for tuning in candidates_for_one_query() if tune else []:
        assert torch.equal(tuned(tuning), ours()), tuning
        tunings[repr(tuning)] = graph_ms(lambda tuning=tuning: tuned(tuning), rep=30)
    times = {"call_ms": call_ms(ours), "graph_ms": graph_ms(ours)}
    ratio = {way: min(peer[way] for peer in peers.values()) / ms for way, ms in times.items()}
    facts = {"batch": BATCH, "heads": DECODER_HEADS, "keys": KEYS}
    return {**facts, **times, "ratio": ratio, "peers": peers, "tunings": tunings}


def host() -> dict[str, float]:
    (q, k, v), (theta, requant) = integers(1, 64), parameters(64)
    halves = [x.bfloat16() for x in (q, k, v)]
    lengths = np.array([[[50]]])
    return {
        "hccs": host_us(lambda: hccs.attention(q, k, v, theta, requant, out="bfloat16")),
        "hccs, lengths on the host": host_us(
            lambda: hccs.attention(q, k, v, theta, requant, valid=lengths, out="bfloat16")
        ),
        "sdpa": host_us(lambda: torch.nn.functional.scaled_dot_product_attention(*halves)),
    }


def print_tunings(tunings: dict[str, float]) -> None:
    for tuning, ms in sorted(tunings.items(), key=lambda item: item[1]):
        print(f"        {ms:.4f} ms  {tuning}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, nargs="*", default=[64, 128, 256, 512, 2048])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--tune", action="store_true", help="time neighbouring block sizes too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    step, calls = decode(options.tune), host()
    print(
        f"one query on {KEYS} keys: hccs {step['call_ms']:.4f} ms, in a graph {step['graph_ms']:.4f}; over "
        f"SDPA {step['ratio']['call_ms']:.2f}x, in graphs {step['ratio']['graph_ms']:.2f}x",
        flush=True,
    )
    print_tunings(step["tunings"])
    print("host, per call: " + ", ".join(f"{name} {taken:.0f} us" for name, taken in calls.items()))
    facts = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "heads": HEADS,
        "d": D,
        "host_us": calls,
        "decode": step,
    }
    results: list[dict[str, Any]] = []
    for kind, n in itertools.product(options.kinds, options.n):
        found = measure(n, kind, options.tune)
        results.append(found)
        print(
            f"{kind:17s} n={n:4d}  hccs {found['call_ms']:.4f} ms, in a graph {found['graph_ms']:.4f} "
            f"({found['terabytes_per_s']:.2f} TB/s); over {found['fastest_peer']['call_ms']} "
            f"{found['ratio']['call_ms']:.2f}x, in graphs {found['ratio']['graph_ms']:.2f}x",
            flush=True,
        )
        print_tunings(found["tunings"])
        if options.json:  # as they come: a run that is cut off keeps what it has measured
            write_json(options.json, {**facts, "rows": results})


if __name__ == "__main__":
    main()
