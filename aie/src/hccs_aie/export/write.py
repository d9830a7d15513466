"""Writes a project folder for Vitis, for IRON, or for the aie4ml package."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hccs._extras import require
from hccs._files import folder as _folder
from hccs.errors import ModeError, ParameterError
from hccs_aie.export.attention_project import AttentionProject
from hccs_aie.export.project import (
    PROJECT_FILE,
    Project,
    Target,
    emulation_sources,
    kernel_sources,
)

TILES_PER_COLUMN = 4
"""A memory tile has six DMA channels each way: four tiles' shares fit, and one to and from outside."""

PLIO_BYTES = 8
"""A 64-bit PLIO file has as many numbers per line as fit eight bytes."""

PRODUCTS = {
    Target.VITIS: ("libadf.a", "Work", "aiesimulator_output", "host_check"),
    Target.IRON: ("hccs_tile.o", "hccs.mlir", "hccs.mlir.prj", "hccs.xclbin", "insts.bin", "host_check"),
    Target.AIE4ML: ("project",),
}
"""What a project's own Makefile or script leaves in the folder."""


def plio_text(values: NDArray[Any]) -> str:
    """Numbers as a 64-bit PLIO reads them: eight bytes a line.

    >>> plio_text(np.arange(8, dtype=np.int16))
    '0 1 2 3\\n4 5 6 7\\n'
    """
    per_line = PLIO_BYTES // values.dtype.itemsize
    lines = values.reshape(-1, per_line).tolist()
    return "".join(" ".join(map(str, line)) + "\n" for line in lines)


def plio_files(x: NDArray[np.int8], expected: NDArray[Any]) -> dict[str, str]:
    files = {f"data/in{tile}.txt": plio_text(values) for tile, values in enumerate(x)}
    files |= {f"data/expected{tile}.txt": plio_text(values) for tile, values in enumerate(expected)}
    return files


def _templates(name: str, facts: Mapping[str, object]) -> dict[str, str]:
    """The files of a template folder, each @name@ replaced by its fact."""
    found: dict[str, str] = {}

    def visit(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                visit(entry, f"{prefix}{entry.name}/")
            else:
                text = entry.read_text(encoding="utf-8")
                for fact, value in facts.items():
                    text = text.replace(f"@{fact}@", str(value))
                found[prefix + entry.name.removesuffix(".in")] = text

    visit(resources.files("hccs_aie.export") / "templates" / name, "")
    return found


def _contents(project: Project | AttentionProject, target: Target) -> dict[str, str | bytes]:
    x, expected = project.vectors()
    inputs, outputs = project.vector_names
    named = ("kernel", "layer", "heads", "rows", "columns", "tiles", "rows_per_tile", "step")
    facts = {name: getattr(project, name) for name in (*named, "in_elements", "out_elements")}
    facts |= {"mode": project.description, "target": target.value, "output": project.output_type}
    facts |= {"inputs": inputs, "outputs": outputs, "vectors": project.vector_text}
    facts |= {"tiles_per_column": TILES_PER_COLUMN}
    made: dict[str, str | bytes] = {
        PROJECT_FILE: project.text(target.value),
        f"vectors/{inputs}.bin": x.tobytes(),
        f"vectors/{outputs}.bin": expected.tobytes(),
        **_templates(target.value, facts),
    }
    if target is Target.AIE4ML:
        if not isinstance(project, Project):
            raise ParameterError("vitis or iron for attention", "aie4ml", "It has no integer attention.")
        return {**made, **_aie4ml_files(project)}
    made["src/hccs_parameters.hpp"] = project.parameter_header()
    made.update({f"src/{name}": text for name, text in kernel_sources(project.sources).items()})
    made.update({f"host/include/{path}": text for path, text in emulation_sources().items()})
    made.update(_templates("common", facts))
    if target is Target.VITIS:
        made.update(plio_files(x, expected))
    return made


def export(project: Project | AttentionProject, target: Target | str, out: str | os.PathLike[str]) -> Path:
    """Write the project folder `out`.

    Only an export's own files are written or replaced; a folder that holds anything else is refused.
    """
    target = Target(target)
    _folder.require_free(out, products=PRODUCTS[target])
    contents = _contents(project, target)
    return _folder.replace(out, contents, products=PRODUCTS[target])


PARTS = ("xilinx_vek280_base", "vek385_base")
"""aie4ml's names for the two boards of the paper."""

_OPSET = 21
_IR_VERSION = 10


def model(project: Project) -> Any:
    """aie4ml's ONNX model: one Quantize-Dequantize-Softmax-Quantize-Dequantize chain per head.

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


def _aie4ml_files(project: Project) -> dict[str, str | bytes]:
    require_full_rows(project)
    return {
        "hccs_softmax.onnx": model(project).SerializeToString(),
        "directives.json": json.dumps(directives(project), indent=2) + "\n",
    }
