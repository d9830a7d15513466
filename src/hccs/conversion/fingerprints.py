"""What a run was begun on, in a few letters: a run that goes on with other weights or examples is refused.

Settings name files, which may have changed between two calls of the same command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import torch

from hccs.conversion.data.tasks import Examples
from hccs.conversion.data.tokens import TokenisedSet
from hccs.errors import FileError


def of_weights(model: Any) -> str:
    """Of a model's weights, without its head, which may be new."""
    return of_tensors(model.base_model.state_dict().values())


def of_examples(sets: Iterable[TokenisedSet]) -> str:
    """Of token ids or pixels and labels, in order."""
    return of_tensors(
        part for chosen in sets for part in (next(iter(chosen.columns.values())), chosen.labels)
    )


def of_texts(parts: Iterable[Examples]) -> str:
    """Of texts and labels before they are tokenised, in order."""
    found = blake2b(digest_size=8)
    for part in parts:
        found.update(repr((part.texts, part.labels)).encode(errors="surrogatepass"))
    return found.hexdigest()


def of_tensors(tensors: Iterable[torch.Tensor]) -> str:
    """Of all their bytes, in order."""
    found = blake2b(digest_size=8)
    for tensor in tensors:
        found.update(str((tensor.dtype, *tensor.shape)).encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def require_same(before: Mapping[str, str], now: Mapping[str, str], run: Any) -> None:
    """Refuse to go on where something differs; what earlier versions did not note may be anything."""
    changed = [name for name, value in now.items() if before.get(name, value) != value]
    if changed:
        raise FileError(
            f"the {' and '.join(changed)} that {run} was begun with",
            "others of the same name",
            "Use another --out for them.",
        )
