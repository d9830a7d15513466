"""The run's float model as the files that other runtimes open: quantised to int8 by their own tools."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hccs.nn import AttentionInputs, AttentionSlot, attention_layers, fill

if TYPE_CHECKING:
    from hccs_lab.bench.opening import Batch


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


def dynamic_int8_onnx(path: Path) -> Path:
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
