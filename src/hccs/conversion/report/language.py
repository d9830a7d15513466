"""The report of `hccs perplexity`: what HCCS costs a causal language model, by form and mode; its heads."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hccs._html.charts import OURS, THEIRS, bar
from hccs._html.elements import Markup, tag
from hccs.conversion.language import LanguageResults, LanguageSettings
from hccs.conversion.report.conversion import time_section
from hccs.conversion.report.heads import heads_of, heads_section
from hccs.conversion.report.page import Fact, Report, Section, boxed, command, key, paragraph, signed, words
from hccs.conversion.runs.record import read_json, typed

OPTIONS = ("n", "mode")
"""Settings that the command line sets, by the same names."""


def language_report(folder: Path) -> Report:
    """The report of a finished run."""
    results, hint = LanguageResults.of(folder), "Repeat hccs perplexity with another --out."
    path = folder / "settings.json"
    settings: LanguageSettings = typed(LanguageSettings, read_json(path, hint), path, hint)
    name, saved, base = Path(settings.model).name, results.save, results.float_model.perplexity
    heads = heads_of(folder, (), saved.heads)
    tokens = results.float_model.blocks * settings.n
    return Report(
        kicker="hccs perplexity",
        title=f"{name} on {Path(settings.dev).name}",
        sentence=f"{name} has a perplexity of {saved.perplexity:.3f} with HCCS in place of softmax "
        f"({saved.lines}, {saved.mode}), where the float model has {base:.3f} "
        f"({_percent(saved.perplexity, base)}), without any training.",
        facts=[
            Fact("perplexity", f"{saved.perplexity:.3f}", f"float {base:.3f}"),
            Fact("against float", _percent(saved.perplexity, base), "higher is worse"),
            Fact("scored on", f"{tokens:,} tokens", f"in blocks of {settings.n}"),
            Fact("mean KL per head", f"{saved.kl:.3f}", f"nats; worst {heads[0].kl:.3f}"),
        ],
        warnings=_warnings(results, tokens),
        sections=[
            Section("perplexity", "Perplexity", _perplexities(results)),
            Section("heads", "Heads", heads_section(heads)),
            Section("time", "Time", time_section(results.seconds)),
            Section("again", "Settings and commands", _commands(settings, folder)),
        ],
    )


def _percent(value: float, base: float) -> str:
    return f"{signed(100 * (value / base - 1))} %"


def _warnings(results: LanguageResults, tokens: int) -> list[str]:
    found = []
    if results.integer.refused:
        found.append(f"The model has no form all in integers: {results.integer.refused}")
    if tokens < 2048:
        found.append(f"Only {tokens:,} tokens were scored: differences of a few percent may be chance.")
    return found


def _perplexities(results: LanguageResults) -> list[Markup]:
    """Float, every mode with one and with two lines, and all in integers."""
    saved, base = results.save, results.float_model.perplexity
    shown: list[tuple[Any, float]] = []
    for lines, scores in results.modes.perplexity.items():
        for mode, value in scores.items():
            name = f"HCCS {mode}, {lines}"
            delivered = (lines, mode) == (saved.lines, saved.mode)
            shown.append((tag("strong", f"{name}, delivered") if delivered else name, value))
    if results.integer.perplexity is not None:
        shown.append(("all in integers, one line", results.integer.perplexity))
    most = max(value for _, value in shown)
    rows = [["float", f"{base:.3f}", "", bar(base, most, ours=False, described=f"float {base:.3f}")]]
    rows += [[name, f"{value:.3f}", _percent(value, base), bar(value, most)] for name, value in shown]
    return [
        paragraph(
            f"exp of the mean loss per token on {results.float_model.blocks} blocks of the text to score on; "
            "lower is better. Parameters were found on the other text."
        ),
        boxed(["model", "perplexity", "against float", ""], rows),
        tag("p", key(float_model=THEIRS, HCCS=OURS)),
    ]


def _commands(settings: LanguageSettings, folder: Path) -> list[Markup]:
    line = ["hccs", "perplexity", settings.model, settings.train, "--dev", settings.dev]
    line += ["--out", str(folder)]
    for name in OPTIONS:
        line += [f"--{name}", str(getattr(settings, name))]
    return [
        command(shlex.join(line), "To repeat the run:"),
        words([(name.replace("_", " "), value) for name, value in asdict(settings).items()]),
    ]
