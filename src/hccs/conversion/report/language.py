"""The report of `hccs perplexity`: what HCCS costs a causal language model, by form and mode; its heads."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hccs._html.charts import OURS, THEIRS, bar
from hccs._html.elements import Markup, tag
from hccs._progress import duration
from hccs.conversion.report.heads import heads_of, heads_section
from hccs.conversion.report.page import Fact, Report, Section, boxed, command, key, said, signed, words
from hccs.conversion.runs.record import StageRecord, read_json
from hccs.errors import FileError

OPTIONS = ("n", "mode")
"""Settings that the command line sets, by the same names."""


def language_report(folder: Path) -> Report:
    """The report of a finished run."""
    record = StageRecord(folder / "results.json")
    settings = read_json(folder / "settings.json", "Run hccs perplexity anew.")
    stages = record.stages
    if not {"float", "modes", "whole", "save"} <= stages.keys():
        raise FileError(
            f"{folder} to be a finished run",
            "one that has not come to its end" if stages else "no run",
            "Finish it with hccs perplexity first.",
        )
    name, saved, base = Path(str(settings["model"])).name, stages["save"], stages["float"]["perplexity"]
    heads = heads_of(folder, {"save": {"table": saved["table"]}, "calibrate": {"heads": saved["heads"]}})
    tokens = stages["float"]["blocks"] * settings["n"]
    return Report(
        kicker="hccs perplexity",
        title=f"{name} on {Path(settings['dev']).name}",
        sentence=f"{name} has a perplexity of {saved['perplexity']:.3f} with HCCS in place of softmax "
        f"({saved['lines']}, {saved['mode']}), where the float model has {base:.3f} "
        f"({_percent(saved['perplexity'], base)}), without any training.",
        facts=[
            Fact("perplexity", f"{saved['perplexity']:.3f}", f"float {base:.3f}"),
            Fact("against float", _percent(saved["perplexity"], base), "higher is worse"),
            Fact("scored on", f"{tokens:,} tokens", f"in blocks of {settings['n']}"),
            Fact("mean KL per head", f"{saved['kl']:.3f}", f"nats; worst {heads[0].kl:.3f}"),
        ],
        warnings=_warnings(stages, tokens),
        sections=[
            Section("perplexity", "Perplexity", _perplexities(stages)),
            Section("heads", "Heads", heads_section(heads)),
            Section("time", "Time", _time(record.seconds)),
            Section("again", "Settings and commands", _again(settings, folder)),
        ],
    )


def _percent(value: float, base: float) -> str:
    return f"{signed(100 * (value / base - 1))} %"


def _warnings(stages: Mapping[str, Any], tokens: int) -> list[str]:
    found = []
    if "refused" in stages["whole"]:
        found.append(f"The model has no form all in integers: {stages['whole']['refused']}")
    if tokens < 2048:
        found.append(f"Only {tokens:,} tokens were scored: differences of a few percent may be chance.")
    return found


def _perplexities(stages: Mapping[str, Any]) -> list[Markup]:
    """Float, every mode with one and with two lines, and all in integers."""
    saved, base = stages["save"], stages["float"]["perplexity"]
    shown: list[tuple[Any, float]] = []
    for lines, scores in stages["modes"]["perplexity"].items():
        for mode, value in scores.items():
            name = f"HCCS {mode}, {lines}"
            delivered = (lines, mode) == (saved["lines"], saved["mode"])
            shown.append((tag("strong", f"{name}, delivered") if delivered else name, value))
    if "perplexity" in stages["whole"]:
        shown.append(("all in integers, one line", stages["whole"]["perplexity"]))
    most = max(value for _, value in shown)
    rows = [["float", f"{base:.3f}", "", bar(base, most, ours=False, described=f"float {base:.3f}")]]
    rows += [[name, f"{value:.3f}", _percent(value, base), bar(value, most)] for name, value in shown]
    return [
        said(
            f"exp of the mean loss per token on {stages['float']['blocks']} blocks of the text to score on; "
            "lower is better. Parameters were found on the other text."
        ),
        boxed(["model", "perplexity", "against float", ""], rows),
        tag("p", key(float_model=THEIRS, HCCS=OURS)),
    ]


def _time(seconds: Mapping[str, float]) -> list[Markup]:
    return [boxed(["stage", "time"], [[name, duration(spent)] for name, spent in seconds.items()])]


def _again(settings: Mapping[str, Any], folder: Path) -> list[Markup]:
    line = ["hccs", "perplexity", settings["model"], settings["train"], "--dev", settings["dev"]]
    line += ["--out", str(folder)]
    for name in OPTIONS:
        line += [f"--{name}", str(settings[name])]
    return [
        command(shlex.join(line), "To make this run again:"),
        words([(name.replace("_", " "), value) for name, value in settings.items()]),
    ]
