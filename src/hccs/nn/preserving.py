"""`unchanged`: work on a model that leaves it as it was, also when the work is interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from hccs.nn.attaching import ATTENTION, METHOD, PREVIOUS, TABLE
from hccs.nn.batches import unwrapped
from hccs.nn.interface import SLOT, attention_layers, switch


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


def _config(model: nn.Module) -> Any:
    return model.config
