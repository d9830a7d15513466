"""How fast does a language model in integers read a prompt and write on a CPU, beside llama.cpp's Q8_0?

    python benchmarks/generate_cpu.py --gguf FILE.gguf [--program FILE.hccs] [--threads 1,2]
        [--prompt 256] [--new 64] [--turns 5] [--megabytes 512] [--json FILE]

The GGUF file, of any quantisation that the package gguf reads, is expanded and quantised to Q8_0 for
llama.cpp (the wheel of xllamacpp, whose kernels may stop at AVX2; the JSON file says what they use). Its
server's own timings count, without tokenizing or HTTP. The program is a lowered model of the same weights;
without one it is of random weights, GPT-2-shaped with as many products per token and as many scores as
SmolLM2-135M, and the JSON file says so. Both read the same tokens, then write by the largest score.
They take turns, and the median of the turns counts.

- prefill: tokens of the prompt per second, up to the scores after it.
- decode: tokens written per second, Python and the choice of the token included for ours.
- bandwidth: the largest rate at which so many threads read int8 rows from memory here, as a search over
  vectors does, and the share of it that the weights of a decoded token make up.
- overhead: the part of a decoded token that is not the engine's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from provenance import write_json

from hccs.backends.cpu import instruction_sets as isa
from hccs.numbers.heads import HeadParams
from hccs.numbers.layers import INT8_LIMIT, INT16_LIMIT, EmbeddingParams, LinearParams, NormParams
from hccs.numbers.requant import FixedPoint, Requant
from hccs.ops.top_k import top_k
from hccs.program import IntegerModel, Program
from hccs.program import operators as op

WORDS, LONGEST = 49152, 1024
RANDOM = "random weights, GPT-2-shaped with the products per token of SmolLM2-135M"
LLAMA = "llama.cpp Q8_0"


def random_model(h: int = 576, heads: int = 9, wide: int = 1920, layers: int = 30) -> Program:
    """As many products per token as SmolLM2-135M: 30 layers of 3.54 million, and 49,152 scores."""
    rng = np.random.default_rng(0)

    def layer(outputs: int, inputs: int, limit: int = INT8_LIMIT) -> LinearParams:
        weight = rng.integers(-127, 128, (outputs, inputs), np.int8)
        multiplier = np.full(outputs, max(int(2**16 * limit / (2.5 * 73 * 60 * inputs**0.5)), 1), np.int32)
        return LinearParams(weight, np.zeros(outputs, np.int32), multiplier, limit, 128)

    def norm() -> NormParams:
        return NormParams(rng.integers(2**15, 2**20, h).astype(np.int32), np.zeros(h, np.int32), 8, 1000)

    words = rng.integers(-127, 128, (WORDS, h), np.int8)
    positions = rng.integers(-9000, 9000, (LONGEST, h)).astype(np.int16)
    embedding = EmbeddingParams(words, positions, np.zeros((1, h), np.int16), 6)
    steps: list[op.Operator] = [op.Embed("x0", embedding, limit=INT16_LIMIT)]
    theta = HeadParams(*(np.full(heads, v) for v in (20000, 100, 127, 50, 40, 0)))
    requant = Requant(FixedPoint(2**14, 24), 1.0, FixedPoint(2**23, 22))
    for i in range(layers):
        steps += [
            op.LayerNorm((f"x{i}",), f"n{i}", norm()),
            op.Narrow((f"n{i}",), f"a{i}", 7),
            op.Linear((f"a{i}",), f"qkv{i}", layer(3 * h, h)),
            op.Attention((f"qkv{i}",), f"c{i}", theta, requant, causal=True),
            op.Linear((f"c{i}",), f"p{i}", layer(h, h, INT16_LIMIT)),
            op.Add((f"x{i}", f"p{i}"), f"y{i}", INT16_LIMIT),
            op.LayerNorm((f"y{i}",), f"m{i}", norm()),
            op.Narrow((f"m{i}",), f"b{i}", 7),
            op.Linear((f"b{i}",), f"w{i}", layer(wide, h)),
            op.Table((f"w{i}",), f"t{i}", np.arange(-128, 128).clip(0).astype(np.int8)),
            op.Linear((f"t{i}",), f"q{i}", layer(h, wide, INT16_LIMIT)),
            op.Add((f"y{i}", f"q{i}"), f"x{i + 1}", INT16_LIMIT),
        ]
    last = f"x{layers}"
    head = LinearParams(words, np.zeros(WORDS, np.int32), None, INT8_LIMIT, 128)
    steps += [
        op.LayerNorm((last,), "last", norm()),
        op.Narrow(("last",), "last8", 7),
        op.Linear(("last8",), "scores", head),
    ]
    return Program(tuple(steps), tuple(map(str, range(WORDS))), LONGEST, 1e-5)


def as_q8_0(source: Path, out: Path) -> None:
    """A GGUF file whose matrices are Q8_0, by the package's own quantiser."""
    import gguf
    from gguf.quants import dequantize, quantize

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    left_out = ("general.architecture", "general.file_type", "general.quantization_version")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in left_out:
            continue
        array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if array else None)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    kind = gguf.GGMLQuantizationType.Q8_0
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Llama:
    """llama.cpp on so many threads."""

    def __init__(self, path: Path, threads: int, prompt: list[int], new: int) -> None:
        import xllamacpp

        options = xllamacpp.CommonParams()
        options.model.path, options.verbosity = str(path), -1
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
        options.n_parallel, options.n_ctx = 1, len(prompt) + new + 64
        options.n_batch = options.n_ubatch = options.n_ctx
        self._prompt, self._new = prompt, new
        self._server = xllamacpp.Server(options)

    def turn(self) -> dict[str, float]:
        asked = {
            "prompt": self._prompt,
            "n_predict": self._new,
            "temperature": 0,
            "cache_prompt": False,
            "ignore_eos": True,
        }
        timed = self._server.handle_completions(asked)["timings"]
        return {
            "prefill": timed["prompt_n"] / timed["prompt_ms"] * 1e3,
            "decode": (timed["predicted_n"] - 1) / timed["predicted_ms"] * 1e3,
        }


class Ours:
    """The integer model on so many threads."""

    def __init__(self, model: IntegerModel, threads: int, prompt: list[int], new: int) -> None:
        self._model, self._threads, self._prompt, self._new = model, threads, prompt, new

    def turn(self) -> dict[str, float]:
        model, cache, prompt = self._model, self._model.cache(), self._prompt
        began = time.perf_counter()
        model.extend(cache, [prompt], threads=self._threads)
        prefill = time.perf_counter() - began
        moments: list[float] = []
        engine = TimedEngine(model._engine)
        model._engine = engine
        try:
            model.generate(
                [prompt],
                max_new_tokens=self._new,
                threads=self._threads,
                on_token=lambda *_: moments.append(time.perf_counter()),
            )
        finally:
            model._engine = engine.engine
        spent = moments[-1] - moments[0]
        inside = sum(engine.seconds[1:])
        return {
            "prefill": len(prompt) / prefill,
            "decode": (self._new - 1) / spent,
            "overhead": 1 - inside / spent,
        }


class TimedEngine:
    """An engine whose calls are timed."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.seconds: list[float] = []

    def extend(self, *given: Any) -> Any:
        began = time.perf_counter()
        scores = self.engine.extend(*given)
        self.seconds.append(time.perf_counter() - began)
        return scores


def bandwidth(threads: int, megabytes: int) -> float:
    """Bytes per second of int8 rows that are read from memory, the best of a few passes."""
    rows = np.ones((megabytes << 10, 1024), np.int8)
    query = np.ones((1, 1024), np.int8)
    best = min(_seconds(lambda: top_k(rows, query, 1, threads=threads)) for _ in range(8))
    return rows.nbytes / best


def _seconds(call: Any) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def weight_bytes(program: Program) -> int:
    """Bytes of weights that a decoded token reads."""
    return sum(step.params.weight.nbytes for step in program.operators if isinstance(step, op.Linear))


def measure(
    model: IntegerModel, gguf: Path | None, threads: int, given: argparse.Namespace
) -> dict[str, Any]:
    words = min(model.program.embed.vocabulary, 20000)
    prompt = np.random.default_rng(1).integers(words // 20, words, given.prompt).tolist()
    contenders: dict[str, Any] = {"hccs": Ours(model, threads, prompt, given.new)}
    if gguf is not None:
        contenders[LLAMA] = Llama(gguf, threads, prompt, given.new)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for turn in range(given.turns + 1):
        for name, contender in contenders.items():
            timed = contender.turn()
            if turn:  # the first one warms up
                found[name].append(timed)
    rates = {
        name: {part: statistics.median(one[part] for one in timed) for part in ("prefill", "decode")}
        for name, timed in found.items()
    }
    read, decode = bandwidth(threads, given.megabytes), rates["hccs"]["decode"]
    row: dict[str, Any] = {
        "threads": threads,
        "tokens_per_second": rates,
        "bandwidth": read,
        "share_of_bandwidth": weight_bytes(model.program) * decode / read,
        "overhead": statistics.median(one["overhead"] for one in found["hccs"]),
    }
    if gguf is not None:
        row["over"] = {part: rates["hccs"][part] / rates[LLAMA][part] for part in ("prefill", "decode")}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--threads", default="1,2")
    for name, default in (("prompt", 256), ("new", 64), ("turns", 5), ("megabytes", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    model = IntegerModel.load(given.program) if given.program else IntegerModel(random_model())
    rows, kernels = [], ""
    with tempfile.TemporaryDirectory() as folder:
        quantised = None
        if given.gguf is not None:
            import xllamacpp

            kernels = str(xllamacpp.get_system_info()).strip()
            quantised = Path(folder) / "q8_0.gguf"
            as_q8_0(given.gguf, quantised)
        for threads in map(int, given.threads.split(",")):
            rows.append(measure(model, quantised, threads, given))
            print(json.dumps(rows[-1]), flush=True)
    weights = given.program.name if given.program else RANDOM
    if given.json:
        found = {"weights": weights, "isa": isa.info().isa, "llama_kernels": kernels, "rows": rows}
        write_json(given.json, {**found, "prompt": given.prompt, "new": given.new})
    print(f"{weights}; {isa.info().isa}; {kernels}", file=sys.stderr)


if __name__ == "__main__":
    main()
