"""A task's examples as token ids, made once for all processes of a reproduction and kept in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch

from hccs._files import atomic
from hccs.conversion.data import tasks
from hccs.conversion.data.holdout import hold_out
from hccs.conversion.data.tokens import TokenisedSet, tokenise
from hccs.conversion.models import load_tokenizer

PARTS = ("train", "held", "dev")


def prepared(task: str, data: Path, work: Path) -> Path:
    """The file of a task's token ids, written if it is not there; another vocabulary or data has another."""
    files = [data / "vocab.txt", *sorted((data / task).glob("*.tsv"))]
    path = work / "tokens" / f"{task}-{digest(files)}.safetensors"
    if not path.exists():
        from safetensors.torch import save

        known = tasks.load(tasks.TASKS[task], data / task)
        tokenizer = load_tokenizer(str(data), data / "vocab.txt")
        columns: dict[str, torch.Tensor] = {}
        for part, examples in zip(PARTS, (*hold_out(known.train), known.dev), strict=True):
            columns |= packed(part, tokenise(examples, tokenizer, known.task.n))
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.replace(path, save(columns))
    return path


def packed(part: str, data: TokenisedSet) -> dict[str, torch.Tensor]:
    """The columns of a set under names of its part; token ids in 16 bits."""
    assert int(data.columns["input_ids"].max()) < 2**15
    found = {name: column.to(torch.int16).contiguous() for name, column in data.columns.items()}
    found |= {"lengths": torch.tensor(data.lengths), "labels": data.labels.long()}
    return {f"{part}.{name}": column for name, column in found.items()}


def opened(path: Path, device: torch.device) -> dict[str, TokenisedSet]:
    from safetensors.torch import load_file

    columns: dict[str, dict[str, torch.Tensor]] = {}
    for name, column in load_file(path).items():
        part, _, of = name.partition(".")
        columns.setdefault(part, {})[of] = column
    found = {}
    for part, own in columns.items():
        lengths, labels = own.pop("lengths"), own.pop("labels")
        found[part] = TokenisedSet(own, lengths, labels, 0).to(device)
    return found


def digest(files: Iterable[Path]) -> str:
    """The contents of files, in order, in a few letters."""
    found = hashlib.sha256()
    for file in files:
        found.update(file.read_bytes())
    return found.hexdigest()[:12]
