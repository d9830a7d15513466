"""Models with a head from a folder or the Hub, their labels and tokenizers, and how well they score."""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hccs._extras import require
from hccs._progress import track
from hccs.conversion.data import labels as names
from hccs.conversion.data.problems import CLASSIFICATION, IMAGES, REGRESSION, TOKENS
from hccs.conversion.data.tasks import Task
from hccs.conversion.data.tokens import TokenisedSet
from hccs.conversion.metrics import ACCURACY, Metric
from hccs.errors import FileError, ModelError
from hccs.nn.interface import attention_layers

_MOST_ORDERS = 6
"""Labels of which every order is tried when a model seems to have them in another one."""


@dataclass(frozen=True)
class Loaded:
    """A classifier, its tokenizer, the labels of its outputs, and whether its head came with it."""

    model: Any
    tokenizer: Any
    has_head: bool
    labels: tuple[str, ...]


def transformers() -> Any:
    """The transformers package without its bars and messages, or what to install."""
    hf = require("transformers", "hf")
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()
    if sys.stderr.isatty():  # downloads take long enough to be watched
        require("huggingface_hub", "hf").utils.enable_progress_bars()
    return hf


def load_classifier(
    name: str,
    labels: Sequence[str],
    vocabulary: str | Path | None = None,
    *,
    order: Sequence[str] = (),
    new_head: bool = False,
    problem: str = CLASSIFICATION,
) -> Loaded:
    """The model at a folder or Hub name in float32, with a head for data with these labels.

    Its outputs keep their order: the data's labels are matched with the model's own names, and `order` tells
    theirs where the names differ. A model without a classification head gets an untrained one in the order
    of `labels`, and so does, with `new_head`, one whose head is to be replaced; any other head that does not
    fit is refused. A regression has one output, whatever its name.
    """
    hf = transformers()
    # The first look must not change what an untrained head is drawn from.
    with torch.random.fork_rng(devices=[]):
        model, info = _pretrained(hf, name, problem)
    tokenizer = load_processor(name) if problem == IMAGES else load_tokenizer(name, vocabulary)
    attention_layers(model)
    base = f"{model.base_model_prefix}."
    has_head = all(key.startswith(base) for key in info["missing_keys"])
    if has_head and not new_head:
        found = _arranged(name, model, info["mismatched_keys"], labels, order, problem)
    else:
        found = tuple(order) or tuple(labels)
        if not found:
            raise no_labels(name)
        kind = "regression" if problem == REGRESSION else None
        model, _ = _pretrained(hf, name, problem, num_labels=len(found), problem_type=kind)
    model.config.id2label = dict(enumerate(found))
    model.config.label2id = {label: i for i, label in enumerate(found)}
    return Loaded(model, tokenizer, has_head and not new_head, found)


def no_labels(name: str) -> ModelError:
    """The refusal of a model that would have to be trained on labels that there are none of."""
    return ModelError(
        f"a model with a trained head at {name}: there are no labels to train one on",
        "a head that is missing, or to be replaced",
        "Fine-tune the model first, or give labelled data with --train.",
    )


def _pretrained(hf: Any, name: str, problem: str, **changes: Any) -> tuple[Any, dict[str, Any]]:
    kinds = {TOKENS: hf.AutoModelForTokenClassification, IMAGES: hf.AutoModelForImageClassification}
    kind = kinds.get(problem, hf.AutoModelForSequenceClassification)
    try:
        model, info = kind.from_pretrained(
            name, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True, **changes
        )
    except Exception as error:  # whatever a damaged file or a foreign architecture brings up
        raise _unreadable(name, error) from error
    return model, info


def _unreadable(name: str, error: Exception) -> ModelError:
    lines = str(error).strip().splitlines()
    return ModelError(
        f"a transformers model at {name}",
        lines[0] if lines else repr(error),
        "Give a folder with config.json and weights, or a Hub name where there is network.",
    )


_NEW_HEAD = "hccs convert --new-head replaces the head and fine-tunes it on the data."


def _arranged(
    name: str,
    model: Any,
    mismatched: Iterable[Any],
    labels: Sequence[str],
    order: Sequence[str],
    problem: str,
) -> tuple[str, ...]:
    """The labels of the model's outputs, or why its head does not fit the data."""
    config = model.config
    own = tuple(str(config.id2label[i]) for i in sorted(config.id2label))
    if problem == REGRESSION:
        if len(own) != 1 or config.problem_type not in (None, "regression"):
            raise ModelError(
                f"a model with one output, a value, at {name}", f"one for {len(own)} labels", _NEW_HEAD
            )
        return tuple(labels)
    kinds = {"regression": "regression", "multi_label_classification": "several labels at once"}
    if config.problem_type in kinds or len(own) < 2:
        kind = kinds.get(config.problem_type, "regression")
        raise ModelError(
            f"a model that chooses one of several labels at {name}",
            f"one for {kind}",
            f"{_NEW_HEAD} --problem regression keeps one for values.",
        )
    if mismatched:
        raise ModelError(
            f"weights at {name} that fit its config.json",
            f"other sizes of {names.shown(sorted(key for key, *_ in mismatched))}",
            f"Correct the number of labels in config.json. {_NEW_HEAD}",
        )
    found = names.in_model_order(own, labels, order)
    if found is None and len(own) != len(labels):
        raise ModelError(
            f"a classification head for the {len(labels)} labels of the data, {names.shown(labels)}",
            f"a head for {len(own)} labels at {name}: {names.shown(own)}",
            f"Choose data with the model's labels. {_NEW_HEAD}",
        )
    if found is None:
        raise ModelError(
            f"data labelled as the model at {name} names its outputs: {names.shown(own)}",
            f"labels {names.shown(labels)}",
            f"Give the data's labels in the order of the model's, such as --labels {','.join(labels)}.",
        )
    if names.is_unnamed(own) and not order and not names.is_unnamed(found):
        warnings.warn(
            f"the model does not name its labels; taking them in this order: {names.shown(found)}. "
            "Where it is another, give it with --labels.",
            stacklevel=3,
        )
    return found


def load_tokenizer(name: str, vocabulary: str | Path | None = None) -> Any:
    """The model's tokenizer; `vocabulary` is a vocab.txt for BERT weights that come without one."""
    hf = transformers()
    try:
        if vocabulary is not None:
            return hf.BertTokenizer(vocab=str(vocabulary), do_lower_case=True)
        return hf.AutoTokenizer.from_pretrained(name)
    except Exception as error:
        raise _unreadable(name, error) from error


def load_processor(name: str) -> Any:
    """What makes images of files into the model's input."""
    try:
        return transformers().AutoImageProcessor.from_pretrained(name)
    except Exception as error:
        raise _unreadable(name, error) from error


def longest_row(model: Any, task: Task) -> int:
    """Tokens of the longest sequence: the task's n; of images a row has all patches and special tokens."""
    size, patch = (getattr(model.config, name, None) for name in ("image_size", "patch_size"))
    if task.problem != IMAGES or not isinstance(size, int) or not isinstance(patch, int):
        return task.n
    special = 2 if model.config.model_type == "deit" else 1
    return max(task.n, (size // patch) ** 2 + special)


POSITIONS = ("position_embeddings", "embed_positions", "wpe")
"""Names of the table that learnt positions are looked up in."""


def require_positions(model: Any, tokens: int) -> None:
    """Refuse sequences of so many tokens where the model's table of positions ends before."""
    for name, table in model.named_modules():
        if name.rpartition(".")[2] not in POSITIONS or not isinstance(table, torch.nn.Embedding):
            continue
        # RoBERTa's numbers begin behind the padding's, OPT's behind an offset.
        before = getattr(table, "offset", 0) if table.padding_idx is None else table.padding_idx + 1
        if tokens > table.num_embeddings - before:
            raise ModelError(
                f"sequences of at most {table.num_embeddings - before} tokens, for which it has positions",
                f"{tokens} tokens",
                "Lower --n.",
            )


def score(model: Any, data: TokenisedSet, metric: Metric = ACCURACY) -> float:
    """How well the model does on the examples."""
    return metric(predictions(model, data), data.labels)


def accuracy(model: Any, data: TokenisedSet) -> float:
    """The share of examples the model labels as they are labelled."""
    return score(model, data)


def float_accuracy(model: Any, data: TokenisedSet, labels: Sequence[str]) -> float:
    """`accuracy` of a float model; a warning says when it is below chance, and if another order helps."""
    chosen = predictions(model, data).argmax(-1).cpu()
    count = len(labels)
    confusion = torch.bincount(data.labels.cpu() * count + chosen, minlength=count**2).view(count, count)
    score = int(confusion.diagonal().sum()) / len(data)
    if score < 1 / count:
        warnings.warn(
            f"the float model labels {score:.4f} of the dev examples as they are labelled, below chance "
            f"({1 / count:.2f}). Are the labels in the order of its outputs ({names.shown(labels)})?"
            + _better_order(confusion, labels, len(data)),
            stacklevel=2,
        )
    return score


def _better_order(confusion: torch.Tensor, labels: Sequence[str], examples: int) -> str:
    """The order of labels that the model's answers agree with most, as a hint."""
    count = len(labels)
    if count > _MOST_ORDERS:
        return ""
    counts = confusion.tolist()
    best = max(
        itertools.permutations(range(count)),
        key=lambda order: sum(counts[label][output] for output, label in enumerate(order)),
    )
    if best == tuple(range(count)):
        return ""
    right = sum(counts[label][output] for output, label in enumerate(best))
    return f" In the order {', '.join(labels[i] for i in best)} it would be {right / examples:.4f}."


def predictions(model: Any, data: TokenisedSet, batch_size: int = 256, progress: str = "") -> torch.Tensor:
    """The model's logits for every example, in order; shows progress under a name."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    found: torch.Tensor | None = None
    batches = data.by_length(batch_size)
    with torch.no_grad():
        for indices in track(batches, total=len(batches), description=progress) if progress else batches:
            batch = {k: v.to(device) for k, v in data.__getitems__(indices).items() if k != "labels"}
            logits = model(**batch).logits.float()
            if found is None:
                # Of models with logits per token zeros stand behind the end of a text.
                rows = (data.width,) if logits.ndim == 3 else ()
                found = logits.new_zeros(len(data), *rows, logits.shape[-1])
            place = found[:, : logits.shape[1]] if logits.ndim == 3 else found
            place[torch.tensor(indices, device=device)] = logits
    model.train(was_training)
    assert found is not None
    return found


def best_device() -> torch.device:
    """CUDA where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def saved_labels(folder: Path) -> tuple[str, ...]:
    """The labels in a saved model's configuration, in order."""
    path = folder / "config.json"
    try:
        own = json.loads(path.read_text())["id2label"]
        return tuple(str(own[key]) for key in sorted(own, key=int))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"a model's labels in {path}", f"{type(error).__name__}: {error}", "Convert the model anew."
        ) from error
