"""`attach` puts HCCS into a transformers model in place of softmax; `detach` takes it out again.

The configuration then has these entries, which `save_pretrained` writes:

- `hccs`: the table, the mode and the backend.
- `quantization_config`, `{"quant_method": "hccs"}`: transformers' own hook, by which `from_pretrained` and
  `pipeline` attach the table once weights are loaded (`register_loader`). A model that another method has
  quantised keeps that method's entry.
- `attn_implementation`, "hccs": a transformers without HCCS refuses to load the model instead of running
  float softmax.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from hccs.errors import HccsError, ModelError, ParameterError
from hccs.nn.batches import device_of, unwrapped
from hccs.nn.integer import IntegerAttention
from hccs.nn.interface import NAME, SLOT, attention_layers, register, switch
from hccs.nn.slots import AttentionSlot, HeadSoftmax, LearnableHeadSoftmax
from hccs.numbers.heads import NAMES, ONE_LINE
from hccs.numbers.modes import Mode
from hccs.numbers.table import ParamTable

Model = TypeVar("Model", bound=nn.Module)

TABLE, METHOD, ATTENTION = "hccs", "quantization_config", "attn_implementation"
PREVIOUS = "_hccs_previous_attention"
"""The attribute of a model that names the attention it had before."""
BACKENDS = ("float", "integer")
_CHOICES = ("backend", "learnable")
"""What the table's entry of a configuration has besides the table."""


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
    reads them back: attach that table before saving. With `backend="integer"` q, k and v are quantised too
    and attention runs in integers from there to its output (`hccs.attention`): for inference, with a table
    that holds their scales. The table is written into `model.config`, which becomes a copy of its own:
    `save_pretrained` keeps it, and `from_pretrained` attaches it again where `hccs.nn` has been imported.

    >>> from transformers import BertConfig, BertModel
    >>> shape = dict(vocab_size=50, hidden_size=8, num_attention_heads=2, intermediate_size=8)
    >>> model = BertModel(BertConfig(num_hidden_layers=1, **shape)).eval()
    >>> table = ParamTable(B=[[444, 300]], S=[[11, 4]], D=[[40, 60]], scale=[[0.1, 0.05]], n=64)
    >>> output = attach(model, table, "u8_div")(torch.tensor([[3, 14, 15]]), output_attentions=True)
    >>> [round(255 * p, 3).is_integer() for p in output.attentions[0][0, 0, 0].tolist()]
    [True, True, True]
    """
    given, model = model, unwrapped(model)
    if backend not in BACKENDS or (learnable and backend == "integer"):
        raise ParameterError(
            "backend 'float', or 'integer' without learnable",
            f"backend {backend!r}{' with learnable' if learnable else ''}",
            "Train with 'float'; run with 'integer'.",
        )
    layers = attention_layers(model)
    _require_match(layers, table)
    chosen = Mode(table.mode if mode is None else mode)
    on_logits = LearnableHeadSoftmax if learnable else HeadSoftmax
    kind: type[AttentionSlot] = IntegerAttention if backend == "integer" else on_logits
    order = table.layers or list(layers)
    fill({name: kind(table, index, chosen) for index, name in enumerate(order)}, model)
    _watch_caches(model, integers=backend == "integer")
    _config(model).hccs = {**table.as_dict(), "mode": chosen.value, "backend": backend}
    if learnable:
        _config(model).hccs["learnable"] = True
    if getattr(_config(model), METHOD, None) is None:
        setattr(_config(model), METHOD, {"quant_method": NAME})
    return given


def detach(model: Model) -> Model:
    """Give the model its own softmax back and its configuration without our entries; returns the model."""
    given, model = model, unwrapped(model)
    _watch_caches(model, integers=False)
    for module in model.modules():
        if hasattr(module, SLOT):
            delattr(module, SLOT)
    if _config(model)._attn_implementation == NAME:
        # Else what transformers would choose for the model: "sdpa" where it can.
        before = getattr(model, PREVIOUS, None) or str(model.get_correct_attn_implementation(None))  # type: ignore[operator]
        switch(model, attention_layers(model), before)
    if hasattr(model, PREVIOUS):
        delattr(model, PREVIOUS)
    method = getattr(_config(model), METHOD, None)
    is_ours = isinstance(method, Mapping) and method.get("quant_method") == NAME
    for entry in (TABLE, ATTENTION, *([METHOD] if is_ours else [])):
        if hasattr(_config(model), entry):
            delattr(_config(model), entry)
    return given


def restore(model: Model, mode: Mode | str | None = None, *, backend: str | None = None) -> Model:
    """Attach the table that a saved model's configuration carries; returns the model.

    `from_pretrained` has done so already where `hccs.nn` was imported before. Mode and backend are those it
    was saved with unless others are given. The model may have another head than the one that was saved.
    """
    table = _named_as_in(model, saved_table(model))
    if _config(model).hccs.get("learnable"):
        raise ModelError(
            "a model saved with the parameters it has learnt",
            "one saved while they were learnable, with the table that they started from",
            "Before saving: hccs.nn.attach(model, hccs.nn.current_table(model)).",
        )
    return attach(model, table, mode, backend=backend or _config(model).hccs.get("backend", "float"))


def _named_as_in(model: nn.Module, table: ParamTable) -> ParamTable:
    """The table with the names its layers have in this model.

    transformers loads the weights of a model into its base model and the other way round; names of layers
    then lose or gain a prefix such as "bert".
    """
    prefix, names = f"{getattr(model, 'base_model_prefix', '')}.", table.layers or ()
    for renamed in ([name.removeprefix(prefix) for name in names], [prefix + name for name in names]):
        if {*renamed} == {*attention_layers(model)}:
            return replace(table, layers=tuple(renamed))
    return table


def saved_table(model: nn.Module) -> ParamTable:
    saved = getattr(_config(model), TABLE, None)
    if not isinstance(saved, dict):
        raise ModelError(
            "a model saved with HCCS attached",
            "a configuration without 'hccs'",
            "Attach a table with hccs.nn.attach, then save_pretrained.",
        )
    try:
        return ParamTable.from_dict({name: value for name, value in saved.items() if name not in _CHOICES})
    except HccsError as error:
        raise ModelError(
            "admissible parameters in the configuration", str(error), "Convert the model again."
        ) from error


def current_table(model: nn.Module) -> ParamTable:
    """The parameters the model uses now; after learning they differ from those attached."""
    before = saved_table(model)
    layers = attention_layers(model)
    order = before.layers or list(layers)
    slots = [getattr(layers[name], SLOT, None) for name in order]
    if not all(hasattr(slot, "theta_and_scale") for slot in slots):
        raise ModelError("a model with HCCS attached", "one without", "hccs.nn.restore(model) attaches it.")
    values = np.stack([slot.theta_and_scale() for slot in slots])  # type: ignore[union-attr]
    integers = values[..., :-1].round().astype(np.int32)
    theta = {name: integers[..., i] for i, name in enumerate(NAMES) if i < integers.shape[-1]}
    if before.lines == 1:  # wide sums alone: their second line says nothing
        theta = {name: theta[name] for name in NAMES[:ONE_LINE]}
    return replace(before, **theta, scale=values[..., -1])


def fill(slots: Mapping[str, AttentionSlot], model: nn.Module) -> None:
    """Put a slot into each named attention layer and switch the model to our attention.

    `attention_layers(model)` has the names. The configuration does not record the slots: loading a model
    saved like this is refused until its slots are filled.
    """
    model = unwrapped(model)
    layers = attention_layers(model)
    for name, slot in slots.items():
        if name not in layers or not isinstance(slot, AttentionSlot):
            raise ModelError(
                f"slots for the layers {', '.join(layers)}",
                f"{type(slot).__name__} for {name}",
                "A slot is an hccs.nn.AttentionSlot, such as hccs_lab.surrogates.get(method).module returns.",
            )
    register()
    for name, slot in slots.items():
        setattr(layers[name], SLOT, slot.to(_device(layers[name], model)).train(model.training))
    before = _config(model)._attn_implementation
    if not hasattr(model, PREVIOUS):
        _own_configuration(model)
        setattr(model, PREVIOUS, "" if before == NAME else before or "eager")
    if before != NAME:
        switch(model, layers, NAME)
    setattr(_config(model), ATTENTION, NAME)


def _own_configuration(model: nn.Module) -> None:
    """Give the model a copy of its configuration: other models may have been built from the same object."""
    copies: dict[int, Any] = {}
    for module in model.modules():
        config = vars(module).get("config")
        if config is not None:
            module.config = copy.deepcopy(config, copies)


def _watch_caches(model: nn.Module, *, integers: bool) -> None:
    """Let generation keep int8 keys and values in the layers that have a slot, or not."""
    from hccs.nn.cache import unwatch, watch

    for module in model.modules():
        if hasattr(module, SLOT):
            (watch if integers else unwatch)(module)


def _device(layer: nn.Module, model: nn.Module) -> torch.device:
    """The layer's own device: those of a large model may be on several."""
    whole = device_of(model)
    return next((p.device for p in layer.parameters() if not p.is_meta), whole)


def _config(model: nn.Module) -> Any:
    return unwrapped(model).config


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


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """On leaving, by whatever way, the model has the attention, flags and entries it came with.

    These are the slots of its attention layers and what its configuration says of them, the training flag of
    every module and `requires_grad` of every parameter. Weights are left to the work.
    """
    model = unwrapped(model)
    layers, config = attention_layers(model), _config(model)
    configs = [(module, vars(module)["config"]) for module in model.modules() if "config" in vars(module)]
    slots = {name: getattr(layer, SLOT, None) for name, layer in layers.items()}
    attention, previous = config._attn_implementation, getattr(model, PREVIOUS, None)
    entries = {name: getattr(config, name, None) for name in (TABLE, METHOD, ATTENTION)}
    training = [(module, module.training) for module in model.modules()]
    learning = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for name, layer in layers.items():
            _put(layer, SLOT, slots[name])
        for module, own in configs:
            module.config = own
        if config._attn_implementation != attention:
            switch(model, layers, attention)
        _put(model, PREVIOUS, previous)
        for entry, value in entries.items():
            _put(config, entry, value)
        for module, flag in training:
            module.training = flag
        for parameter, flag in learning:
            parameter.requires_grad_(flag)


def _put(owner: Any, name: str, value: Any) -> None:
    if value is not None:
        setattr(owner, name, value)
    elif hasattr(owner, name):
        delattr(owner, name)


def register_loader() -> None:
    """Make transformers attach HCCS on loading; does nothing without transformers, or when called again.

    transformers hands a model whose configuration names a quantisation method to that method's quantiser. The
    weights are as they were, so the model is not quantised in its sense: it trains, casts and saves like any.
    """
    try:
        from transformers.quantizers import auto
        from transformers.quantizers.base import HfQuantizer
        from transformers.utils.quantization_config import QuantizationConfigMixin
    except ImportError:
        return
    if NAME in auto.AUTO_QUANTIZER_MAPPING:
        return

    class HccsConfig(QuantizationConfigMixin):  # type: ignore[misc]
        """The entry by which transformers finds the loader; the table has an entry of its own."""

        def __init__(self, quant_method: str = NAME) -> None:
            self.quant_method = quant_method  # type: ignore[assignment]

    class HccsLoader(HfQuantizer):  # type: ignore[misc]
        requires_calibration = True

        @property
        def is_trainable(self) -> bool:
            return True

        def is_serializable(self) -> bool:
            return True

        def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
            chosen = model.config._attn_implementation
            _as_ordinary(model)
            if chosen == NAME:
                return restore(model)
            warnings.warn(
                f"float softmax, not HCCS: the model was saved with HCCS and loaded with "
                f"attn_implementation={chosen!r}. hccs.nn.restore(model) attaches HCCS.",
                stacklevel=2,
            )
            return model

    register()
    auto.register_quantization_config(NAME)(HccsConfig)
    auto.register_quantizer(NAME)(HccsLoader)


def _as_ordinary(model: Any) -> None:
    """Take back what transformers notes of a quantised model: Trainer, half() and float() would refuse it."""
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if name in vars(model):
            delattr(model, name)
    for module in model.modules():
        getattr(getattr(module, "config", None), "__dict__", {}).pop("_is_quantized", None)
    setattr(model.config, METHOD, {"quant_method": NAME})
