"""Models with a head from a folder or the Hub, their labels and tokenizers, and how well they score."""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hccs._extras import require
from hccs._progress import track
from hccs.conversion.data import labels as names
from hccs.conversion.data.problems import CLASSIFICATION, IMAGES, TOKENS, VALUES
from hccs.conversion.data.tasks import Task, load
from hccs.conversion.data.tokens import ChosenLength, TokenisedSet, choose_length
from hccs.conversion.metrics import ACCURACY, Metric
from hccs.errors import FileError, ModelError
from hccs.nn.interface import attention_layers

_MOST_ORDERS = 6
"""More labels are too many to try every order of them."""

_NEW_HEAD = "hccs convert --new-head replaces the head and fine-tunes it on the data."


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

    Its outputs keep their order: `in_model_order` tells which label each one is. A model without a
    classification head gets an untrained one in the order of `labels`, and so does, with `new_head`, one
    whose head is to be replaced; any other head that does not fit is refused, and so is a body that lacks
    weights. A regression has one output, whatever its name.
    """
    hf = transformers()
    # The first look must not change what an untrained head is drawn from.
    with torch.random.fork_rng(devices=[]):
        model, info = _pretrained(hf, name, problem)
    tokenizer = load_processor(name) if problem == IMAGES else load_tokenizer(name, vocabulary)
    attention_layers(model)
    _require_body(name, model, info)
    if getattr(model.config, "type_vocab_size", None) == 1 and problem != IMAGES:
        # All tokens of such a model are of type 0, those of a pair's second text, too.
        tokenizer.model_input_names = [x for x in tokenizer.model_input_names if x != "token_type_ids"]
    has_head = all(key.startswith(f"{model.base_model_prefix}.") for key in info["missing_keys"])
    if has_head and not new_head:
        _require_head(name, model, info["mismatched_keys"], problem)
        require_weights(name, info["missing_keys"], _NEW_HEAD)  # a pooler, without which a head is worthless
        found = tuple(labels) if problem in VALUES else _arranged(name, model, labels, order)
    else:
        found = tuple(order) or tuple(labels)
        if not found:
            raise no_labels(name)
        kind = "regression" if problem in VALUES else None
        model, _ = _pretrained(hf, name, problem, num_labels=len(found), problem_type=kind)
    model.config.id2label = dict(enumerate(found))
    model.config.label2id = {label: i for i, label in enumerate(found)}
    return Loaded(model, tokenizer, has_head and not new_head, found)


def no_labels(name: str) -> ModelError:
    """The refusal of a model that would have to be trained without labels."""
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
        raise unreadable(f"a transformers model at {name}", error) from error
    return model, info


def unreadable(expected: str, error: Exception) -> ModelError:
    """The refusal of a model or tokenizer that transformers could not load."""
    lines = str(error).strip().splitlines()
    return ModelError(
        expected,
        lines[0] if lines else repr(error),
        "Give a folder with config.json and weights, or a Hub name where there is network.",
    )


def require_weights(name: str, missing: Iterable[str], hint: str = "") -> None:
    """Refuse a model with weights that no file brought: transformers draws them at random."""
    absent = sorted(missing)
    if absent:
        raise ModelError(
            f"all weights of the model at {name}",
            f"none of {names.shown(absent)}",
            hint or "Save the model again; does config.json name more layers than it has?",
        )


def _require_body(name: str, model: Any, info: Mapping[str, Any]) -> None:
    """Only the weights of a head, with the pooler before it, may be missing or of another size."""

    def in_body(key: str) -> bool:
        parts = key.split(".")
        return parts[0] == model.base_model_prefix and "pooler" not in parts

    require_weights(name, filter(in_body, info["missing_keys"]))
    _require_sizes(name, [key for key, *_ in info["mismatched_keys"] if in_body(key)], "")


def _require_sizes(name: str, mismatched: Sequence[str], hint: str) -> None:
    if mismatched:
        raise ModelError(
            f"weights at {name} that fit its config.json",
            f"other sizes of {names.shown(sorted(mismatched))}",
            f"Correct the sizes in config.json. {hint}".rstrip(),
        )


def _require_head(name: str, model: Any, mismatched: Iterable[Any], problem: str) -> None:
    """Refuse a head that answers another kind of question."""
    kind, outputs = model.config.problem_type, len(model.config.id2label)
    if problem in VALUES and (outputs != 1 or kind not in (None, "regression")):
        raise ModelError(
            f"a model with one output, a value, at {name}", f"one for {outputs} labels", _NEW_HEAD
        )
    kinds = {"regression": "regression", "multi_label_classification": "several labels at once"}
    if problem not in VALUES and (kind in kinds or outputs < 2):
        raise ModelError(
            f"a model that chooses one of several labels at {name}",
            f"one for {kinds.get(kind, 'regression')}",
            f"{_NEW_HEAD} --problem regression keeps one for values.",
        )
    _require_sizes(name, [key for key, *_ in mismatched], _NEW_HEAD)


def _arranged(name: str, model: Any, labels: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    """The labels of the model's outputs, or why they cannot be those of the data."""
    own = tuple(str(model.config.id2label[i]) for i in sorted(model.config.id2label))
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
    matched, wanted = [names.key(label) for label in own], [names.key(label) for label in found]
    if matched != wanted and sorted(matched) == sorted(wanted):
        warnings.warn(
            f"the model names its outputs {names.shown(own)}; --labels makes them {names.shown(found)}",
            stacklevel=3,
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
    where = name if vocabulary is None else str(vocabulary)
    try:
        if vocabulary is None:
            found = hf.AutoTokenizer.from_pretrained(name)
        else:
            found = hf.BertTokenizer(vocab=where, do_lower_case=True)
    except Exception as error:
        raise unreadable(f"a transformers tokenizer at {where}", error) from error
    if {*found.get_vocab()} <= {*found.all_special_tokens}:  # transformers makes one up without files
        raise ModelError(
            f"a tokenizer with a vocabulary at {where}",
            "one that knows special tokens alone",
            "Put its files beside the model, or name a BERT vocab.txt with --vocabulary.",
        )
    return found


def load_processor(name: str) -> Any:
    """What makes images of files into the model's input."""
    try:
        return transformers().AutoImageProcessor.from_pretrained(name)
    except Exception as error:
        raise unreadable(f"a transformers model at {name}", error) from error


def longest_row(model: Any, task: Task) -> int:
    """Tokens of the longest sequence: the task's n; a row of an image has all patches and special tokens."""
    size, patch = (getattr(model.config, name, None) for name in ("image_size", "patch_size"))
    if task.problem != IMAGES or not isinstance(size, int) or not isinstance(patch, int):
        return task.n
    special = 2 if model.config.model_type == "deit" else 1
    return max(task.n, (size // patch) ** 2 + special)


def default_length(task: Task, data: str | None, model: str, vocabulary: str | None = None) -> ChosenLength:
    """An n for a task that has none of its own, from its texts and the positions of the model.

    Images need none: `longest_row` counts their patches.
    """
    if task.problem == IMAGES:
        return ChosenLength(task.n, "images have as many tokens as the model has patches")
    found = load(task, data)
    hf, tokenizer = transformers(), load_tokenizer(model, vocabulary)
    try:
        with torch.device("meta"):  # the shapes alone
            limit = position_limit(hf.AutoModel.from_config(hf.AutoConfig.from_pretrained(model)))
    except Exception as error:
        raise unreadable(f"a transformers model at {model}", error) from error
    parts = (found.train, found.dev)
    both = replace(
        found.train, texts=[x for p in parts for x in p.texts], labels=[x for p in parts for x in p.labels]
    )
    return choose_length(both, tokenizer, limit)


def position_limit(model: Any) -> int | None:
    """The longest sequence for which a model has learnt positions; None without a table of positions."""
    limits = []
    for table in _embeddings(model, "position_embeddings", "embed_positions", "wpe"):
        # RoBERTa's numbers begin after the padding's, OPT's after an offset.
        before = getattr(table, "offset", 0) if table.padding_idx is None else table.padding_idx + 1
        limits.append(table.num_embeddings - before)
    return min(limits, default=None)


def _embeddings(model: Any, *wanted: str) -> list[torch.nn.Embedding]:
    modules = model.named_modules()
    return [
        m for name, m in modules if name.rpartition(".")[2] in wanted and isinstance(m, torch.nn.Embedding)
    ]


def require_fit(model: Any, sets: Iterable[TokenisedSet]) -> None:
    """Refuse texts with more tokens than the model has positions for, or with tokens that it has not."""
    for part in sets:
        if "input_ids" not in part.columns:
            continue
        limit = position_limit(model)
        if limit is not None and part.width > limit:
            raise ModelError(
                f"sequences of at most {limit} tokens, for which it has positions",
                f"{part.width} tokens",
                "Lower --n.",
            )
        tables = [("ids", "input_ids", model.get_input_embeddings())]
        tables += [("types", "token_type_ids", t) for t in _embeddings(model, "token_type_embeddings")]
        for what, column, table in tables:
            largest = int(part.columns[column].max()) if column in part.columns else 0
            if largest >= table.num_embeddings:
                raise ModelError(
                    f"token {what} below {table.num_embeddings}, as many as the model has",
                    str(largest),
                    "The tokenizer is another model's, or tokens were added to it but not to the model.",
                )


def score(model: Any, data: TokenisedSet, metric: Metric = ACCURACY) -> float:
    """The metric of a model's answers; by default the share of examples labelled as they are."""
    return metric(predictions(model, data), data.labels)


def float_accuracy(model: Any, data: TokenisedSet, labels: Sequence[str]) -> float:
    """The accuracy of a float model; a warning says when it is below chance, and if another order helps."""
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
    listed = ",".join(labels[i] for i in best)
    words = (
        ""
        if names.is_unnamed(labels)
        else f" (for data that hold numbers: --labels {','.join(map(str, best))})"
    )
    return f" With --labels {listed}{words} it would be {right / examples:.4f}."


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
                # Logits per token are zeros after the end of a text.
                rows = (data.width,) if logits.ndim == 3 else ()
                found = logits.new_zeros(len(data), *rows, logits.shape[-1])
            place = found[:, : logits.shape[1]] if logits.ndim == 3 else found
            place[torch.tensor(indices, device=device)] = logits
    model.train(was_training)
    assert found is not None
    return found


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def saved_labels(folder: Path) -> tuple[str, ...]:
    """The labels in a saved model's configuration, in order."""
    path = folder / "config.json"
    try:
        own = json.loads(path.read_text())["id2label"]
        return tuple(str(own[key]) for key in sorted(own, key=int))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"a model's labels in {path}", f"{type(error).__name__}: {error}", "Convert the model again."
        ) from error
