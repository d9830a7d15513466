"""The report of a conversion: what it delivers, what that costs, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hccs._html.charts import OURS, THEIRS, bar, interval, sparkline
from hccs._html.elements import Markup, tag
from hccs._progress import duration
from hccs.conversion.report.commands import convert_command
from hccs.conversion.report.cost import bench_section, size_section, speed_against_float
from hccs.conversion.report.heads import Head, heads_of, heads_section
from hccs.conversion.report.intervals import of_error, of_share
from hccs.conversion.report.page import Fact, Report, Section, boxed, command, key, said, signed, words
from hccs.conversion.report.places import where_section
from hccs.conversion.runs.record import StageRecord, read_json
from hccs.errors import FileError

STEPS = {
    "float": "float",
    "without retraining": "HCCS, calibrated",
    "whole without training": "all in integers, untrained",
    "retrain": "trained",
    "integer": "HCCS, int8 q, k and v",
    "whole": "all in integers",
}
"""Stages that have a score, in words."""


@dataclass(frozen=True)
class Conversion:
    """What the folder of a finished run says."""

    folder: Path

    def __post_init__(self) -> None:
        if not {"float", "calibrate", "without retraining", "save"} <= {*self.record.stages}:
            raise FileError(
                f"{self.folder} to be a finished run",
                "one that has not come to its end" if self.record.stages else "no run",
                "Finish it with hccs convert first.",
            )

    @cached_property
    def record(self) -> StageRecord:
        """Stages and their seconds."""
        return StageRecord(self.folder / "results.json")

    @property
    def stages(self) -> dict[str, Any]:
        """Results by stage."""
        return self.record.stages

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What was asked."""
        return read_json(self.folder / "settings.json", "Convert the model anew.")

    def other(self, name: str) -> dict[str, Any] | None:
        """What another command has left in the folder, if it was run."""
        path = self.folder / name
        return read_json(path, "Delete it.") if path.exists() else None

    @property
    def metric(self) -> str:
        """The name of the score."""
        return str(self.stages["float"].get("metric", "accuracy"))

    @property
    def name(self) -> str:
        """Of the model."""
        return Path(str(self.settings["model"])).name

    @property
    def delivered(self) -> str:
        """The stage whose score is that of what the run delivers: all in integers, or with HCCS."""
        return next(
            s for s in ("whole", "integer", "retrain", "without retraining") if self.score(s) is not None
        )

    def score(self, stage: str) -> float | None:
        """The score of a stage, if it has one."""
        return self.stages.get(stage, {}).get(self.metric)  # type: ignore[no-any-return]

    def shown(self, score: float) -> str:
        """A share in per cent, any other score as it is."""
        return f"{100 * score:.2f} %" if self.metric == "accuracy" else f"{score:.4f}"

    def ends(self, stage: str) -> tuple[float, float] | None:
        """The interval of a stage's score: what it noted, or that of a share of its examples."""
        score, error = self.score(stage), self.stages[stage].get("error")
        if score is None or self.metric == "accuracy" or error is None:
            return self.share_ends(score)
        return of_error(score, error)

    def against(self, stage: str) -> tuple[float, float] | None:
        """The interval of a stage's difference from the float model, on the same examples."""
        noted = self.stages.get(stage, {}).get("against_float")
        return None if noted is None else of_error(noted[0], noted[1])

    def share_ends(self, share: float | None) -> tuple[float, float] | None:
        """The interval of an accuracy on the run's dev examples, where their number is known."""
        examples = self.stages["float"].get("examples")
        known = self.metric == "accuracy" and examples and share is not None
        return of_share(share, examples) if known and share is not None else None

    @cached_property
    def heads(self) -> list[Head]:
        """Worst first."""
        return heads_of(self.folder, self.stages)

    @cached_property
    def command(self) -> str:
        """What makes the run again."""
        return convert_command(self.settings, self.folder)


def conversion_report(folder: Path) -> Report:
    """The report of a finished run."""
    run = Conversion(folder)
    bench, account = run.other("bench.json"), run.other("where.json")
    return Report(
        kicker="hccs convert",
        title=f"{run.name} on {run.settings['task']['name']}",
        sentence=sentence(run, bench),
        facts=facts(run, bench),
        warnings=warnings_of(run, bench),
        sections=[
            Section("accuracy", "Accuracy", _accuracy(run)),
            Section("modes", "Modes", _modes(run)),
            Section("heads", "Heads", heads_section(run.heads)),
            Section("where", "Where accuracy goes", where_section(account, folder, _is_whole(run))),
            Section(
                "cost",
                "Latency and size",
                [*size_section(run.stages, folder), *bench_section(bench, folder, _is_whole(run))],
            ),
            Section("time", "Time", _time(run)),
            Section("again", "Settings and commands", _again(run)),
        ],
    )


def _is_whole(run: Conversion) -> bool:
    return run.score("whole") is not None


def sentence(run: Conversion, bench: Mapping[str, Any] | None = None) -> str:
    """The run in one sentence."""
    base, reached = run.score("float") or 0.0, run.score(run.delivered) or 0.0
    form = "all in integers" if run.delivered == "whole" else "with HCCS in place of softmax"
    task = run.settings["task"]["name"]
    beside = f"where the float model has {run.shown(base)}{_verdict(run, reached - base)}"
    if run.shown(reached) == run.shown(base):
        beside = "as in float"
    parts = [f"{run.name} on {task} reaches {_amount(run, reached)} {form}, {beside}"]
    whole = run.stages.get("whole", {})
    if run.delivered == "whole":
        ratio = whole["float32_bytes"] / whole["bytes"]
        parts.append(f"in {_mib(whole['bytes'])}, {ratio:.1f} times less than float32")
    speed = speed_against_float(bench)
    if speed is not None:
        parts.append(f"and {speed:.1f} times as fast as float PyTorch where it was measured")
    return ", ".join(parts) + "."


def _amount(run: Conversion, score: float) -> str:
    return (
        f"{run.shown(score)} accuracy"
        if run.metric == "accuracy"
        else f"a {run.metric} of {run.shown(score)}"
    )


def _verdict(run: Conversion, difference: float) -> str:
    beside = run.against(run.delivered)
    if beside is None:
        return f" ({signed(100 * difference)} points)"
    if beside[0] <= 0 <= beside[1]:
        return f" ({signed(100 * difference)} points, which chance alone explains)"
    return f" ({signed(100 * difference)} points, more than chance explains)"


def _mib(count: float) -> str:
    return f"{count / 2**20:.1f} MiB"


def facts(run: Conversion, bench: Mapping[str, Any] | None) -> list[Fact]:
    """The four numbers that matter first."""
    base, reached = run.score("float") or 0.0, run.score(run.delivered) or 0.0
    beside = run.against(run.delivered)
    reach = f"95 %: {_span(beside)}" if beside else run.metric
    found = [
        Fact(f"dev {run.metric}", run.shown(reached), f"float {run.shown(base)}"),
        Fact("against float", f"{signed(100 * (reached - base))} points", reach),
    ]
    whole = run.stages.get("whole", {})
    if "bytes" in whole:
        found.append(Fact("size", _mib(whole["bytes"]), f"float32 {_mib(whole['float32_bytes'])}"))
    speed = speed_against_float(bench)
    if speed is not None:
        found.append(Fact("speed, one sentence", f"{speed:.1f} times", "that of float PyTorch, one thread"))
    worst = run.heads[0]
    found.append(Fact("mean KL per head", f"{run.stages['save']['kl']:.3f}", f"nats; worst {worst.kl:.3f}"))
    return found


def warnings_of(run: Conversion, bench: Mapping[str, Any] | None) -> list[str]:
    """What a reader should know before trusting the numbers."""
    found = []
    refused = run.stages.get("whole", {}).get("refused")
    if refused:
        found.append(f"The model has no form all in integers: {refused}")
    beside = run.against(run.delivered)
    if beside and beside[1] < 0:
        found.append(
            f"The loss of {-50 * sum(beside):.2f} points is more than chance explains: "
            "more epochs, or another mode, may win it back."
        )
    examples = run.stages["float"].get("examples")
    if examples and examples < 500:
        found.append(f"Only {examples} dev examples: the intervals are wide.")
    for part, count in run.stages["float"].get("cut", {}).items():
        if count and part != "calibration":
            found.append(
                f"{count:,} texts of {part} are longer than n = {run.settings['task']['n']} and were cut."
            )
    for stage, result in run.stages.items():
        found += [f"{stage}: {line}" for line in result.get("warnings", [])]
    if bench:
        found += [f"hccs bench left out {name}: {why}" for name, why in bench.get("failed", {}).items()]
    return list(dict.fromkeys(found))


def _accuracy(run: Conversion) -> list[Markup]:
    stages = [stage for stage in STEPS if run.score(stage) is not None]
    ends = {stage: run.ends(stage) for stage in stages}
    values = [run.score(stage) or 0.0 for stage in stages]
    values += [end for pair in ends.values() if pair for end in pair]
    base, reach = run.score("float"), _reach(values)
    rows = []
    for stage in stages:
        score, pair, beside = run.score(stage) or 0.0, ends[stage], run.against(stage)
        rows.append(
            [
                _step_name(run, stage),
                run.shown(score),
                "" if pair is None else f"{_bare(run, pair[0])} to {_bare(run, pair[1])}",
                "" if stage == "float" else _points(score - (base or 0.0)),
                "" if beside is None else _span(beside),
                interval(score, pair, reach, base),
            ]
        )
    header = ["step", run.metric, "95 %", "points", "95 %, paired", ""]
    examples = run.stages["float"].get("examples")
    told = f"{examples:,} dev examples. " if examples else ""
    content = [
        said(
            f"{told}A difference from float counts the answers that changed on the same examples; an "
            "interval that holds 0 is one that chance alone explains."
        ),
        boxed(header, rows),
        tag("p", key(float_model=THEIRS, this_step=OURS)),
    ]
    history = run.stages.get("retrain", {}).get("history") or []
    if len(history) > 1:
        line = sparkline(history, described="dev score while training", width=220, height=44)
        shown = " → ".join(run.shown(history[i]) for i in (0, -1))
        content.append(tag("h3", f"Training: {len(history)} evaluations, {shown}"))
        content.append(tag("figure", line))
    return content


def _step_name(run: Conversion, stage: str) -> Any:
    words = STEPS[stage]
    if stage == "retrain":
        words = "trained as integers compute" if _is_whole(run) else "HCCS, retrained"
    return tag("strong", f"{words}, delivered") if stage == run.delivered else words


def _bare(run: Conversion, score: float) -> str:
    return run.shown(score).removesuffix(" %")


def _points(difference: float) -> Markup:
    kind = "lost" if difference < 0 else "won" if difference > 0 else None
    return tag("span", signed(100 * difference), class_=kind)


def _span(ends: tuple[float, float]) -> str:
    return f"{signed(100 * ends[0])} to {signed(100 * ends[1])}"


def _reach(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = 0.05 * (high - low) or 0.01
    return low - pad, high + pad


def _modes(run: Conversion) -> list[Markup]:
    before = run.stages["without retraining"].get("modes", {})
    after = run.stages.get("retrain", {}).get("modes", {})
    if not before:
        return []
    base, own = run.score("float") or 0.0, run.stages["save"]["mode"]
    scores = [*before.values(), *after.values(), base]
    ends = [end for score in scores for end in run.share_ends(score) or ()]
    reach = _reach([*scores, *ends])
    rows = []
    for mode in before:
        cells: list[Any] = [tag("strong", f"{mode}, delivered") if mode == own else mode]
        for column in (before, after) if after else (before,):
            cells += [run.shown(column[mode]), _points(column[mode] - base)]
        last = (after or before)[mode]
        rows.append([*cells, interval(last, run.share_ends(last), reach, base)])
    names = ["calibrated", "points", *(["trained", "points"] if after else [])]
    return [
        said(
            "The same parameters, normalised in other ways: ",
            tag("code", "i16"),
            " or ",
            tag("code", "u8"),
            " probabilities; an exact division (",
            tag("code", "div"),
            "), or a reciprocal that takes the sum's leading bit (",
            tag("code", "clb"),
            ") or a line through it (",
            tag("code", "lin"),
            "). Floats stand around HCCS here.",
        ),
        boxed(["mode", *names, ""], rows),
    ]


def _time(run: Conversion) -> list[Markup]:
    seconds = run.record.seconds
    if not seconds:
        return []
    longest = max(seconds.values())
    rows = [
        [stage, duration(s), bar(s, longest, ours=False, described=duration(s))]
        for stage, s in seconds.items()
    ]
    return [said(f"{duration(sum(seconds.values()))} in all."), boxed(["stage", "time", ""], rows)]


def _again(run: Conversion) -> list[Markup]:
    folder = run.folder
    content = [command(run.command, "The run again:")]
    content.append(
        command(
            f"hccs evaluate {folder}\nhccs where {folder}\nhccs bench {folder}\nhccs report {folder}",
            "More about it:",
        )
    )
    if _is_whole(run):
        content.append(
            command(
                f"hccs show {folder}\nhccs export c {folder}\nhccs export onnx {folder}",
                "The integer model elsewhere:",
            )
        )
    flat = [(name, _value(value)) for name, value in _flattened(run.settings)]
    content.append(tag("details", tag("summary", "All settings"), words(flat), class_="plain"))
    return content


def _flattened(settings: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found += _flattened(value, f"{before}{name}.")
        else:
            found.append((before + name, value))
    return found


def _value(value: Any) -> str:
    if value is None or value == "" or value == []:
        return "—"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
