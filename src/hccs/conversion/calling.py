"""`hccs.convert`: the pipeline of the command on a live model and data in any form."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hccs._files.atomic import replacing_folder
from hccs.conversion import run
from hccs.conversion.data import tasks
from hccs.conversion.data.problems import CLASSIFICATION, EMBEDDINGS
from hccs.conversion.data.sources import Given, given_as, parts_of
from hccs.conversion.embeddings import ConvertedEncoder, EmbeddingSettings, convert_embeddings
from hccs.conversion.metrics import Function, spelled
from hccs.conversion.runs import state
from hccs.conversion.runs.folder import RunFolder
from hccs.conversion.settings import Settings
from hccs.conversion.training import RETRAINING, Recipe
from hccs.errors import DataError, FileError, ModelError, ParameterError
from hccs.nn.interface import SLOT

GIVEN = "given"
"""The folder in a run that holds the model and the examples that it was called with."""


def convert(
    model: Any,
    train: Any,
    dev: Any = None,
    *,
    out: str | os.PathLike[str],
    tokenizer: Any = None,
    text: Sequence[str] = ("sentence",),
    label: str | None = "label",
    labels: Sequence[str] = (),
    problem: str = CLASSIFICATION,
    metric: str | Function | None = None,
    n: int | None = None,
    integer: str = "whole",
    retraining: Recipe | None = RETRAINING,
    say: Callable[[str], None] = print,
    **settings: Any,
) -> Any:
    """Convert a model as `hccs convert` does, to a `Converted`; the same call resumes an interrupted run.

    `model` is a folder, a Hub name, or a transformers model, with its `tokenizer`. `train` and `dev` are
    files (CSV, TSV, JSONL, Parquet) or folders that `datasets` has saved, with the columns `text` and
    `label`; `datasets` objects, of which a dictionary of splits brings its own `dev`; or examples (text,
    label): a text may be a pair of texts, and where the problem is "tokens" a list of words with a list of
    labels. Without `dev` a tenth of `train`
    is held out. `train` needs no labels: texts alone, or (text, None), or a file with `label` None; the
    conversion then follows the float model's answers. With `retraining=None` the model is calibrated only.
    With the problem "embeddings" `model` is an encoder of sentences, a folder of sentence-transformers say,
    and `train` are texts: a file, or a list. What returns is a `ConvertedEncoder`, and its `settings` are
    further fields of `EmbeddingSettings`. The problem "rerank" is that of a model with one output for a query
    and a passage, whose order counts.

    `settings` are further fields of `Settings`. Everything is written into the folder `out`.
    """
    folder = Path(out)
    with state().main_process_first():
        if state().is_main_process:
            RunFolder(folder, {}, marker=GIVEN).require_free()
        name = _saved(model, tokenizer, folder / GIVEN / "model")
    if problem == EMBEDDINGS:
        given_else = {"dev": dev, "labels": labels, "metric": metric}
        return _convert_encoder(name, train, tuple(text), folder, given_else, say, n=n, **settings)
    columns, names = tuple(text), tuple(labels)
    named, unlabelled = label or "label", label is None
    files: list[str | None] = []
    for part, source in zip(("train", "dev"), parts_of(train, dev), strict=True):
        if source is None or isinstance(source, str | os.PathLike):
            files.append(None if source is None else os.fspath(source))
            continue
        given: Given = given_as(source, text, named, part)
        unlabelled = unlabelled or not given.labelled
        if part == "dev" and not given.labelled:
            raise DataError("labels in dev", "none", "Leave dev out: some of train are asked instead.")
        files.append(_written(given, folder, part))
        columns, names = given.text, names or given.labels
    assert files[0] is not None
    task = tasks.custom_task(
        files[0], files[1], columns, named, names=names, problem=problem, unlabelled=unlabelled
    )
    task = run.with_length(task, n, settings.get("data"), name, settings.get("vocabulary"), say)
    chosen = Settings(
        model=name,
        task=task,
        labels=tuple(labels),
        integer=integer,
        retraining=retraining,
        metric=spelled(metric),
        **settings,
    )
    own = metric if callable(metric) else None
    return run.convert(chosen, folder, say, metric=own, marker=GIVEN)


def _convert_encoder(
    name: str,
    texts: Any,
    text: tuple[str, ...],
    folder: Path,
    given_else: dict[str, Any],
    say: Callable[[str], None],
    **settings: Any,
) -> ConvertedEncoder:
    needless = [option for option, value in given_else.items() if value]
    if needless:
        raise ParameterError(
            "texts alone for embeddings", " and ".join(needless), "Pass pairs= or retrieval= to score on."
        )
    if not isinstance(texts, str | os.PathLike):
        given = given_as(texts, text, "label", "texts")
        texts, text = _written(given, folder, "texts"), given.text
    if len(text) != 1:
        raise ParameterError("one column of text", ", ".join(text), "An encoder takes one text at a time.")
    chosen = EmbeddingSettings(model=name, texts=os.fspath(texts), text=text[0], **settings)
    return convert_embeddings(chosen, folder, say, marker=GIVEN)


def _written(given: Given, folder: Path, part: str) -> str:
    """The file of examples that were given as objects; a run that has begun on others is refused."""
    file = folder / GIVEN / f"{part}.jsonl"
    if file.exists() and _is_begun(folder) and file.read_bytes() != given.content:
        raise _other(part, folder)
    return given.write(file)


def _saved(model: Any, tokenizer: Any, folder: Path) -> str:
    """The name of a model, or the folder that an object is saved in."""
    if isinstance(model, str | os.PathLike):
        return os.fspath(model)
    if type(model).__module__.startswith("sentence_transformers."):
        with replacing_folder(folder) as fresh:
            model.save(str(fresh))
        return str(folder)
    _refuse_adapters(model)
    if tokenizer is None:
        raise ParameterError(
            "the tokenizer of a model that is given as an object", "none", "Pass tokenizer=..."
        )
    if not state().is_main_process:
        return str(folder)
    with replacing_folder(folder) as fresh:
        model.save_pretrained(fresh)
        tokenizer.save_pretrained(fresh)
        if folder.is_dir() and _is_begun(folder.parents[1]) and _weights(fresh) != _weights(folder):
            raise _other("model", folder.parents[1])
    return str(folder)


def _refuse_adapters(model: Any) -> None:
    """Refuse layers that the configuration does not build: a saved model would be loaded without them."""
    import torch

    if not hasattr(model, "config") or not hasattr(model, "base_model_prefix"):
        _raise_unmerged(model, [type(model).__name__])
    with torch.device("meta"):
        known = {*type(model)(model.config).state_dict()}
    own = {name for name in model.state_dict() if SLOT not in name}
    if not any(name.startswith("pooler.") for name in own):  # encoders may come without
        known = {name for name in known if not name.startswith("pooler.")}
    if own != known:
        _raise_unmerged(model, sorted(own - known) or sorted(known - own))


def _raise_unmerged(model: Any, names: Sequence[str]) -> None:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    raise ModelError(
        "a transformers model with the layers of its configuration",
        f"{type(model).__name__} with {', '.join(names[:3])}{more}",
        "Merge adapters into its weights first: model = model.merge_and_unload() for peft's.",
    )


def _weights(folder: Path) -> list[bytes]:
    return [blake2b(file.read_bytes()).digest() for file in sorted(folder.glob("*.safetensors"))]


def _is_begun(out: Path) -> bool:
    """Whether a run in this folder has finished a stage, on what it was called with then."""
    return (out / "results.json").exists()


def _other(what: str, out: Path) -> FileError:
    return FileError(
        f"the {what} that {out} was begun with", "another one", "Use another `out` for each, or delete it."
    )
