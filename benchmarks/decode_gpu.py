"""Does generation with HCCS attention on a GPU keep up with SDPA, and does a growing cache stall it?

    python benchmarks/decode_gpu.py [--batch 8] [--prompt 32] [--new 512] [--turns 3] [--layers 30]
        [--longest 1024] [--json FILE]

SmolLM2-135M's shape in bfloat16 with random weights, which change no time, written by `model.generate()`:
with SDPA and a cache in bfloat16, with the same but without cuDNN, which plans every length that it has not
seen, with `hccs.nn.attach(..., backend="integer")` and its int8 cache, and with these inside
`hccs.nn.recorded_steps`. They take turns, and the median counts; ratios are over the faster SDPA.

- per_token: milliseconds of a step of generation, from one choice of tokens to the next.
- lengths: what the host takes for `hccs.attention` of one query over a cache that grows by a key with every
  call, against the same calls made once more; of both the median and the mean, in microseconds. Kernels
  are compiled before, once and for good.
- stalls: the lengths whose first call took more than 1.5 times the median of those made before.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import write_json
from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList

import hccs
import hccs.nn

HEADS, KV_HEADS, D = 9, 3, 64
SHAPE: dict[str, Any] = {
    "vocab_size": 49152, "hidden_size": HEADS * D, "intermediate_size": 1536, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "max_position_embeddings": 2048, "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}  # fmt: skip


def table(layers: int, longest: int) -> hccs.ParamTable:
    """Two lines with int16 scores, as decoders are served."""
    ones = np.ones((layers, HEADS), np.int64)
    return hccs.ParamTable(
        B=3500 * ones, S=2 * ones, D=50 * ones, S2=110 * ones, D2=30 * ones, f=0 * ones, scale=0.1 * ones,
        n=longest, qkv_scale=np.full((layers, HEADS, 3), 0.02),
    )  # fmt: skip


OWN, RECORDED, SDPA, PLAIN_SDPA = "hccs", "hccs recorded", "sdpa", "sdpa without cuDNN"


def models(layers: int, longest: int) -> dict[str, Any]:
    """The model with SDPA and the same with HCCS, each twice."""
    config = LlamaConfig(**SHAPE, num_hidden_layers=layers, attn_implementation="sdpa")
    found = {}
    for name in (SDPA, OWN):
        with torch.device("cuda"):
            model = LlamaForCausalLM(copy.deepcopy(config))
        found[name] = model.to(torch.bfloat16).eval()
    hccs.nn.attach(found[OWN], table(layers, longest), backend="integer")
    return {**found, RECORDED: found[OWN], PLAIN_SDPA: found[SDPA]}


class Clock(StoppingCriteria):  # type: ignore[misc]
    """Stops nothing, and looks at the clock once a step."""

    def __init__(self) -> None:
        self.moments: list[float] = []

    def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
        self.moments.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def per_token(name: str, model: Any, prompts: torch.Tensor, mask: torch.Tensor, new: int) -> np.ndarray:
    """Milliseconds of each step after the first, which reads the prompts."""
    clock = Clock()
    torch.backends.cuda.enable_cudnn_sdp(name != PLAIN_SDPA)
    with hccs.nn.recorded_steps(model) if name == RECORDED else nullcontext():
        model.generate(
            prompts, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0,
            eos_token_id=None, stopping_criteria=StoppingCriteriaList([clock]),
        )  # fmt: skip
    torch.cuda.synchronize()
    clock.moments.append(time.perf_counter())
    return np.diff(clock.moments) * 1e3


def generation(contenders: dict[str, Any], given: argparse.Namespace, padded: bool) -> dict[str, Any]:
    """Milliseconds a token of all, by turns of whole generations."""
    prompts = torch.randint(1, SHAPE["vocab_size"], (given.batch, given.prompt), device="cuda")
    mask = torch.ones_like(prompts)
    if padded:  # on the left, every text by another number of tokens
        lengths = torch.linspace(given.prompt // 4, given.prompt, given.batch, device="cuda").int()
        mask = (torch.arange(given.prompt, device="cuda") >= given.prompt - lengths[:, None]).long()
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    slowest: dict[str, float] = {}
    for name, model in contenders.items():  # compiles, ours for every class of lengths
        per_token(name, model, prompts, mask, given.new if name in (OWN, RECORDED) else min(given.new, 16))
    for turn in range(given.turns):
        for name, model in contenders.items():
            steps = per_token(name, model, prompts, mask, given.new)
            turns[name].append(float(steps.mean()))
            slowest[name] = float(steps.max())
            print(f"padded {padded}, turn {turn}, {name}: {turns[name][-1]:.3f} ms a token", flush=True)
    median = {name: statistics.median(found) for name, found in turns.items()}
    ratio = {name: min(median[SDPA], median[PLAIN_SDPA]) / median[name] for name in (OWN, RECORDED)}
    return {"padded": padded, "ms": median, "ratio": ratio, "slowest_ms": slowest}


def lengths(batch: int, longest: int) -> dict[str, Any]:
    """Host time of calls over a cache that grows, on lengths not seen before and on the same once more."""
    q = torch.randint(-128, 128, (batch, HEADS, 1, D), dtype=torch.int8, device="cuda")
    found: dict[str, list[float]] = {"unseen": [], "seen": []}
    theta = table(2, longest).layer(0)
    requant = hccs.Requant(hccs.FixedPoint.nearest([0.0004] * HEADS), 0.01)
    room = torch.randint(-128, 128, (2, batch, KV_HEADS, longest, D), dtype=torch.int8, device="cuda")
    for n in (1, *(1 << i for i in range(6, longest.bit_length()))):  # compiles, for parameters of their own
        hccs.attention(q, *room[:, :, :, :n], table(2, longest).layer(1), requant, out="bfloat16")
    for name in found:
        for n in range(1, longest + 1):
            k, v = room[0, :, :, :n], room[1, :, :, :n]
            torch.cuda.synchronize()
            began = time.perf_counter()
            hccs.attention(q, k, v, theta, requant, out="bfloat16")
            found[name].append((time.perf_counter() - began) * 1e6)
    seen, unseen = (np.array(found[name]) for name in ("seen", "unseen"))
    return {
        "median_us": {name: statistics.median(calls) for name, calls in found.items()},
        "mean_us": {name: statistics.fmean(calls) for name, calls in found.items()},
        "ratio": {
            "median": float(np.median(unseen) / np.median(seen)),
            "mean": float(unseen.mean() / seen.mean()),
        },
        "stalls": [int(n) + 1 for n in np.flatnonzero(unseen > 1.5 * np.median(seen))],
        "stalls_when_seen": int((seen > 1.5 * np.median(seen)).sum()),
        "slowest_us": float(unseen.max()),
    }


SIZES = {"batch": 8, "prompt": 32, "new": 512, "turns": 3, "layers": 30, "longest": 1024}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("decode_gpu.py needs a CUDA device: torch finds none.")
    sizes = {name: getattr(given, name) for name in SIZES}
    found: dict[str, Any] = {"lengths": lengths(given.batch, given.longest), "generation": [], **sizes}
    print({name: value for name, value in found["lengths"].items() if name != "stalls"}, flush=True)
    contenders = models(given.layers, given.longest)
    for padded in (False, True):
        found["generation"].append(generation(contenders, given, padded))
        print(found["generation"][-1], flush=True)
        if given.json:
            write_json(given.json, found)


if __name__ == "__main__":
    main()
