"""How fast does a language model in integers read prompts and write on a GPU, beside torch in half precision?

    python benchmarks/generate_gpu.py [--batches 1 8 64] [--prompt 256] [--new 64] [--turns 5] [--layers 30]
        [--json FILE]

Both have random weights, which change no time, and the shape of generate_cpu.py's random model: GPT-2's, with
as many products per token as SmolLM2-135M. Torch's is written here for speed: float16, SDPA, keys and values
in tensors made before, a CUDA graph for the prompt and one for every step, which attends to as many keys as
there are. Ours is what a user calls. Both choose the largest score. They take turns, and the median counts.

- prefill: tokens of prompts per second, up to the first choice.
- decode: tokens written per second by all texts of a batch, Python included for ours.
- bits_equal: up to 8 texts of a batch are drawn by the CPU engine, too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from generate_cpu import LONGEST, WORDS, random_model
from provenance import write_json
from torch.nn import functional

from hccs.program import IntegerModel

MOST_CHECKED = 8
WIDTH, HEADS, WIDE = 576, 9, 1920


class Half:
    """The model in float16: the scores after a prompt, and after each new token."""

    def __init__(self, layers: int, batch: int, prompt: int, new: int) -> None:
        def weight(outputs: int, inputs: int) -> torch.Tensor:
            return torch.randn(outputs, inputs, device="cuda", dtype=torch.float16) * 0.02

        shapes = {
            "qkv": (3 * WIDTH, WIDTH),
            "out": (WIDTH, WIDTH),
            "up": (WIDE, WIDTH),
            "down": (WIDTH, WIDE),
        }
        self._layers = [{name: weight(*shape) for name, shape in shapes.items()} for _ in range(layers)]
        self._words, self._positions = weight(WORDS, WIDTH), weight(LONGEST, WIDTH)
        room = (layers, 2, batch, HEADS, prompt + new, WIDTH // HEADS)
        self._cache = torch.zeros(room, device="cuda", dtype=torch.float16)
        self._ids = torch.zeros((batch, prompt), device="cuda", dtype=torch.int64)
        self._last = torch.zeros((batch, 1), device="cuda", dtype=torch.int64)
        self._prefill = self._captured(lambda: self._run(self._ids, 0))
        ends = range(prompt, prompt + new - 1)
        self._steps = [self._captured(lambda past=past: self._run(self._last, past)) for past in ends]

    @torch.inference_mode()
    def _run(self, ids: torch.Tensor, past: int) -> None:
        n = ids.shape[1]
        x = functional.embedding(ids, self._words) + self._positions[past : past + n]
        for layer, cache in zip(self._layers, self._cache, strict=True):
            y = functional.layer_norm(x, (WIDTH,))
            q, k, v = (
                functional.linear(y, layer["qkv"]).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2)
            ).chunk(3, 1)
            cache[0, :, :, past : past + n], cache[1, :, :, past : past + n] = k, v
            keys, values = cache[:, :, :, : past + n]
            y = functional.scaled_dot_product_attention(q, keys, values, is_causal=n > 1)
            x = x + functional.linear(y.transpose(1, 2).flatten(2), layer["out"])
            y = functional.relu(functional.linear(functional.layer_norm(x, (WIDTH,)), layer["up"]))
            x = x + functional.linear(y, layer["down"])
        scores = functional.linear(functional.layer_norm(x[:, -1:], (WIDTH,)), self._words)
        self._last.copy_(scores.argmax(-1))

    def _captured(self, work: Callable[[], None]) -> Any:
        stream: Any = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            work()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return graph

    def turn(self, prompts: np.ndarray) -> tuple[float, float]:
        """Seconds of the prompts, and of all steps after them."""
        began = time.perf_counter()
        self._ids.copy_(torch.from_numpy(prompts))
        self._prefill.replay()
        self._last.tolist()
        read = time.perf_counter()
        for step in self._steps:
            step.replay()
            self._last.tolist()  # a text may end with any token
        return read - began, time.perf_counter() - read


class Ours:
    """The integer model, as a user calls it."""

    def __init__(self, model: IntegerModel, new: int) -> None:
        self._model, self._new = model, new

    def turn(self, prompts: np.ndarray) -> tuple[float, float]:
        moments: list[float] = []
        began = time.perf_counter()
        self._model.generate(
            prompts, max_new_tokens=self._new, on_token=lambda *_: moments.append(time.perf_counter())
        )
        first = moments[len(prompts) - 1]
        return first - began, moments[-1] - first


def same_bits(model: IntegerModel, on_cpu: IntegerModel, prompts: np.ndarray) -> bool:
    options: dict[str, Any] = {"max_new_tokens": 8, "temperature": 1.0, "seed": 1}
    found = model.generate(prompts, **options).tokens[:MOST_CHECKED]
    return bool(found == on_cpu.generate(prompts[:MOST_CHECKED], **options).tokens)


def measure(
    model: IntegerModel, on_cpu: IntegerModel, batch: int, given: argparse.Namespace
) -> dict[str, Any]:
    prompts = np.random.default_rng(batch).integers(0, WORDS, (batch, given.prompt))
    contenders: dict[str, Any] = {
        "hccs": Ours(model, given.new),
        "torch float16": Half(given.layers, batch, given.prompt, given.new),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for turn in range(given.turns + 2):
        for name, contender in contenders.items():
            seconds = contender.turn(prompts)
            if turn > 1:  # the first ones compile, capture and warm up
                found[name].append(seconds)
    rates = {}
    for name, turns in found.items():
        read, wrote = (statistics.median(part) for part in zip(*turns, strict=True))
        rates[name] = {"prefill": batch * given.prompt / read, "decode": batch * (given.new - 1) / wrote}
    ours, torchs = rates.values()
    return {
        "batch": batch, "tokens_per_second": rates,
        "over": {part: ours[part] / torchs[part] for part in ours},
        "bits_equal": same_bits(model, on_cpu, prompts),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    for name, default in (("prompt", 256), ("new", 64), ("turns", 5), ("layers", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("generate_gpu.py needs a CUDA device: torch finds none.")
    on_cpu = IntegerModel(random_model(WIDTH, HEADS, WIDE, given.layers))
    model, rows = IntegerModel(on_cpu.program, device="cuda"), []
    for batch in given.batches:
        rows.append(row := measure(model, on_cpu, batch, given))
        parts = ", ".join(
            f"{part} {row['tokens_per_second']['hccs'][part]:,.0f}/s, {row['over'][part]:.2f}x"
            for part in row["over"]
        )
        print(f"{batch} texts: {parts}, equal: {row['bits_equal']}", flush=True)
    if given.json:
        sizes = {name: getattr(given, name) for name in ("prompt", "new", "layers")}
        write_json(given.json, {"device": torch.cuda.get_device_name(), "rows": rows, **sizes})


if __name__ == "__main__":
    main()
