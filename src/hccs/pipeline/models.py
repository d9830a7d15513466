"""Loading a classifier and its tokenizer from a folder or the Hub, and scoring it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hccs._extras import require
from hccs._progress import track
from hccs.errors import ModelError
from hccs.nn.interface import attention_layers
from hccs.pipeline.data.tokens import TokenisedSet


@dataclass(frozen=True)
class Loaded:
    """A classifier, its tokenizer, and whether its classification head came with it."""

    model: Any
    tokenizer: Any
    has_head: bool


def transformers() -> Any:
    """The transformers package, or what to install."""
    return require("transformers", "hf")


def load_classifier(name: str, labels: tuple[str, ...], vocabulary: str | Path | None = None) -> Loaded:
    """The model at a folder or Hub name as a float32 sequence classifier for these labels."""
    hf = transformers()
    hf.logging.set_verbosity_error()
    try:
        model, info = hf.AutoModelForSequenceClassification.from_pretrained(
            name,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={label: i for i, label in enumerate(labels)},
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        tokenizer = load_tokenizer(name, vocabulary)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"a transformers model at {name}",
            str(error).splitlines()[0],
            "Give a folder with config.json and weights, or a Hub name where there is network.",
        ) from error
    attention_layers(model)
    lacking = [*info["missing_keys"], *(key[0] for key in info.get("mismatched_keys", ()))]
    has_head = not any(part in key for key in lacking for part in ("classifier", "score", "pre_classifier"))
    return Loaded(model, tokenizer, has_head)


def load_tokenizer(name: str, vocabulary: str | Path | None = None) -> Any:
    """The model's tokenizer; `vocabulary` is a vocab.txt for BERT weights that come without one."""
    hf = transformers()
    if vocabulary is not None:
        return hf.BertTokenizer(vocab=str(vocabulary), do_lower_case=True)
    return hf.AutoTokenizer.from_pretrained(name)


def accuracy(model: Any, data: TokenisedSet, batch_size: int = 256) -> float:
    """The share of examples the model labels as they are labelled."""
    chosen = predictions(model, data, batch_size).argmax(-1)
    return int((chosen == data.labels.to(chosen.device)).sum()) / len(data)


def predictions(model: Any, data: TokenisedSet, batch_size: int = 256, progress: str = "") -> torch.Tensor:
    """The model's logits for every example, in order; shows progress under a name."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    found = torch.empty(len(data), model.config.num_labels, device=device)
    batches = data.by_length(batch_size)
    with torch.no_grad():
        for indices in track(batches, total=len(batches), description=progress) if progress else batches:
            batch = {k: v.to(device) for k, v in data.__getitems__(indices).items() if k != "labels"}
            found[torch.tensor(indices, device=device)] = model(**batch).logits.float()
    model.train(was_training)
    return found


def best_device() -> torch.device:
    """CUDA where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def saved_labels(folder: Path) -> tuple[str, ...]:
    """The labels in a saved model's configuration, in order."""
    config = json.loads((folder / "config.json").read_text())
    names = config["id2label"]
    return tuple(names[key] for key in sorted(names, key=int))
