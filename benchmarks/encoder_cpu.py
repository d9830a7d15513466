"""How long does a whole encoder take on one thread? BERT-small in float32 and dynamic int8, in torch and in
ONNX Runtime, with their own attention and with ours.

    python benchmarks/encoder_cpu.py [--model FOLDER] [--lengths 64,128,512] [--batches 1,8] [--json FILE]

Without a folder the weights are random: they change no time. All variants of one size are timed in turns, so
that a busy moment of the machine hits all of them; the table shows the fastest turn of each and its speed
relative to torch float32.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hccs
import hccs.nn
from hccs.export.onnx_model import export_onnx
from hccs.nn import AttentionInputs, AttentionSlot, attention_layers, fill

PEERS = ("torch float32", "torch dynamic int8", "ONNX Runtime float32", "ONNX Runtime dynamic int8")
OURS = (
    "torch float32, integer attention",
    "torch dynamic int8, integer attention",
    "ONNX Runtime float32, HCCS",
    "ONNX Runtime dynamic int8, HCCS",
)
TURNS = 5
SECONDS_PER_TURN = 0.08
SLOW = 1.0  # seconds of a call after which one turn more is enough


def encoder(folder: str | None) -> Any:
    """BERT-small with a classification head; its cost is the encoder's."""
    import transformers

    transformers.logging.set_verbosity_error()
    if folder is not None:
        return transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    torch.manual_seed(0)
    shape = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**shape)).eval()


def tokens(model: Any, batch: int, n: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    ids = torch.randint(5, model.config.vocab_size, (batch, n), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}


def table_for(model: Any, n: int) -> hccs.ParamTable:
    """Admissible parameters for rows of n (theta changes no time) and the model's scales of q, k and v."""
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    region = hccs.Region(n)
    values = (region.max_base, region.max_slope(60), 60, 0.05)
    B, S, D, scale = (np.full((layers, heads), value) for value in values)
    return hccs.nn.calibrate_operands(model, hccs.ParamTable(B, S, D, scale, n), [tokens(model, 2, n)])


def dynamic_int8(model: Any) -> Any:
    """torch's own: int8 weights, activations quantised as they come."""
    return torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {torch.nn.Linear}, torch.qint8)


def in_torch(model: Any, inputs: dict[str, torch.Tensor]) -> Callable[[], Any]:
    def call() -> Any:
        with torch.inference_mode():
            return model(**inputs).logits

    return call


def in_onnxruntime(path: Path, inputs: dict[str, torch.Tensor]) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    arrays = {name: value.numpy() for name, value in inputs.items()}
    return lambda: session.run(None, arrays)[0]


class FusedByOnnxRuntime(AttentionSlot):
    """Float attention as one node of ONNX Runtime's own operator: what a peer would deploy there."""

    def attend(self, inputs: AttentionInputs) -> tuple[torch.Tensor, None]:
        query, valid = inputs.query, inputs.valid
        assert valid is not None
        batch, heads, n, d = query.shape
        flat = [x.transpose(1, 2).reshape(batch, n, heads * d) for x in (query, inputs.key, inputs.value)]
        mask = valid[:, 0, 0, :].to(torch.int32)
        out = torch.onnx.ops.symbolic(
            "com.microsoft::MultiHeadAttention",
            (*flat, None, mask),
            {"num_heads": heads, "scale": inputs.scaling},
            dtype=query.dtype,
            shape=flat[0].shape,
            version=1,
        )
        return out.reshape(batch, n, heads, d).transpose(1, 2), None


def float_onnx(model: Any, inputs: dict[str, torch.Tensor], path: Path) -> Path:
    fused = copy.deepcopy(model)
    fill({name: FusedByOnnxRuntime() for name in attention_layers(fused)}, fused)
    names, axes = list(inputs), {name: {0: "batch", 1: "length"} for name in inputs}
    torch.onnx.export(
        fused,
        kwargs=inputs,
        f=path,
        input_names=names,
        output_names=["logits"],
        opset_version=18,
        dynamo=True,
        dynamic_shapes=axes,
        external_data=False,
        verbose=False,
    )
    return path


def quantised(path: Path) -> Path:
    """ONNX Runtime's dynamic quantisation of all weights."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model, out = onnx.load(path), path.with_suffix(".int8.onnx")
    # The quantiser transposes weights and then trips over the shapes that torch has noted of them.
    del model.graph.value_info[:]
    quantize_dynamic(
        model, out, weight_type=QuantType.QInt8, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT}
    )
    return out


class Variants:
    """All variants of one model; ONNX files are made once and serve every size."""

    def __init__(self, model: Any, longest: int, folder: Path) -> None:
        self.model = model
        few = {name: value[:, :8] for name, value in tokens(model, 2, 16).items()}
        self.float_file = float_onnx(model, few, folder / "float.onnx")
        attached = hccs.nn.attach(copy.deepcopy(model), table_for(model, longest))
        self.hccs_file = export_onnx(attached, few, folder / "hccs.onnx")
        self.files = {"float": quantised(self.float_file), "hccs": quantised(self.hccs_file)}

    def calls(self, batch: int, n: int) -> dict[str, Callable[[], Any]]:
        inputs = tokens(self.model, batch, n)
        table = table_for(self.model, n)
        whole = hccs.nn.attach(copy.deepcopy(self.model), table, backend="integer")
        made = [
            in_torch(self.model, inputs),
            in_torch(dynamic_int8(self.model), inputs),
            in_onnxruntime(self.float_file, inputs),
            in_onnxruntime(self.files["float"], inputs),
            in_torch(whole, inputs),
            in_torch(dynamic_int8(whole), inputs),
            in_onnxruntime(self.hccs_file, inputs),
            in_onnxruntime(self.files["hccs"], inputs),
        ]
        return dict(zip((*PEERS, *OURS), made, strict=True))


def fastest(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of one call: the best mean over a turn."""
    once = {}
    for name, call in calls.items():
        call()
        began = time.perf_counter()
        call()
        once[name] = time.perf_counter() - began
    best = dict(once)
    for _ in range(TURNS if max(once.values()) < SLOW else 1):
        for name, call in calls.items():
            repeats = max(1, int(SECONDS_PER_TURN / once[name]))
            began = time.perf_counter()
            for _ in range(repeats):
                call()
            best[name] = min(best[name], (time.perf_counter() - began) / repeats)
    return best


def show(rows: list[dict[str, Any]]) -> None:
    sizes = [f"{row['batch']} x {row['n']}" for row in rows]
    print(f"\n{'milliseconds (speed against torch float32)':42}" + "".join(f"{size:>17}" for size in sizes))
    for name in (*PEERS, *OURS):
        cells = []
        for row in rows:
            seconds, base = row["seconds"][name], row["seconds"]["torch float32"]
            mark = "*" if name == min(row["seconds"], key=row["seconds"].get) else " "
            cells.append(f"{1e3 * seconds:9.2f} ({base / seconds:.2f}){mark}")
        print(f"{name:42}" + "".join(f"{cell:>17}" for cell in cells))
    print("* the fastest")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a folder with a BERT; random weights of BERT-small's shape without")
    parser.add_argument("--lengths", default="64,128,512")
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    lengths, batches = ([int(x) for x in given.split(",")] for given in (options.lengths, options.batches))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        variants = Variants(encoder(options.model), max(lengths), Path(folder))
        for n in lengths:
            for batch in batches:
                rows.append({"n": n, "batch": batch, "seconds": fastest(variants.calls(batch, n))})
    show(rows)
    if options.json:
        options.json.write_text(json.dumps({"isa": hccs.backends.cpu.info().isa, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
