"""How long does a whole encoder take on a GPU, all in integers, against torch in half precision?

    python benchmarks/encoder_gpu.py [--models MiniLM-L6 BERT-base] [--sizes 256x128 1024x32 64x512 32x128]
        [--sentences 65536] [--texts FILE] [--folder FOLDER] [--json FILE]

Mean-pooled vectors of models with random weights, which change no time. Both sides run as CUDA graphs. Ours
is the engine's own; calls of it, with the host's part in them, are timed beside. Torch's are captured here:
eager in float16, behind torch.compile in float16 and bfloat16, with SDPA, and torchao's int8 where it is
installed. A peer that fails is left out, and named. Every size is compared with the CPU engine, bit for bit,
on up to 32 rows. `--folder` keeps lowered models for the next time.

Sentences are the lines of `--texts`, else of embedding_texts.txt, as often as needed and in random order,
tokenised before: the shipped MiniLM against a float16 model of its shape, sorted by length, each in the size
of batches that it is fastest with.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import write_json

MOST_CHECKED = 32
"""Rows of a size that the CPU computes, too."""

BATCHES = (256, 1024)
"""Sentences that either side takes at a time."""

LONGEST = 512
"""Tokens that models are lowered for."""


class Unpadded(torch.nn.Module):
    """Unit vectors of token ids alone: no mask keeps SDPA from its fastest kernel."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(self.encoder(input_ids=ids)[0].mean(1))


def peers(encoder: Any) -> dict[str, Callable[[], Any]]:
    """How to make each of torch's models; those that another package makes may fail."""
    model = Unpadded(encoder)

    def half(dtype: torch.dtype, compiled: bool) -> Any:
        made = copy.deepcopy(model).to("cuda", dtype)
        return torch.compile(made, dynamic=False) if compiled else made

    def torchao() -> Any:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

        made = copy.deepcopy(model).to("cuda", torch.bfloat16)
        quantize_(made, Int8DynamicActivationInt8WeightConfig())
        return torch.compile(made, dynamic=False)

    return {
        "torch float16": lambda: half(torch.float16, False),
        "torch.compile float16": lambda: half(torch.float16, True),
        "torch.compile bfloat16": lambda: half(torch.bfloat16, True),
        "torchao int8": torchao,
    }


def captured(work: Callable[[], Any]) -> Callable[[], None]:
    """The work as a CUDA graph."""
    for _ in range(3):
        work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    replay: Callable[[], None] = graph.replay
    return replay


def cell(name: str, batch: int, n: int, folder: Path) -> dict[str, Any]:
    """One size of one model: milliseconds of all, and ours over the fastest."""
    import triton
    from encoder_variants import WHOLE, Variants, encoder, tokens

    from hccs.program import IntegerModel

    plain = encoder(None, name, "vectors")
    (folder / name).mkdir(parents=True, exist_ok=True)
    on_cpu = Variants(plain, LONGEST, folder / name, [WHOLE]).whole[WHOLE]
    ids = tokens(plain, batch, n)["input_ids"].cuda()
    model = IntegerModel(on_cpu.program, device="cuda")
    own = model(ids).scores
    few = ids[:MOST_CHECKED].cpu().numpy()
    equal = bool(np.array_equal(own[:MOST_CHECKED].cpu().numpy(), on_cpu(few).scores))

    def ms_of(work: Callable[[], Any]) -> float:
        return float(triton.testing.do_bench(work, rep=60, return_mode="median"))

    model(ids)  # captures
    called = ms_of(lambda: model(ids))
    (run,) = model._engine._runs.values()
    ms = {"hccs": ms_of(run)}
    left_out = {}
    for peer, make in peers(plain).items():
        torch.compiler.reset()  # else it compiles a few shapes of a function at most
        try:
            made = make()
            with torch.inference_mode():
                ms[peer] = ms_of(captured(lambda made=made: made(ids)))
            print(f"  {peer}: {ms[peer]:.3f} ms", flush=True)
        except Exception as error:  # whatever compilers raise
            left_out[peer] = f"{type(error).__name__}: {str(error)[:200]}"
    fastest = min((value for key, value in ms.items() if key != "hccs"), default=float("nan"))
    return {
        "model": name, "batch": batch, "n": n, "ms": ms, "called_ms": called, "ratio": fastest / ms["hccs"],
        "bits_equal": equal, "left_out": left_out,
    }  # fmt: skip


def sentences(count: int, texts: Path) -> dict[str, Any]:
    """Sentences per second of the shipped model and of a float16 one; all bits against the CPU."""
    from embedding_peers import with_pooling
    from encoder_variants import encoder, padded
    from hccs_minilm_l6 import PATH as shipped

    from hccs.program import IntegerModel
    from hccs.text.text_model import Reader

    on_cpu = IntegerModel.load(shipped)
    ours = IntegerModel(on_cpu.program, device="cuda")
    lines = texts.read_text(encoding="utf-8").splitlines()
    order = np.random.default_rng(0).permutation(-(-count // len(lines)) * len(lines))[:count] % len(lines)
    known = [encoding.ids for encoding in Reader(on_cpu.program, 256).read(lines)]
    rows = sorted((known[i] for i in order), key=len)
    batches = {size: [padded(rows[i : i + size]) for i in range(0, count, size)] for size in BATCHES}
    half = with_pooling(encoder(None, "MiniLM-L6", "vectors")).to("cuda", torch.float16)
    answers: dict[str, Callable[[dict[str, torch.Tensor]], Any]] = {
        "hccs": lambda b: ours(b["input_ids"], b["attention_mask"]).scores,
        "torch float16": lambda b: half(**b),
    }

    def run(name: str, size: int) -> float:
        seconds = []
        for _ in range(3):  # the first time compiles and captures
            begin = time.perf_counter()
            with torch.inference_mode():
                for batch in batches[size]:
                    answers[name]({key: value.cuda(non_blocking=True) for key, value in batch.items()})
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        return count / min(seconds)

    rates = {name: {size: run(name, size) for size in BATCHES} for name in answers}
    fast, slow = (max(found.values()) for found in rates.values())
    equal = 0
    for batch in batches[BATCHES[-1]]:
        found = answers["hccs"]({key: value.cuda() for key, value in batch.items()}).cpu().numpy()
        expected = on_cpu(batch["input_ids"].numpy(), batch["attention_mask"].numpy()).scores
        equal += int((found == expected).all(1).sum())
    return {
        "count": count, "different": len({*order.tolist()}), "tokens": sum(map(len, rows)),
        "per_second": rates, "ratio": fast / slow, "equal": equal, "bits_equal": equal == count,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["MiniLM-L6", "BERT-base"])
    parser.add_argument("--sizes", nargs="+", default=["256x128", "1024x32", "64x512", "32x128"])
    parser.add_argument("--sentences", type=int, default=65536)
    parser.add_argument("--texts", type=Path, default=Path(__file__).parent / "embedding_texts.txt")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("encoder_gpu.py needs a CUDA device: torch finds none.")
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "cells": []}
    with tempfile.TemporaryDirectory() as made:
        for name, size in itertools.product(given.models, given.sizes):
            row = cell(name, *map(int, size.split("x")), given.folder or Path(made))
            found["cells"].append(row)
            ms = ", ".join(f"{key} {value:.3f}" for key, value in row["ms"].items())
            print(f"{name} {size}: {row['ratio']:.2f}x, equal: {row['bits_equal']}; {ms}", flush=True)
            for peer, why in row["left_out"].items():
                print(f"  without {peer}: {why}")
            if given.json:
                write_json(given.json, found)
    if given.sentences:
        found["sentences"] = row = sentences(given.sentences, given.texts)
        print(f"sentences: {row['per_second']}, {row['ratio']:.2f}x, equal: {row['equal']}", flush=True)
    if given.json:
        write_json(given.json, found)


if __name__ == "__main__":
    main()
