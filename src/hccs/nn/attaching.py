"""`attach` puts HCCS into a transformers model in place of softmax; `detach` takes it out again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from torch import nn

from hccs.errors import HccsError, ModelError, ParameterError
from hccs.nn.integer import IntegerAttention
from hccs.nn.interface import NAME, SLOT, attention_layers, register
from hccs.nn.layers import HeadSoftmax, LearnableHeadSoftmax
from hccs.numbers.modes import Mode
from hccs.numbers.table import ParamTable

Model = TypeVar("Model", bound=nn.Module)

_KEY = "hccs"
_PREVIOUS = "_hccs_previous_attention"
BACKENDS = ("float", "integer")


def attach(
    model: Model,
    table: ParamTable,
    mode: Mode | str | None = None,
    *,
    learnable: bool = False,
    backend: str = "float",
) -> Model:
    """Replace the softmax of every attention layer by HCCS with the table's parameters; returns the model.

    `mode` defaults to the table's own. With `learnable` the parameters become trainable, and `current_table`
    reads them back. The table is written into `model.config`, so that `save_pretrained` keeps it and
    `restore` finds it. With `backend="integer"` q, k and v are quantised too and attention runs in integers
    from there to its output (`hccs.attention`): for inference, with a table that holds their scales.
    """
    if backend not in BACKENDS or (learnable and backend == "integer"):
        raise ParameterError(
            "backend 'float', or 'integer' without learnable",
            f"backend {backend!r}{' with learnable' if learnable else ''}",
            "Train with 'float'; run with 'integer'.",
        )
    layers = attention_layers(model)
    _require_match(layers, table)
    chosen = Mode(table.mode if mode is None else mode)
    whole, frozen = backend == "integer", LearnableHeadSoftmax if learnable else HeadSoftmax
    kind: type[nn.Module] = IntegerAttention if whole else frozen
    order = table.layers or list(layers)
    fill({name: kind(table, index, chosen) for index, name in enumerate(order)}, model)
    _config(model).hccs = {**table.as_dict(), "mode": chosen.value, "backend": backend}
    return model


def detach(model: Model) -> Model:
    """Give the model its own softmax back; returns the model."""
    for module in model.modules():
        if hasattr(module, SLOT):
            delattr(module, SLOT)
    if hasattr(model, _PREVIOUS):
        model.set_attn_implementation(getattr(model, _PREVIOUS))  # type: ignore[operator]
        delattr(model, _PREVIOUS)
    if hasattr(_config(model), _KEY):
        delattr(_config(model), _KEY)
    return model


def restore(model: Model, mode: Mode | str | None = None, *, backend: str | None = None) -> Model:
    """Attach the table that a saved model's configuration carries; returns the model.

    Mode and backend are those it was saved with unless others are given.
    """
    table = saved_table(model)
    return attach(model, table, mode, backend=backend or _config(model).hccs.get("backend", "float"))


def saved_table(model: nn.Module) -> ParamTable:
    """The table in the model's configuration."""
    saved = getattr(_config(model), _KEY, None)
    if not isinstance(saved, dict):
        raise ModelError(
            "a model saved with HCCS attached",
            "a configuration without 'hccs'",
            "Attach a table with hccs.nn.attach, then save_pretrained.",
        )
    try:
        return table_from_json(saved)
    except HccsError as error:
        raise ModelError(
            "admissible parameters in the configuration", str(error), "Convert the model anew."
        ) from error


def current_table(model: nn.Module) -> ParamTable:
    """The parameters the model uses now: after learning they differ from those attached."""
    before = saved_table(model)
    layers = attention_layers(model)
    order = before.layers or list(layers)
    values = np.stack([getattr(layers[name], SLOT).values() for name in order])
    B, S, D = (values[..., i].round().astype(np.int32) for i in range(3))
    return replace(before, B=B, S=S, D=D, scale=values[..., 3])


def fill(slots: Mapping[str, nn.Module], model: nn.Module) -> None:
    """Put a module into the slot of each named attention layer and switch the model to our attention."""
    layers = attention_layers(model)
    register()
    device = next(model.parameters()).device
    for name, slot in slots.items():
        setattr(layers[name], SLOT, slot.to(device).train(model.training))
    if _config(model)._attn_implementation != NAME:
        setattr(model, _PREVIOUS, _config(model)._attn_implementation or "eager")
        model.set_attn_implementation(NAME)  # type: ignore[operator]


def _config(model: nn.Module) -> Any:
    return model.config


def table_from_json(saved: Mapping[str, Any]) -> ParamTable:
    """The table of a configuration's "hccs" entry."""
    return ParamTable.from_dict({name: value for name, value in saved.items() if name != "backend"})


def _require_match(layers: Mapping[str, nn.Module], table: ParamTable) -> None:
    names: Sequence[str] | None = table.layers
    if names is None:
        if len(layers) != table.shape[0]:
            raise ModelError(
                f"a table of {len(layers)} layers: {', '.join(layers)}",
                f"{table.shape[0]} layers",
                "Calibrate on logits collected from this model.",
            )
        names = list(layers)
    missing, foreign = [n for n in layers if n not in names], [n for n in names if n not in layers]
    if foreign:
        raise ModelError(
            f"a table for this model's layers {', '.join(layers)}",
            f"parameters for {', '.join(foreign)}",
            "This table belongs to another model: collect and calibrate on this one.",
        )
    if missing:
        raise ModelError(
            "parameters for every attention layer",
            f"none for {', '.join(missing)}, whose logits were never collected",
            "Collect with batches that reach these layers, then calibrate again.",
        )
    heads = {name: heads_of(module) for name, module in layers.items()}
    wrong = [f"{name} ({count})" for name, count in heads.items() if count not in (None, table.shape[1])]
    if wrong:
        raise ModelError(
            f"layers of {table.shape[1]} heads, as in the table",
            ", ".join(wrong),
            "This table belongs to another model: collect and calibrate on this one.",
        )


def heads_of(module: nn.Module) -> int | None:
    """How many query heads an attention layer says it has; None when it does not say."""
    for name in ("num_attention_heads", "num_heads", "n_heads"):
        count = getattr(module, name, None)
        if isinstance(count, int):
            return count
    config = getattr(module, "config", None)
    return getattr(config, "num_attention_heads", None)
