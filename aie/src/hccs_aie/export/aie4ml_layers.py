"""A whole model's linear layers for aie4ml: the program's integers, from scales that are powers of two.

aie4ml shifts accumulators, one shift per tensor, rounding half to even; the law multiplies by M / 2^16, one M
per channel. Weights of 16 bits bring the two together: (sum x*w + b) * M / 2^16 = (sum x*(w*M) + b*M) / 2^16.
Where w*M is wider than 16 bits it is cut, w*M = 256 * high + low, and the layer reads 256*x beside x: twice
the products. What saturates below comes out as -128 or -32768, which the reader raises by one.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from hccs._extras import require
from hccs._files import folder as _folder
from hccs.numbers.layers import INT8_LIMIT, MULTIPLIER_SHIFT, LinearParams
from hccs.program import operators as op
from hccs.reference.linear import linear

if TYPE_CHECKING:
    from hccs.program import Program

DIGIT = 256
"""256 * 127 and 256 * -128 still fit int16."""

PRODUCTS = ("project",)

REFUSED: dict[type[op.Operator], str] = {
    op.Embed: "look-ups",
    op.EmbedPatches: "cutting an image and adding its positions with saturation",
    op.LayerNorm: "an int16 or int32 sum in, int16 out: aie4ml's LayerNorm takes and returns int8",
    op.RmsNorm: "a root of the mean square: aie4ml has none",
    op.NormHeads: "a root of the mean square of each head: aie4ml has none",
    op.Rotate: "products with the cosines and sines of a row's position: aie4ml has none",
    op.Multiply: "products of two values: aie4ml multiplies by weights alone",
    op.Narrow: "an int16 stream to int8: aie4ml requantises behind products alone",
    op.Attention: (
        "logits by a 24-bit factor per head, rounded half up, and a division per row behind the sum: aie4ml "
        "shifts by powers of two and rounds half to even; its HCCS takes full rows and returns probabilities"
    ),
    op.NarrowRows: "an exponent for each row: aie4ml has one shift per tensor",
    op.Table: "a table of 256: aie4ml knows ReLU alone",
    op.Ramp: "pieces of a line on int16: aie4ml knows ReLU alone",
    op.Add: "two int16 to an int32 sum or a clamped int16: aie4ml's Add keeps one type",
    op.First: "one row of many: the host takes it",
    op.Last: "one row of many: the host takes it",
    op.Pool: "sums, maxima or the last of a sequence's rows: the host takes them",
    op.Unit: "a division by the length of a row",
}
"""What aie4ml lacks for operators that stay outside; one that is not listed is named as unknown."""


@dataclass(frozen=True, eq=False)
class Widened:
    """A linear layer with the multipliers in its weights: y = rhe((x16 @ weight + bias) / 2^shift)."""

    weight: NDArray[np.int16]
    bias: NDArray[np.int32]
    shift: int
    dtype: np.dtype[Any]
    cut: bool

    def inputs(self, x: NDArray[np.int8]) -> NDArray[np.int16]:
        wide = x.astype(np.int16)
        return np.concatenate([DIGIT * wide, wide], axis=-1) if self.cut else wide


def widened(layer: LinearParams) -> Widened | str:
    """The layer as aie4ml can hold it, or why it cannot."""
    plain = layer.multiplier is None
    factor = np.ones_like(layer.bias, np.int64) if plain else layer.multiplier.astype(np.int64)  # type: ignore[union-attr]
    weight, bias = layer.weight * factor[:, None], layer.bias * factor
    if (abs(bias) >= 2**31).any():
        return "biases times multipliers beyond int32"
    cut = bool((abs(weight) > 32767).any())
    if cut:
        low = (weight + DIGIT // 2) % DIGIT - DIGIT // 2
        high = (weight - low) // DIGIT
        if (abs(high) > 32767).any():
            return "weights times multipliers beyond 24 bits"
        weight = np.concatenate([high, low], axis=1)
    dtype = np.int32 if plain else np.int8 if layer.limit == INT8_LIMIT else np.int16
    return Widened(
        np.ascontiguousarray(weight.T.astype(np.int16)),
        bias.astype(np.int32),
        0 if plain else MULTIPLIER_SHIFT,
        np.dtype(dtype),
        cut,
    )


def _linear(step: Any, given: op.Value) -> Widened | str:
    if given.exponents:
        return "an exponent for each row of its input: aie4ml has one shift per tensor"
    return widened(step.params)


LAYERS: dict[type[op.Operator], Callable[[Any, op.Value], Widened | str]] = {op.Linear: _linear}
"""Operators that aie4ml can hold: each is int8 rows times `step.params`, given what it reads."""


def layer_model(name: str, layer: Widened, rows: int) -> Any:
    """The ONNX model of one layer, in the quantise-dequantise form that aie4ml reads."""
    onnx = require("onnx", "onnx", "for aie4ml models")
    helper, kinds, numbers = onnx.helper, onnx.TensorProto, onnx.numpy_helper
    inputs, outputs = layer.weight.shape
    constants = {
        "weight": layer.weight,
        "bias": layer.bias,
        "one": np.float32(1),
        "step": np.float32(2.0**layer.shift),
        "zero_weight": np.int16(0),
        "zero_bias": np.int32(0),
        "zero_output": np.zeros((), layer.dtype),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "one", "zero_weight"], ["x_real"]),
        helper.make_node("DequantizeLinear", ["weight", "one", "zero_weight"], ["weight_real"]),
        helper.make_node("DequantizeLinear", ["bias", "one", "zero_bias"], ["bias_real"]),
        helper.make_node("Gemm", ["x_real", "weight_real", "bias_real"], ["sum"], name=name),
        helper.make_node("QuantizeLinear", ["sum", "step", "zero_output"], ["y_integer"]),
        helper.make_node("DequantizeLinear", ["y_integer", "step", "zero_output"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", kinds.INT16, [rows, inputs])],
        [helper.make_tensor_value_info("y", kinds.FLOAT, [rows, outputs])],
        [numbers.from_array(np.asarray(value), key) for key, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def _missing(step: op.Operator) -> str:
    return REFUSED.get(type(step), f"{type(step).__name__}, an operator that this export does not know")


def lowered_and_not(program: Program) -> tuple[dict[str, Widened], dict[str, str]]:
    """The layers that aie4ml can hold, by the value they write, and for all other operators why not."""
    layers: dict[str, Widened] = {}
    missing: dict[str, str] = {}
    for step in program.operators:
        layer = LAYERS.get(type(step))
        made = layer(step, program.values[step.inputs[0]]) if layer else _missing(step)
        if isinstance(made, str):
            missing[step.output] = made
        else:
            layers[step.output] = made
    return layers, missing


def export_layers(program: Program, out: str | os.PathLike[str], rows: int = 64, seed: int = 0) -> Path:
    """Write a folder with a model and test vectors for each linear layer, and a list of what is not there."""
    layers, missing = lowered_and_not(program)
    rng = np.random.default_rng(seed)
    contents: dict[str, str | bytes] = {}
    for step in program.operators:
        if step.output not in layers:
            continue
        layer, params = layers[step.output], cast("Any", step).params
        contents[f"{step.output}.onnx"] = layer_model(step.output, layer, rows).SerializeToString()
        x = rng.integers(-127, 128, (rows, params.weight.shape[1])).astype(np.int8)
        file = io.BytesIO()
        np.savez(file, x=layer.inputs(x), y=linear(x, params))
        contents[f"vectors/{step.output}.npz"] = file.getvalue()
    templates = resources.files("hccs_aie.export") / "templates" / "aie4ml_layers"
    for name in ("lower.py", "README.md"):
        contents[name] = templates.joinpath(f"{name}.in").read_text(encoding="utf-8")
    listed = {"layers": {name: layer.dtype.name for name, layer in layers.items()}, "missing": missing}
    contents["operators.json"] = json.dumps(listed, indent=1) + "\n"
    return _folder.replace(out, contents, products=PRODUCTS)
