"""Batches as a model takes them: mappings or tuples of tensors, and what to do about anything else."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from hccs.errors import DataError, ModelError

_HINT = "A batch is what tokenizer(texts, padding=True, return_tensors='pt') returns; pass a list of them."


def require_batches(batches: Any) -> None:
    """Refuse what is one batch, or text, instead of batches."""
    if isinstance(batches, Iterable) and not isinstance(batches, (str, bytes, Mapping, torch.Tensor)):
        return
    raise DataError("batches: a list, an iterator or a DataLoader", _named(batches), _HINT)


def listed(batches: Any, *, named: bool = False) -> list[Any]:
    """All batches, at least one; where `named`, each must map names to tensors."""
    require_batches(batches)
    found = batches if isinstance(batches, list) else list(batches)
    require_some(found)
    for batch in found if named else ():
        if not isinstance(batch, Mapping):
            raise DataError("batches that map names to tensors", _named(batch), _HINT)
    return found


def require_some(batches: Sequence[Any]) -> None:
    if not batches:
        raise DataError("at least one batch", "none", "Pass batches of tokenised text, or a DataLoader.")


def call(model: nn.Module, batch: Any) -> Any:
    """The model's output for one batch, on the model's device. Labels are left out.

    So are entries that are no tensors and that the model does not know, such as the text itself.
    """
    device = device_of(model)
    if isinstance(batch, Mapping):
        return model(**{name: value.to(device) for name, value in named_inputs(model, batch).items()})
    tensors = batch if isinstance(batch, (tuple, list)) else [batch]
    foreign = [value for value in tensors if not torch.is_tensor(value)]
    if foreign or not tensors:
        raise DataError("a batch of tensors", _named(foreign[0] if foreign else batch), _HINT)
    _require_examples({str(place): value for place, value in enumerate(tensors)})
    return model(*(value.to(device) for value in tensors))


def named_inputs(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    """The tensors of a mapping that are inputs of the model, by name, without labels."""
    if not isinstance(batch, Mapping):
        raise DataError("a batch that maps names to tensors", _named(batch), _HINT)
    known = inspect.signature(model.forward).parameters
    for name, value in batch.items():
        if name in known and name != "labels" and value is not None and not torch.is_tensor(value):
            raise DataError(f"{name} as a tensor", _named(value), _HINT)
    found = {name: value for name, value in batch.items() if name != "labels" and torch.is_tensor(value)}
    if not found:
        raise DataError("a batch with tensors", f"one of {', '.join(map(str, batch)) or 'nothing'}", _HINT)
    _require_examples(found)
    return found


def _require_examples(tensors: Mapping[str, torch.Tensor]) -> None:
    for name, value in tensors.items():
        if not value.numel():
            raise DataError(
                "at least one example, of at least one token, in every batch",
                f"{name} of shape {tuple(value.shape)}",
                "Leave empty batches out.",
            )


def device_of(model: nn.Module) -> torch.device:
    """Where the model's weights are; a model whose weights are nowhere is refused."""
    first = next(model.parameters(), None)
    # accelerate keeps weights elsewhere until a module runs, and says so by a hook.
    if first is not None and first.is_meta and not hasattr(model, "_hf_hook"):
        raise ModelError(
            "a model with weights",
            "one on the meta device, which has shapes alone",
            "Load the weights, with from_pretrained or load_state_dict(..., assign=True).",
        )
    return torch.device("cpu") if first is None else first.device


def unwrapped(model: Any) -> Any:
    """The model inside the wrappers of `torch.compile`, `DataParallel` and `DistributedDataParallel`."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod
        else:
            return model


def _named(value: Any) -> str:
    if isinstance(value, str):
        return f"the text {value[:30]!r}{'…' if len(value) > 30 else ''}"
    if isinstance(value, Mapping):
        return f"a single mapping of {', '.join(map(str, value))}"
    return f"an object of type {type(value).__name__}"
