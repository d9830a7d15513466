"""Encoders of sentences from folders of sentence-transformers, without that package, and from plain ones.

What has no integer form is refused by its name: other modules, several poolings, other activations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

import hccs.nn
from hccs._extras import require
from hccs.conversion.models import (
    best_device,
    load_tokenizer,
    position_limit,
    require_weights,
    transformers,
    unreadable,
)
from hccs.errors import FileError, ModelError, ParameterError
from hccs.nn import VectorHead
from hccs.nn.interface import attention_layers
from hccs.nn.lowering import take_apart

POOLINGS = {"cls_token": "first", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
"""How sentence-transformers names the poolings that programs have."""

CHOICES = tuple(sorted(POOLINGS.values()))

ACTIVATIONS: dict[str, type[nn.Module]] = {"Identity": nn.Identity, "Tanh": nn.Tanh, "Sigmoid": nn.Sigmoid}
"""Functions of dense layers that programs have: their values stay between -1 and 1."""

MODULES = ("Transformer", "Pooling", "Dense", "Normalize")

TOKENS = 4096
"""Tokens of a batch, padding included."""

NEEDED = ["*.json", "*.txt", "*.safetensors", "*.bin", "*.model"]
"""Files of a repository on the Hub that are read."""


@dataclass(frozen=True, eq=False)
class SentenceEncoder:
    """A float encoder with its pooling and dense layers, its tokenizer, and how texts are put to it."""

    model: Any
    tokenizer: Any
    """Of the package `tokenizers`, without padding, cut at `max_length`."""
    head: VectorHead
    max_length: int
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    @property
    def dims(self) -> int:
        dense = self.head.dense
        return dense[-1][0].out_features if dense else int(self.model.config.hidden_size)

    @property
    def default_prefix(self) -> str:
        """What is put in front of every text unless another prompt is asked for."""
        return self.prompts[self.default_prompt] if self.default_prompt else ""

    @property
    def tokenizer_text(self) -> str:
        """The tokenizer.json, without a length of its own."""
        plain = type(self.tokenizer).from_str(self.tokenizer.to_str())
        plain.no_truncation()
        return str(plain.to_str())

    def batches(self, texts: Sequence[str], most: int = 64) -> list[tuple[list[int], dict[str, Any]]]:
        """Places of texts and their tokens, in batches of texts of like length."""
        read = self.tokenizer.encode_batch([self.default_prefix + text for text in texts])
        typed = getattr(self.model.config, "type_vocab_size", 0) > 1
        found: list[list[int]] = []
        for place in sorted(range(len(read)), key=lambda i: len(read[i].ids)):
            tokens = len(read[place].ids) * (len(found[-1]) + 1) if found else 0
            if not found or len(found[-1]) == most or tokens > TOKENS:
                found.append([])
            found[-1].append(place)
        device = best_device()
        made = []
        for places in found:
            lengths = torch.tensor([len(read[i].ids) for i in places])
            n = int(lengths.max())
            batch = {"input_ids": _padded([read[i].ids for i in places], n)}
            if typed:
                batch["token_type_ids"] = _padded([read[i].type_ids for i in places], n)
            batch["attention_mask"] = (torch.arange(n) < lengths[:, None]).long()
            made.append((places, {name: value.to(device) for name, value in batch.items()}))
        return made

    def count_cut(self, texts: Sequence[str]) -> int:
        """How many texts have more tokens than are read."""
        read = self.tokenizer.encode_batch([self.default_prefix + text for text in texts])
        return sum(1 for encoding in read if encoding.overflowing)

    def pooled(self, batch: dict[str, Any]) -> torch.Tensor:
        """Unit vectors of a batch by the model as it is."""
        hidden, mask = self.model(**batch).last_hidden_state, batch["attention_mask"].bool()[..., None]
        lengths = mask.sum(1)
        if self.head.pooling == "mean":
            row = hidden.masked_fill(~mask, 0).sum(1) / lengths
        elif self.head.pooling == "max":
            row = hidden.masked_fill(~mask, -torch.inf).amax(1)
        else:
            last = lengths[:, 0] - 1 if self.head.pooling == "last" else torch.zeros_like(lengths[:, 0])
            row = hidden[torch.arange(len(hidden)), last]
        for module, activation in self.head.dense:
            row = module(row)
            row = row if activation is None else activation(row)
        return F.normalize(row, dim=-1)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors [texts, dims] of the float model, with the default prompt in front of every text."""
        found = np.empty((len(texts), self.dims), np.float32)
        with torch.no_grad():
            for places, batch in self.batches(texts):
                found[places] = self.pooled(batch).float().cpu().numpy()
        return found


def _padded(rows: Sequence[Sequence[int]], n: int) -> torch.Tensor:
    return torch.tensor([[*row, *[0] * (n - len(row))] for row in rows])


def load_sentence_encoder(
    name: str,
    pooling: str | None = None,
    n: int | None = None,
    say: Callable[[str], None] = print,
    *,
    max_length: int | None = None,
) -> SentenceEncoder:
    """The encoder at a folder or Hub name; `pooling` is for folders that name none, the mean by default.

    Texts are cut at `n` tokens, by default at as many as the model was made for.
    """
    folder = local_folder(name)
    modules = _read(folder / "modules.json") if (folder / "modules.json").exists() else None
    if pooling not in (None, *CHOICES):
        raise ParameterError(
            f"pooling among {', '.join(CHOICES)}", repr(pooling), "Choose another --pooling."
        )
    if modules is None:
        if pooling is None:
            say(f"{name} names no pooling: its vectors are means over tokens (--pooling chooses another)")
        body, head = folder, VectorHead(pooling or "mean")
    else:
        body, head = _assembled(folder, _listed(folder, modules), pooling, say)
    body_settings = _optional(body, "sentence_*_config.json")
    model, tokenizer = _transformer(name, body), _tokenizer(str(body), body_settings)
    head = VectorHead(head.pooling, tuple((module.to(best_device()), act) for module, act in head.dense))
    take_apart(model, None, head)  # refuses what cannot be lowered before any work
    longest = max_length or _length(name, model, tokenizer, body_settings, n, say)
    fast = tokenizer.backend_tokenizer
    fast.no_padding()
    fast.enable_truncation(longest)
    prompts, default = _prompts(folder)
    _require_prompts_pooled(folder, modules, prompts)
    return SentenceEncoder(model, fast, head, longest, prompts, default)


def local_folder(name: str) -> Path:
    """A folder as it is; a Hub name as the folder that its files are downloaded to."""
    if Path(name).is_dir():
        return Path(name)
    hub = require("huggingface_hub", "hf", "for the Hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=NEEDED))
    except Exception as error:  # no network, no such name, no permission
        raise unreadable(f"an encoder of sentences at {name}", error) from error


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"{path} to be JSON", str(error), "Save the model again.") from error


def _optional(folder: Path, pattern: str) -> dict[str, Any]:
    """The object in the first file of that pattern; empty without one."""
    for path in sorted(folder.glob(pattern)):
        if path.name != "config_sentence_transformers.json":
            found = _read(path)
            return found if isinstance(found, dict) else {}
    return {}


def _listed(folder: Path, modules: Any) -> list[tuple[str, Path]]:
    """Kind and folder of every module, in order; unknown kinds are refused."""
    try:
        found = [(str(entry["type"]).rpartition(".")[2], folder / entry["path"]) for entry in modules]
    except (TypeError, KeyError) as error:
        raise FileError(
            f"{folder / 'modules.json'} to list modules with type and path", repr(error), "Save it again."
        ) from error
    unknown = next((kind for kind, _ in found if kind not in MODULES), None)
    if unknown is not None:
        raise ModelError(
            f"modules among {', '.join(MODULES)} in {folder}",
            unknown,
            "Programs end in a pooling, dense layers and a unit vector.",
        )
    return found


def _assembled(
    folder: Path, modules: list[tuple[str, Path]], pooling: str | None, say: Callable[[str], None]
) -> tuple[Path, VectorHead]:
    """The transformer's folder, and the pooling and dense layers after it."""
    kinds = [kind for kind, _ in modules]
    dense = kinds.count("Dense")
    wanted = ["Transformer", "Pooling", *["Dense"] * dense]
    if kinds not in (wanted, [*wanted, "Normalize"]):
        raise ModelError(
            f"Transformer, Pooling, Dense layers and Normalize, in this order, in {folder}",
            ", ".join(kinds) or "no module",
            "A program's only normalisation is its end.",
        )
    if kinds[-1] != "Normalize":
        say("  the model does not normalise its vectors: the converted model answers with unit vectors")
    own = _pooling(modules[1][1])
    if pooling not in (None, own):
        raise ParameterError(f"the model's own pooling, {own}", pooling, "Leave --pooling out.")
    return modules[0][1], VectorHead(own, tuple(_dense(path) for kind, path in modules if kind == "Dense"))


def _pooling(folder: Path) -> str:
    path = folder / "config.json"
    given = _read(path)
    prefix = "pooling_mode_"
    chosen = [key.removeprefix(prefix) for key, value in given.items() if key.startswith(prefix) and value]
    if isinstance(given.get("pooling_mode"), str):
        names = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
        chosen = [names.get(given["pooling_mode"], given["pooling_mode"])]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise ModelError(
            f"one pooling among {', '.join(POOLINGS)} in {path}",
            " and ".join(chosen) or "none",
            "Programs pool by mean, first, last or max, and by one of them.",
        )
    return POOLINGS[chosen[0]]


def _dense(folder: Path) -> tuple[nn.Linear, nn.Module]:
    given = _read(folder / "config.json")
    activation = str(given.get("activation_function", "torch.nn.modules.linear.Identity")).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise ModelError(
            f"a dense layer with one of {', '.join(ACTIVATIONS)} in {folder}",
            activation,
            "Programs have functions with values between -1 and 1 there.",
        )
    places = {given.get(name) for name in ("module_input_name", "module_output_name")}
    if not places <= {None, "sentence_embedding"}:
        raise ModelError(
            f"a dense layer of sentence_embedding in {folder}",
            ", ".join(sorted(map(str, places))),
            "Programs have dense layers after the pooling alone.",
        )
    weights = _weights(folder)
    weight, bias = weights.get("linear.weight"), weights.get("linear.bias")
    if weight is None:
        raise ModelError(f"linear.weight in {folder}", ", ".join(weights) or "no weights", "Save it again.")
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer.requires_grad_(False), ACTIVATIONS[activation]()


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    try:
        if (folder / "model.safetensors").exists():
            found: dict[str, torch.Tensor] = require("safetensors.torch", "hf").load_file(
                folder / "model.safetensors"
            )
            return found
        return dict(torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True))
    except Exception as error:  # whatever a damaged file brings up
        raise unreadable(f"weights of a dense layer in {folder}", error) from error


def _transformer(name: str, folder: Path) -> Any:
    try:
        model, info = transformers().AutoModel.from_pretrained(
            str(folder), dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # whatever a damaged file or a foreign architecture brings up
        raise unreadable(f"an encoder of transformers at {name}", error) from error
    attention_layers(model)
    require_weights(name, [key for key in info["missing_keys"] if "pooler" not in key.split(".")])
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # vectors are pooled from the tokens
    return hccs.nn.detach(model.to(best_device()).eval())


def _tokenizer(folder: str, settings: dict[str, Any]) -> Any:
    tokenizer = load_tokenizer(folder)
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is None or not hasattr(fast, "to_str"):
        raise ModelError(
            f"a tokenizer.json in {folder}", "a tokenizer written in Python", "Save it as a fast tokenizer."
        )
    if settings.get("do_lower_case"):
        normalizers = require("tokenizers", "text").normalizers
        own = [fast.normalizer] if fast.normalizer is not None else []
        fast.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
    return tokenizer


def _length(
    name: str, model: Any, tokenizer: Any, settings: dict[str, Any], n: int | None, say: Callable[[str], None]
) -> int:
    """Tokens of a text that are read: n, or what the model was made for, within its positions."""
    limit = position_limit(model)
    own = settings.get("max_seq_length") or min(int(tokenizer.model_max_length), limit or 512)
    own = own if limit is None else min(own, limit)
    if n is None or n == own:
        return int(own)
    if n < 1 or (limit is not None and n > limit):
        raise ParameterError(f"n of 1 to {limit}, the positions of {name}", str(n), "Choose another --n.")
    say(f"  texts are cut at {n} tokens; the model was made for {own}")
    return n


def _prompts(folder: Path) -> tuple[dict[str, str], str | None]:
    path = folder / "config_sentence_transformers.json"
    given = _read(path) if path.exists() else {}
    prompts, default = given.get("prompts") or {}, given.get("default_prompt_name")
    named = all(isinstance(part, str) for pair in prompts.items() for part in pair)
    if not named or (default is not None and default not in prompts):
        raise ModelError(f"prompts by name in {path}", f"{prompts}, default {default!r}"[:120], "Correct it.")
    return {key: value for key, value in prompts.items() if key}, default


def _require_prompts_pooled(folder: Path, modules: Any, prompts: dict[str, str]) -> None:
    if modules is None or not any(prompts.values()):
        return
    for kind, path in _listed(folder, modules):
        if kind == "Pooling" and _read(path / "config.json").get("include_prompt", True) is False:
            raise ModelError(
                f"a pooling over prompt and text in {path}",
                "include_prompt false",
                "Programs pool over every token.",
            )
