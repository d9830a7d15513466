"""The card of a converted model: a README.md in its folder, as the Hub shows it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hccs
from hccs._files import atomic
from hccs.conversion.certificate import read_certificate
from hccs.conversion.converted import Converted
from hccs.conversion.data.problems import IMAGES, RERANK, TOKENS, VALUES

PIPELINES = {TOKENS: "token-classification", IMAGES: "image-classification", RERANK: "text-ranking"}

USE = """```python
import hccs.nn  # transformers then restores HCCS by itself
from transformers import pipeline

classify = pipeline("{pipeline}", model="PATH/OF/THIS/FOLDER")
```"""

RERANKING = """```python
import hccs

hccs.Reranker.load("model.hccs").rank("a query", ["a passage", "another one"])
```"""

CERTIFIED = ["", "float", "integers"]


def write_card(run: Converted) -> Path:
    """Write the card into the folder of a run's converted model."""
    path = run.model / "README.md"
    atomic.replace(path, card(run).encode())
    return path


def card(run: Converted) -> str:
    """Scores before and after, how to load it and how it was made."""
    table = run.tables["delivered"]
    problem, metric = run.settings.task.problem, run.results.float_model.metric
    pipeline = PIPELINES.get(problem, "text-classification")
    parts = [
        _front(metric, pipeline),
        f"# {escaped(run.name)}, converted by hccs",
        escaped(run.summary),
        "Its attention computes head-calibrated clipped-linear softmax (HCCS), which integers compute, in "
        f"place of softmax: mode `{table.mode.value}`, rows of up to {table.n}.",
        "## Use",
        RERANKING if problem == RERANK else USE.format(pipeline=pipeline),
        f"## {escaped(metric.capitalize())}",
        markdown_table(list(map(escaped, run.results.header)), list(run.results.rows.values())),
        "## Made by",
        f"hccs {hccs.__version__}:\n\n{fenced(run.command)}",
    ]
    certificate = read_certificate(run.folder)
    if certificate is not None:
        rows = markdown_table(CERTIFIED, certificate.rows())
        parts[-2:-2] = ["## Certificate", f"{rows}\n\nFingerprint `{certificate.fingerprint}`."]
    if problem in VALUES:
        parts.insert(4, "It answers with one value per text.")
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Text in which Markdown and HTML see no markup.

    >>> print(escaped("a_b <i>*c*</i> | d"))
    a\\_b &lt;i&gt;\\*c\\*&lt;/i&gt; \\| d
    """
    return re.sub(r"([\\`*_{}\[\]#|~!])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def fenced(command: str) -> str:
    """A command in a fence longer than any in it."""
    longest = max((len(ticks) for ticks in re.findall("`+", command)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{command}\n{fence}"


def _front(metric: str, pipeline: str) -> str:
    lines = [
        "library_name: transformers",
        f"pipeline_tag: {pipeline}",
        "tags:",
        "- hccs",
        "- integer-attention",
    ]
    return "\n".join(["---", *lines, "metrics:", f"- {json.dumps(metric)}", "---"])


def markdown_table(header: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
