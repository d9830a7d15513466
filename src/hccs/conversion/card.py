"""The card of a converted model: a README.md in its folder, as the Hub shows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hccs
from hccs._files import atomic
from hccs.conversion.data.problems import REGRESSION, TOKENS
from hccs.conversion.report.conversion import STEPS, Conversion, sentence
from hccs.numbers.heads import NAMES
from hccs.numbers.table import ParamTable

USE = """```python
import hccs.nn  # transformers then restores HCCS by itself
from transformers import pipeline

classify = pipeline("{pipeline}", model="PATH/OF/THIS/FOLDER")
```"""

MOST_HEADS = 48
"""Heads that the card lists before it only names the file of all."""


def write_card(run: Conversion) -> Path:
    """Write the card into the folder of a run's converted model."""
    path = run.folder / "model" / "README.md"
    atomic.replace(path, card(run).encode())
    return path


def card(run: Conversion) -> str:
    """Scores before and after, parameters, how to load it and how it was made."""
    table = ParamTable.load(run.folder / run.stages["save"]["table"])
    problem = run.settings["task"]["problem"]
    pipeline = "token-classification" if problem == TOKENS else "text-classification"
    parts = [
        _front(run, pipeline),
        f"# {run.name}, converted by hccs",
        sentence(run),
        "Its attention computes head-calibrated clipped-linear softmax (HCCS), which integers compute, in "
        f"place of softmax: mode `{table.mode.value}`, rows of up to {table.n}.",
        "## Use",
        USE.format(pipeline=pipeline),
        f"## {run.metric.capitalize()}",
        _scores(run),
        "## Parameters",
        _parameters(table),
        "## Made by",
        f"hccs {hccs.__version__}:\n\n```sh\n{run.command}\n```",
    ]
    if problem == REGRESSION:
        parts.insert(4, "It answers with one value per text.")
    return "\n\n".join(parts) + "\n"


def _front(run: Conversion, pipeline: str) -> str:
    lines = [
        "library_name: transformers",
        f"pipeline_tag: {pipeline}",
        "tags:",
        "- hccs",
        "- integer-attention",
    ]
    return "\n".join(["---", *lines, "metrics:", f"- {run.metric}", "---"])


def _scores(run: Conversion) -> str:
    rows = []
    for stage, words in STEPS.items():
        score = run.score(stage)
        if score is None:
            continue
        ends, beside = run.ends(stage), run.against(stage)
        reach = "" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"
        points = "" if stage == "float" else f"{100 * (score - (run.score('float') or 0.0)):+.2f}"
        paired = "" if beside is None else f"{100 * beside[0]:+.2f} to {100 * beside[1]:+.2f}"
        rows.append([words, f"{score:.4f}", reach, points, paired])
    return _table(["step", f"dev {run.metric}", "95 %", "points against float", "95 %, paired"], rows)


def _parameters(table: ParamTable) -> str:
    names = NAMES[: table.head(0, 0).packed.shape[-1]]
    rows: list[list[Any]] = [
        [f"{layer}.{head}", *table.head(layer, head).packed.tolist(), f"{table.scale[layer, head]:.5f}"]
        for layer in range(table.shape[0])
        for head in range(table.shape[1])
    ]
    left = len(rows) - MOST_HEADS
    more = f"\n\nand {left} more; `config.json` holds all of them." if left > 0 else ""
    return _table(["layer.head", *names, "scale"], rows[:MOST_HEADS]) + more


def _table(header: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
