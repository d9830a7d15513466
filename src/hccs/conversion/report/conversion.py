"""The report of a conversion: what it delivers, what that costs, and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hccs._html.charts import OURS, THEIRS, bar, interval, sparkline
from hccs._html.elements import Markup, tag
from hccs._progress import duration
from hccs.conversion.certificate import read_certificate
from hccs.conversion.converted import STEPS, Converted
from hccs.conversion.report.cost import Bench, bench_section, read_bench, size_section, speed_against_float
from hccs.conversion.report.heads import heads_section
from hccs.conversion.report.page import (
    Fact,
    Report,
    Section,
    boxed,
    command,
    key,
    paragraph,
    signed,
    words,
)
from hccs.conversion.report.where import read_account, where_section
from hccs.conversion.results import Answers
from hccs.conversion.scores import Interval, of_share

MOST_SHOWN = 20
"""Changed answers that the report lists."""


def conversion_report(folder: Path) -> Report:
    """The report of a finished run."""
    run = Converted(folder)
    bench, account = read_bench(folder), read_account(folder)
    in_integers = run.results.reached("integer") is not None
    return Report(
        kicker="hccs convert",
        title=f"{run.name} on {run.settings.task.name}",
        sentence=sentence(run, bench),
        facts=facts(run, bench),
        warnings=warnings_of(run, bench),
        sections=[
            Section("accuracy", "Accuracy", _accuracy(run)),
            Section("certificate", "Certificate", _certificate(folder)),
            Section("answers", "Answers", _answers(run)),
            Section("modes", "Modes", _modes(run)),
            Section("heads", "Heads", heads_section(run.heads)),
            Section("where", "Where accuracy goes", where_section(account, folder, in_integers)),
            Section(
                "cost",
                "Latency and size",
                [*size_section(run), *bench_section(bench, folder, in_integers)],
            ),
            Section("time", "Time", time_section(run.results.seconds)),
            Section("again", "Settings and commands", _commands(run, in_integers)),
        ],
    )


def sentence(run: Converted, bench: Bench | None = None) -> str:
    """The run in one sentence."""
    results, task = run.results, run.settings.task.name
    base, reached = results.float_model.score.value, results.scores[results.delivered]
    form = "all in integers" if results.delivered == "integer" else "with HCCS in place of softmax"
    beside = f"where the float model has {run.shown(base)}{_verdict(run)}"
    if run.shown(reached) == run.shown(base):
        beside = "as in float"
    parts = [f"{run.name} on {task} reaches {_amount(run, reached)} {form}, {beside}"]
    if results.delivered == "integer" and results.integer is not None:
        ratio = results.integer.float32_bytes / results.integer.bytes
        parts.append(f"in {_mib(results.integer.bytes)}, {ratio:.1f} times less than float32")
    speed = speed_against_float(bench)
    if speed is not None:
        parts.append(f"and {speed:.1f} times as fast as float PyTorch where it was measured")
    return ", ".join(parts) + "."


def _amount(run: Converted, score: float) -> str:
    metric = run.results.float_model.metric
    if metric == "accuracy":
        return f"{run.shown(score)} accuracy"
    article = "an" if metric[0].lower() in "aeiou" or metric == "f1" else "a"
    return f"{article} {metric} of {run.shown(score)}"


def _verdict(run: Converted) -> str:
    against = run.results.reached(run.results.delivered)
    if against is None:
        return ""
    low, high = against.against_float.interval
    points = signed(100 * against.against_float.value)
    chance = "which chance alone explains" if low <= 0 <= high else "more than chance explains"
    return f" ({points} points, {chance})"


def _mib(count: float) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def facts(run: Converted, bench: Bench | None) -> list[Fact]:
    """The numbers that matter first."""
    results = run.results
    base, reached = results.float_model.score.value, results.scores[results.delivered]
    found = [Fact(f"dev {results.float_model.metric}", run.shown(reached), f"float {run.shown(base)}")]
    beside = results.reached(results.delivered)
    if beside is not None:
        points = f"{signed(100 * beside.against_float.value)} points"
        found.append(Fact("against float", points, f"95 %: {_span(beside.against_float.interval)}"))
    if results.integer is not None and results.integer.reached is not None:
        sizes = results.integer
        found.append(Fact("size", _mib(sizes.bytes), f"float32 {_mib(sizes.float32_bytes)}"))
    speed = speed_against_float(bench)
    if speed is not None:
        found.append(Fact("speed, one sentence", f"{speed:.1f} times", "that of float PyTorch, one thread"))
    worst = run.heads[0]
    found.append(Fact("mean KL per head", f"{results.save.kl:.3f}", f"nats; worst {worst.kl:.3f}"))
    return found


def warnings_of(run: Converted, bench: Bench | None) -> list[str]:
    """What a reader should know before trusting the numbers."""
    results, found = run.results, []
    if results.integer is not None and results.integer.refused:
        found.append(f"The model has no form all in integers: {results.integer.refused}")
    beside = results.reached(results.delivered)
    if beside is not None and beside.against_float.interval[1] < 0:
        found.append(
            f"The loss of {-100 * beside.against_float.value:.2f} points is more than chance explains: "
            "more epochs, or another mode, may win it back."
        )
    examples = results.float_model.examples
    if examples < 500:
        found.append(f"Only {examples} dev examples: the intervals are wide.")
    for part, count in results.float_model.cut.items():
        if count:
            found.append(f"{count:,} texts of {part} are longer than n = {run.settings.task.n} and were cut.")
    for name, stage in results.stages.items():
        found += [f"{name}: {line}" for line in stage.warnings]
    if bench is not None:
        found += [f"hccs bench left out {name}: {why}" for name, why in bench.failed.items()]
    return list(dict.fromkeys(found))


def _accuracy(run: Converted) -> list[Markup]:
    results = run.results
    measured = {stage: results.score(stage) for stage in STEPS if stage in results.scores}
    ends = [end for score in measured.values() if score is not None for end in score.interval]
    base, reach = results.float_model.score.value, _reach([*results.scores.values(), *ends])
    rows = []
    for stage, score in measured.items():
        if score is None:
            continue
        reached, (low, high) = results.reached(stage), score.interval
        against = None if reached is None else reached.against_float
        rows.append(
            [
                _step_name(run, stage),
                run.shown(score.value),
                f"{_bare(run, low)} to {_bare(run, high)}",
                "" if against is None else _points(against.value),
                "" if against is None else _span(against.interval),
                interval(score.value, score.interval, reach, base),
            ]
        )
    header = ["step", results.float_model.metric, "95 %", "points", "95 %, paired", ""]
    content = [
        paragraph(
            f"{results.float_model.examples:,} dev examples. A difference from float counts the answers that "
            "changed on the same examples; where its interval contains 0, chance alone explains it."
        ),
        boxed(header, rows),
        tag("p", key(float_model=THEIRS, this_step=OURS)),
    ]
    history = () if results.retrain is None else results.retrain.history
    if len(history) > 1:
        line = sparkline(history, described="held-back score while training", width=220, height=44)
        shown = " → ".join(run.shown(history[i]) for i in (0, -1))
        content.append(tag("h3", f"Training: {len(history)} evaluations, {shown}"))
        content.append(tag("figure", line))
    return content


def _step_name(run: Converted, stage: str) -> Any:
    words = STEPS[stage]
    if stage == "retrain":
        in_integers = run.results.reached("integer") is not None
        words = "trained as integers compute" if in_integers else "HCCS, retrained"
    return tag("strong", f"{words}, delivered") if stage == run.results.delivered else words


def _bare(run: Converted, score: float) -> str:
    return run.shown(score).removesuffix(" %")


def _points(difference: float) -> Markup:
    kind = "lost" if difference < 0 else "won" if difference > 0 else None
    return tag("span", signed(100 * difference), class_=kind)


def _span(ends: Interval) -> str:
    return f"{signed(100 * ends[0])} to {signed(100 * ends[1])}"


def _reach(values: Sequence[float]) -> Interval:
    low, high = min(values), max(values)
    pad = 0.05 * (high - low) or 0.01
    return low - pad, high + pad


def _answers(run: Converted) -> list[Markup]:
    """The confusion matrix of the delivered model, and the examples that it answers otherwise than float."""
    reached = run.results.reached(run.results.delivered)
    if reached is None or reached.answers is None:
        return []
    answers, labels = reached.answers, run.results.float_model.labels
    asked = "the float model's answers" if run.results.float_model.metric == "agreement" else "labels"
    rows = [
        [label, *(tag("strong", count) if i == j else count for j, count in enumerate(line))]
        for i, (label, line) in enumerate(zip(labels, answers.confusion, strict=True))
    ]
    content = [
        paragraph(f"Rows are {asked}, columns the delivered model's answers on dev."),
        boxed(["", *labels], rows, every_column=True),
        tag("h3", f"Answers that differ from the float model's: {answers.changed:,}"),
    ]
    return [*content, *_changed(answers, labels)]


def _changed(answers: Answers, labels: Sequence[str]) -> list[Markup]:
    if not answers.examples:
        return []
    rows = [
        [tag("span", one.text, class_="text"), labels[one.label], labels[one.before], labels[one.after]]
        for one in answers.examples[:MOST_SHOWN]
    ]
    left = answers.changed - len(rows)
    more = [tag("p", f"and {left:,} more.", class_="quiet")] if left > 0 else []
    return [boxed(["text", "label", "float", "delivered"], rows, class_="texts"), *more]


def _modes(run: Converted) -> list[Markup]:
    results = run.results
    before, after = results.calibrated.modes, {} if results.retrain is None else results.retrain.modes
    base, counted = results.float_model.score.value, results.float_model.score.counted
    scores = [*before.values(), *after.values(), base]

    def ends(score: float) -> Interval | None:
        return None if counted is None else of_share(score, counted)

    reach = _reach([*scores, *(end for score in scores for end in ends(score) or ())])
    rows = []
    for mode in before:
        own = mode == results.save.mode
        cells: list[Any] = [tag("strong", f"{mode}, delivered") if own else mode]
        for column in (before, after) if after else (before,):
            cells += [run.shown(column[mode]), _points(column[mode] - base)]
        last = (after or before)[mode]
        rows.append([*cells, interval(last, ends(last), reach, base)])
    names = ["calibrated", "points", *(["trained", "points"] if after else [])]
    return [
        paragraph(
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


def _certificate(folder: Path) -> list[Markup]:
    """What a reranker promises; other runs have no certificate."""
    found = read_certificate(folder)
    if found is None:
        return []
    rows = words([("fingerprint", found.fingerprint), *(found.versions or {}).items()])
    return [boxed(["", "float", "integers"], found.rows()), rows]


def time_section(seconds: dict[str, float]) -> list[Markup]:
    """How long each stage took."""
    longest = max(seconds.values(), default=0.0)
    rows = [
        [stage, duration(s), bar(s, longest, ours=False, described=duration(s))]
        for stage, s in seconds.items()
    ]
    return [paragraph(f"{duration(sum(seconds.values()))} in all."), boxed(["stage", "time", ""], rows)]


def _commands(run: Converted, in_integers: bool) -> list[Markup]:
    folder = run.folder
    content = [command(run.command, "To repeat the run:")]
    content.append(
        command(
            f"hccs evaluate {folder}\nhccs where {folder}\nhccs bench {folder}\nhccs report {folder}",
            "More about it:",
        )
    )
    if in_integers:
        content.append(
            command(
                f'hccs predict {folder} "a text"\nhccs show {folder}\n'
                f"hccs export c {folder}\nhccs export onnx {folder}",
                "The integer model elsewhere:",
            )
        )
    flat = [(name, _value(value)) for name, value in _flattened(asdict(run.settings))]
    content.append(tag("details", tag("summary", "All settings"), words(flat), class_="plain"))
    return content


def _flattened(settings: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        found += (
            _flattened(value, f"{before}{name}.") if isinstance(value, dict) else [(before + name, value)]
        )
    return found


def _value(value: Any) -> str:
    if value in (None, "", ()):
        return "—"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
