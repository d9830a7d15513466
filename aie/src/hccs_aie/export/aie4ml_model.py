"""The aie4ml project: an ONNX model with one Softmax per head, and directives that make each HCCS."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hccs._extras import require
from hccs.errors import ModeError
from hccs_aie.export.project import Project

PARTS = ("xilinx_vek280_base", "vek385_base")
"""aie4ml's names for the two boards of the paper."""

_OPSET = 21
_IR_VERSION = 10


def model(project: Project) -> Any:
    """One Quantize-Dequantize-Softmax-Quantize-Dequantize chain per head.

    The input scale is 1: HCCS works on the int8 logits themselves, the real scale is in theta.
    Outputs are Q8 or Q15.
    """
    onnx = require("onnx", "onnx", "for aie4ml models")
    helper, kinds, numbers = onnx.helper, onnx.TensorProto, onnx.numpy_helper
    fraction = 2.0**-8 if project.mode.is_u8 else 2.0**-15
    constants = {
        "logit_scale": np.array(1.0, np.float32),
        "logit_zero": np.array(0, np.int8),
        "probability_scale": np.array(fraction, np.float32),
        "probability_zero": np.array(0, project.mode.dtype),
    }
    shape = [1, project.rows, project.columns]
    nodes = []
    for head in range(project.heads):
        chain = [
            ("QuantizeLinear", f"logits_{head}", f"logits_{head}_int8", "logit"),
            ("DequantizeLinear", f"logits_{head}_int8", f"logits_{head}_real", "logit"),
            ("Softmax", f"logits_{head}_real", f"softmax_{head}_real", ""),
            ("QuantizeLinear", f"softmax_{head}_real", f"softmax_{head}_int", "probability"),
            ("DequantizeLinear", f"softmax_{head}_int", f"probabilities_{head}", "probability"),
        ]
        for kind, source, result, scale in chain:
            extra = [f"{scale}_scale", f"{scale}_zero"] if scale else []
            settings = {} if scale else {"axis": -1}
            name = f"softmax_{head}" if kind == "Softmax" else f"make_{result}"
            nodes.append(helper.make_node(kind, [source, *extra], [result], name=name, **settings))
    graph = helper.make_graph(
        nodes,
        "hccs_softmax",
        [
            helper.make_tensor_value_info(f"logits_{head}", kinds.FLOAT, shape)
            for head in range(project.heads)
        ],
        [
            helper.make_tensor_value_info(f"probabilities_{head}", kinds.FLOAT, shape)
            for head in range(project.heads)
        ],
        [numbers.from_array(value, name) for name, value in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    made.ir_version = _IR_VERSION
    onnx.checker.check_model(made)
    return made


def directives(project: Project, part: str = PARTS[0]) -> dict[str, Any]:
    """aie4ml's configuration: which part, and each head's parameters."""
    heads = {
        f"softmax_{head}": {
            "approximation": "hccs",
            "hccs": {"B": B, "S": S, "Dmax": D, "use_clb": project.mode.is_clb},
        }
        for head, (B, S, D) in enumerate(project.theta.packed.tolist())
    }
    return {"AIEConfig": {"Part": part, "Iterations": 1}, "LayerDirectives": heads}


def require_full_rows(project: Project) -> None:
    """aie4ml's kernels have no short-row rule: every full row must reach Z >= 256, whatever the mode."""
    project.theta.require_one_line("in aie4ml's kernels", "Calibrate with lines=1, or choose --target vitis.")
    if project.mode.is_linear:
        raise ModeError(
            "a mode of aie4ml's kernels", project.mode.value, "Choose u8_clb or u8_div, or --target vitis."
        )
    packed = project.theta.packed
    least = int((project.columns * (packed[:, 0] - packed[:, 1] * packed[:, 2])).min())
    if least < 256:
        raise ModeError(
            "columns * (B - S*D) >= 256 for aie4ml's kernels",
            str(least),
            f"Export with the calibrated {project.columns} columns or more, or choose --target vitis.",
        )


def files(project: Project) -> dict[str, str | bytes]:
    require_full_rows(project)
    return {
        "hccs_softmax.onnx": model(project).SerializeToString(),
        "directives.json": json.dumps(directives(project), indent=2) + "\n",
    }
