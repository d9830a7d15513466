"""`export_onnx`: a transformers model with HCCS attached as an ONNX file that any runtime can run."""

from __future__ import annotations

import io
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hccs
from hccs._extras import how_to_install, require
from hccs._files import atomic
from hccs.errors import MissingExtraError, ModelError
from hccs.executors.onnx.graph import OPSET, onnx
from hccs.export.c import float32_scales
from hccs.export.onnx_function import DOMAIN, DOMAIN_VERSION, function, function_name
from hccs.nn.attaching import current_table, fill
from hccs.nn.interface import attention_layers
from hccs.nn.preserving import unchanged
from hccs.nn.slots import SoftmaxSlot
from hccs.numbers.modes import Mode
from hccs.numbers.table import ParamTable

LARGEST_FILE = 2**31 - 1
"""What protobuf can hold."""


class SymbolicSoftmax(SoftmaxSlot):
    """Stands in for HCCS while the model is traced: becomes one node that calls the mode's function."""

    theta: torch.Tensor
    scale: torch.Tensor
    everything: torch.Tensor

    def __init__(self, table: ParamTable, layer: int, mode: Mode) -> None:
        super().__init__()
        self.operator = f"{DOMAIN}::{function_name(mode, table.wide)}"
        self.register_buffer("theta", torch.tensor(table.layer(layer).packed))
        self.register_buffer("scale", torch.tensor(float32_scales(table)[layer]))
        self.register_buffer("everything", torch.ones(1, dtype=torch.bool))

    def forward(self, z: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        """A tensor like z, without values."""
        mask = self.everything if valid is None else valid
        inputs = (z, self.theta, self.scale, mask)
        made: torch.Tensor = torch.onnx.ops.symbolic(
            self.operator, inputs, dtype=z.dtype, shape=z.shape, version=DOMAIN_VERSION
        )
        return made


class Outputs(nn.Module):
    """The model with positional inputs, and of its outputs the logits (and the attention probabilities)."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], attentions: bool) -> None:
        super().__init__()
        self.model, self.names, self.attentions = model, names, attentions

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(logits, probabilities of the first layer, ...)."""
        given: dict[str, Any] = dict(zip(self.names, tensors, strict=True))
        if "use_cache" in self.model.config.to_dict():  # type: ignore[operator,union-attr]
            given["use_cache"] = False
        found = self.model(**given, output_attentions=self.attentions, return_dict=True)
        return (found.logits, *(found.attentions if self.attentions else ()))


def export_onnx(
    model: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    path: str | os.PathLike[str],
    *,
    mode: Mode | str | None = None,
    attentions: bool = False,
) -> Path:
    """Write the model as ONNX; `inputs` is a batch like those it will get, of at least two rows and columns.

    The batch size and, of token inputs, the length stay free, the latter up to the table's n. HCCS is a
    function of standard operators in the file itself. With `attentions` every layer's probabilities are
    outputs too, named attention_0 and so on. The model is left as it was.
    """
    _require_exporter()
    table = current_table(model)
    chosen = Mode(mode or table.mode)
    if next(model.parameters()).dtype != torch.float32:
        raise ModelError("a float32 model", str(next(model.parameters()).dtype), "Call model.float() first.")
    # Before the exporter, which takes minutes for a model that is too large.
    _require_size(sum(weight.numel() * weight.element_size() for weight in model.parameters()))
    names = tuple(inputs)
    tensors = tuple(inputs[name].cpu() for name in names)
    outputs = ["logits", *(f"attention_{i}" for i in range(table.shape[0] if attentions else 0))]
    with _symbolic(model, table, chosen), _quiet():
        program = torch.onnx.export(
            Outputs(model, names, attentions),
            tensors,
            input_names=list(names),
            output_names=outputs,
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes=(tuple(_free_axes(tensor) for tensor in tensors),),
            verbose=False,
        )
    assert program is not None
    return _write(program.model_proto, table, chosen, Path(path))


def _free_axes(tensor: torch.Tensor) -> dict[int, str]:
    tokens = tensor.ndim == 2 and not tensor.is_floating_point()
    return {0: "batch", 1: "length"} if tokens else {0: "batch"}


@contextmanager
def _symbolic(model: nn.Module, table: ParamTable, mode: Mode) -> Iterator[None]:
    """The model in evaluation mode on the CPU with symbolic HCCS; all is put back afterwards."""
    device = next(model.parameters()).device
    order = table.layers or list(attention_layers(model))
    try:
        with unchanged(model):
            model.cpu().eval()
            fill({name: SymbolicSoftmax(table, index, mode) for index, name in enumerate(order)}, model)
            yield
    finally:
        model.to(device)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hush what the exporter says about itself: missing optional packages, its own deprecations."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _write(model: Any, table: ParamTable, mode: Mode, path: Path) -> Path:
    standard = onnx()
    model.functions.append(function(mode, table.wide))
    standard.helper.set_model_props(
        model,
        {
            "hccs.version": hccs.__version__,
            "hccs.mode": mode.value,
            "hccs.longest_row": str(table.n),
        },
    )
    _require_size(model.ByteSize())
    standard.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.replace(path, model.SerializeToString())
    return path


def _require_size(size: int) -> None:
    if size > LARGEST_FILE:
        raise ModelError("a model of less than 2 GiB", f"{size / 2**30:.1f} GiB", "Export a smaller model.")


def _require_exporter() -> None:
    onnx()
    require("onnxscript", "onnx", "for torch.onnx")
    if not hasattr(torch.onnx, "ops"):
        raise MissingExtraError(
            "torch 2.8 or later for ONNX", f"torch {torch.__version__}", how_to_install("onnx")
        )
