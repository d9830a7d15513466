"""One trained model in every runtime that is installed, quantised to int8 by its own tools, and in ours."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hccs.conversion.converted import Converted
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.models import load_classifier
from hccs.conversion.report.cost import FLOAT, OURS
from hccs.nn import AttentionInputs, AttentionSlot, attention_layers, fill
from hccs.program.files import IN_RUN
from hccs_lab.bench.runtimes import OPENERS, Answer, Batch, torch_dynamic_int8

CALIBRATION = 64
"""Sentences that OpenVINO's ranges are taken from."""


def batch_of(data: TokenisedSet, indices: Sequence[int]) -> Batch:
    columns = data.__getitems__(list(indices))
    return {name: np.ascontiguousarray(columns[name].cpu().numpy()) for name in data.columns}


@dataclass(frozen=True)
class Material:
    """What contenders are made of: a finished run, its sentences, and a folder to write in."""

    run: Converted
    data: TokenisedSet
    folder: Path

    @cached_property
    def float_model(self) -> Any:
        return load_classifier(str(self.run.folder / "float"), self.run.labels).model.eval()

    @property
    def calibration(self) -> list[Batch]:
        return [batch_of(self.data, [i]) for i in range(min(CALIBRATION, len(self.data)))]


@dataclass(frozen=True)
class Contender:
    """A runtime: which packages it needs, how its file is made, and as what it is opened."""

    name: str
    packages: tuple[str, ...]
    kind: str
    make: Callable[[Material], tuple[Path, int]]
    """The path to open, and the bytes that have to be shipped for it."""

    @property
    def missing(self) -> list[str]:
        return [name for name in self.packages if importlib.util.find_spec(name) is None]

    def open(self, path: Path, threads: int) -> Answer:
        return OPENERS[self.kind](path, threads)


def _float(material: Material) -> tuple[Path, int]:
    files = (material.run.folder / "float").glob("*.safetensors")
    return material.run.folder, sum(file.stat().st_size for file in files)


def _torch_int8(material: Material) -> tuple[Path, int]:
    """Opened from the run: torch quantises as it loads; the bytes are those of its quantised weights."""
    saved = material.folder / "torch_int8.pt"
    torch.save(torch_dynamic_int8(material.float_model).state_dict(), saved)
    return material.run.folder, saved.stat().st_size


def _onnx(material: Material) -> tuple[Path, int]:
    example = {name: column[:2, :8].long().cpu() for name, column in material.data.columns.items()}
    exported = float_onnx(material.float_model, example, material.folder / "float.onnx")
    quantised = dynamic_int8_onnx(exported)
    return quantised, quantised.stat().st_size


def _openvino(material: Material) -> tuple[Path, int]:
    import openvino

    path = material.folder / "openvino.xml"
    openvino.save_model(static_int8_openvino(material.float_model, material.calibration), path)
    return path, path.stat().st_size + path.with_suffix(".bin").stat().st_size


def _ours(material: Material) -> tuple[Path, int]:
    path = material.run.folder / IN_RUN
    return path, path.stat().st_size


class FusedByOnnxRuntime(AttentionSlot):
    """Float attention as one node of ONNX Runtime's own operator: what a peer would deploy there."""

    def attend(self, inputs: AttentionInputs) -> tuple[torch.Tensor, None]:
        """The node, for an exporter to see; it computes nothing."""
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
    """A float model as ONNX of any batch and length, its attention fused; `inputs` are an example of two."""
    fused = copy.deepcopy(model)
    fill({name: FusedByOnnxRuntime() for name in attention_layers(fused)}, fused)
    names, axes = list(inputs), {name: {0: "batch", 1: "length"} for name in inputs}
    with quietly():
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


def dynamic_int8_onnx(path: Path, *, per_channel: bool = False) -> Path:
    """ONNX Runtime's dynamic quantisation of all weights of a file, beside it."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model, out = onnx.load(path), path.with_suffix(".int8.onnx")
    # The quantiser transposes weights and then trips over the shapes that torch has noted of them.
    del model.graph.value_info[:]
    with quietly():
        quantize_dynamic(
            model,
            out,
            per_channel=per_channel,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    return out


def static_int8_openvino(model: Any, calibration: Sequence[Batch]) -> Any:
    """NNCF's quantisation for transformers: int8 weights and activations, their ranges fixed ahead."""
    with quietly():
        import nncf
        import openvino

        example = {name: torch.from_numpy(value) for name, value in calibration[0].items()}
        converted = openvino.convert_model(copy.deepcopy(model), example_input=example)
        return nncf.quantize(
            converted,
            nncf.Dataset([dict(batch) for batch in calibration]),
            model_type=nncf.ModelType.TRANSFORMER,
        )


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without the progress, warnings and messages of other people's converters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


CONTENDERS = (
    Contender(FLOAT, ("torch",), "torch-float", _float),
    Contender("torch dynamic int8, integer attention", ("torch",), "torch-int8", _torch_int8),
    Contender("ONNX Runtime dynamic int8", ("onnxruntime", "onnx", "onnxscript"), "onnxruntime", _onnx),
    Contender("OpenVINO static int8", ("openvino", "nncf"), "openvino", _openvino),
    Contender(OURS, (), "ours", _ours),
)
