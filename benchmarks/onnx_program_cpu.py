"""How long does a whole integer program take in ONNX Runtime on one thread, beside ONNX Runtime's own int8?

    python benchmarks/onnx_program_cpu.py [--model FOLDER] [--lengths 64,128,512] [--batches 1,8]
        [--json FILE]

The same float model is quantised by ONNX Runtime, statically (QDQ, one scale per channel) and dynamically,
with its own fused float attention and with attention of single operators; ours is the exported program, whose
scores are the reference's in every bit. Without a folder the weights are random, of BERT-small's shape: they
change no time. Variants are timed in turns; the fastest turn counts.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from encoder_cpu import fastest
from encoder_variants import encoder, table_for, tokens
from provenance import write_json

import hccs
import hccs.nn
from hccs.export import write_onnx
from hccs_lab.bench.contenders import dynamic_int8_onnx, float_onnx
from hccs_lab.bench.runtimes import open_onnxruntime

OURS = "integer program"
PEERS = ("static int8", "static int8, fused attention", "dynamic int8, fused attention")


def plain_onnx(model: Any, inputs: dict[str, torch.Tensor], path: Path) -> Path:
    """The float model with attention of single operators, which a quantiser can quantise."""
    torch.onnx.export(
        model,
        kwargs=inputs,
        f=path,
        input_names=list(inputs),
        output_names=["logits"],
        opset_version=18,
        dynamo=True,
        dynamic_shapes={name: {0: "batch", 1: "length"} for name in inputs},
        external_data=False,
        verbose=False,
    )
    return path


def static_int8(path: Path, batches: list[dict[str, torch.Tensor]]) -> Path:
    """ONNX Runtime's static quantisation, after its own preparation of transformers."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Batches(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter([{name: x.numpy() for name, x in batch.items()} for batch in batches])

        def get_next(self) -> Any:
            return next(self.left, None)

    model, out = onnx.load(path), path.with_suffix(".static.onnx")
    del model.graph.value_info[:]
    quantize_static(
        model,
        out,
        Batches(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul"],  # all layers but the head, a Gemm of one row
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
    )
    return out


def in_onnxruntime(path: Path, inputs: dict[str, torch.Tensor]) -> Callable[[], Any]:
    """A call on one thread."""
    answer, arrays = open_onnxruntime(path, 1), {name: value.numpy() for name, value in inputs.items()}
    return lambda: answer(arrays)


class Variants:
    """The files of one model; they serve every size."""

    def __init__(self, model: Any, longest: int, folder: Path) -> None:
        self.model = model
        few = {name: value[:, :8] for name, value in tokens(model, 2, 16).items()}
        batches = [tokens(model, 2, n) for n in (longest // 2, longest)]
        fused = float_onnx(model, few, folder / "fused.onnx")
        plain = plain_onnx(model, few, folder / "plain.onnx")
        self.files = {
            "static int8": static_int8(plain, batches),
            "static int8, fused attention": static_int8(fused, batches),
            "dynamic int8, fused attention": dynamic_int8_onnx(fused),
        }
        table = table_for(model, longest)
        hccs.nn.attach(model, table)
        self.whole = hccs.nn.lower(model, table, batches)
        self.files[OURS] = write_onnx(self.whole.program, folder / "program.onnx")

    def equal(self, batch: int, n: int) -> bool:
        """Whether the program's scores are those of NumPy."""
        inputs = tokens(self.model, batch, n)
        got = in_onnxruntime(self.files[OURS], inputs)()
        return np.array_equal(got, self.whole(*(value.numpy() for value in inputs.values())).scores)


def show(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'milliseconds':34}" + "".join(f"{row['batch']:>6} x {row['n']:<5}" for row in rows))
    for name in (*PEERS, OURS):
        print(f"{name:34}" + "".join(f"{1e3 * row['seconds'][name]:>10.2f}    " for row in rows))
    for peer, seconds in (("static int8", "static"), ("the fastest of theirs", "")):
        ratios = []
        for row in rows:
            best = min(time for name, time in row["seconds"].items() if name != OURS and seconds in name)
            ratios.append(f"{row['seconds'][OURS] / best:>10.2f}x   ")
        print(f"{'ours over ' + peer:34}" + "".join(ratios))
    print("scores equal the reference's: " + ", ".join(str(row["equal"]) for row in rows))


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
                inputs = tokens(variants.model, batch, n)
                calls = {name: in_onnxruntime(path, inputs) for name, path in variants.files.items()}
                rows.append(
                    {"n": n, "batch": batch, "seconds": fastest(calls), "equal": variants.equal(batch, n)}
                )
    show(rows)
    if options.json:
        write_json(options.json, {"isa": hccs.backends.cpu.info().isa, "rows": rows})


if __name__ == "__main__":
    main()
