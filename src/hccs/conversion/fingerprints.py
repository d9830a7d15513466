"""Hashes of what a run was begun with: it is not resumed with other weights or examples.

Settings name files, which may have changed between two calls of the same command.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import torch

from hccs.conversion.data.tasks import Examples
from hccs.conversion.data.tokens import TokenisedSet
from hccs.errors import FileError

_PROVENANCE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
"""What a configuration says of where it came from, which changes no answer."""


def of_weights(model: Any, *, with_head: bool = True) -> str:
    """A hash of a model's weights and of its configuration; an untrained head is left out."""
    part = model if with_head else model.base_model
    known = {key: value for key, value in model.config.to_diff_dict().items() if key not in _PROVENANCE}
    text = json.dumps(known, sort_keys=True, default=str)
    values = [value for _, value in sorted(part.state_dict().items())]
    return of_tensors([torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8), *values])


def of_examples(sets: Iterable[TokenisedSet]) -> str:
    """A hash of token ids or pixels and of labels, in order."""
    return of_tensors(
        part for chosen in sets for part in (next(iter(chosen.columns.values())), chosen.labels)
    )


def of_texts(parts: Iterable[Examples]) -> str:
    """A hash of texts and labels before they are tokenised, in order."""
    found = blake2b(digest_size=8)
    for part in parts:
        found.update(repr((part.texts, part.labels)).encode(errors="surrogatepass"))
    return found.hexdigest()


def of_tensors(tensors: Iterable[torch.Tensor]) -> str:
    """A hash of all their bytes, in order."""
    found = blake2b(digest_size=8)
    for tensor in tensors:
        found.update(str((tensor.dtype, *tensor.shape)).encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def require_same(before: Mapping[str, str], now: Mapping[str, str], run: Any) -> None:
    """Refuse to resume a run where something differs; a run that has noted nothing yet may use anything."""
    changed = [name for name, value in now.items() if before and before.get(name) != value]
    if changed:
        raise FileError(
            f"the {' and '.join(changed)} that {run} was begun with",
            "others of the same name",
            "Use another --out for them.",
        )
