"""How long does an encoder of ModernBERT's shape take on a CPU, against OpenVINO's static int8?

    python benchmarks/modernbert_cpu.py [--layers 22] [--sizes 1x128 8x128] [--turns 9] [--json FILE]

The weights are random, which changes no time: hidden 768, 12 heads, gated layers of 1,152, two local layers
after each global one. Both answer with the scores of a sequence, on one thread, and take turns; the table
shows the fastest turn of each. OpenVINO compiles a model for each very size. Needs openvino and nncf.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from provenance import write_json

import hccs
import hccs.nn
from hccs_lab.bench.contenders import static_int8_openvino

LONGEST = 128
OURS, PEER = "hccs, all integers", "OpenVINO static int8"


def encoder(layers: int) -> Any:
    torch.manual_seed(0)
    config = transformers.ModernBertConfig(
        num_hidden_layers=layers, vocab_size=8192, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    return transformers.ModernBertForSequenceClassification(config).eval()


def tokens(batch: int, length: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 8192, (batch, length), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def in_openvino(model: Any, batch: dict[str, Any]) -> Callable[[], Any]:
    import openvino

    sized = model.clone()
    sized.reshape({part.any_name: list(batch[part.any_name].shape) for part in sized.inputs})
    settings = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.Core().compile_model(sized, "CPU", settings).create_infer_request()
    return lambda: request.infer(batch, share_inputs=True)


def fastest(calls: dict[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """The least milliseconds of each, which take turns."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(turns):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            found[name] = min(found[name], 1000 * (time.perf_counter() - began))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--sizes", nargs="+", default=["1x128", "8x128"])
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = encoder(options.layers)
    batches = [tokens(4, LONGEST, seed) for seed in range(2)]
    table = hccs.calibrate(hccs.nn.collect(model, batches, n=LONGEST), n=LONGEST)
    whole = hccs.nn.lower(model, table, batches)
    arrays = [{name: value.numpy() for name, value in batch.items()} for batch in batches]
    peer = static_int8_openvino(model, arrays)
    rows = []
    print(f"| batch x tokens | {OURS}, ms | {PEER}, ms | times as fast |\n|---|---|---|---|")
    for size in options.sizes:
        count, length = map(int, size.split("x"))
        batch = {name: value.numpy() for name, value in tokens(count, length, 9).items()}
        ids, mask = batch["input_ids"], batch["attention_mask"]
        assert np.array_equal(
            whole(ids[:1], mask[:1]).scores, whole(ids[:1], mask[:1], reference=True).scores
        )
        calls = {OURS: lambda ids=ids, mask=mask: whole(ids, mask, threads=1), PEER: in_openvino(peer, batch)}
        found = fastest(calls, options.turns)
        rows.append({"size": size, **found, "ratio": found[PEER] / found[OURS]})
        print(f"| {size} | {found[OURS]:.1f} | {found[PEER]:.1f} | {rows[-1]['ratio']:.2f} |", flush=True)
    if options.json:
        write_json(options.json, {"layers": options.layers, "rows": rows})


if __name__ == "__main__":
    main()
