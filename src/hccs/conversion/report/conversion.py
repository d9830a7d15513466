"""The report of a conversion: what it delivers, what that costs, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hccs._html import tag
from hccs.conversion.certificate import read_certificate
from hccs.conversion.converted import Converted
from hccs.conversion.report.cost import OURS, SHIPPED, Bench, read_bench, shipped, speed_against_float
from hccs.conversion.report.write import chart, signed
from hccs.conversion.results import Results

MOST_SHOWN = 20
"""Changed answers that the report lists."""

SECTIONS = {
    "accuracy": "Accuracy",
    "certificate": "Certificate",
    "answers": "Answers",
    "modes": "Modes",
    "heads": "Heads",
    "cost": "Latency and size",
    "time": "Time",
    "again": "Settings and commands",
}


def conversion_page(folder: Path) -> dict[str, Any]:
    """What `conversion.html` shows of a finished run."""
    run = Converted(folder)
    results, bench = run.results, read_bench(folder)
    reached, certified = results.reached(results.delivered), read_certificate(folder)
    in_integers = results.reached("integer") is not None
    answers = None if reached is None else reached.answers
    missing = {"certificate": certified is None, "answers": answers is None}
    return {
        "kind": "conversion",
        "kicker": "hccs convert",
        "title": f"{run.name} on {run.settings.task.name}",
        "sentence": sentence(run, bench),
        "facts": _facts(run, bench),
        "warnings": _warnings(run, bench),
        "sections": {name: title for name, title in SECTIONS.items() if not missing.get(name)},
        "run": run,
        "results": results,
        "in_integers": in_integers,
        "steps": _steps(results),
        "history": () if results.retrain is None else results.retrain.history,
        "certified": certified,
        "given": answers,
        "confusion": [] if answers is None else _confusion(answers.confusion, results.float_model.labels),
        "most_shown": MOST_SHOWN,
        "by_mode": _modes(run),
        "all_heads": run.heads,
        "sizes": _sizes(run),
        "bench": bench,
        "timings": bench and _timings(bench),
        "contenders": bench and (SHIPPED, shipped(bench)),
        "settings": list(_flattened(asdict(run.settings))),
    }


def sentence(run: Converted, bench: Bench | None = None) -> str:
    """The run in one sentence."""
    results, task = run.results, run.settings.task.name
    base, reached = results.float_model.score.value, results.scores[results.delivered]
    form = "all in integers" if results.delivered == "integer" else "with HCCS in place of softmax"
    beside = f"where the float model has {results.shown(base)}{_verdict(run)}"
    if results.shown(reached) == results.shown(base):
        beside = "as in float"
    parts = [f"{run.name} on {task} reaches {_amount(results, reached)} {form}, {beside}"]
    if results.delivered == "integer" and results.integer is not None:
        ratio = results.integer.float32_bytes / results.integer.bytes
        parts.append(f"in {_mib(results.integer.bytes)}, {ratio:.1f} times less than float32")
    speed = speed_against_float(bench)
    if speed is not None:
        parts.append(f"and {speed:.1f} times as fast as float PyTorch where it was measured")
    return ", ".join(parts) + "."


def _amount(results: Results, score: float) -> str:
    metric = results.float_model.metric
    if metric == "accuracy":
        return f"{results.shown(score)} accuracy"
    article = "an" if metric[0].lower() in "aeiou" or metric == "f1" else "a"
    return f"{article} {metric} of {results.shown(score)}"


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


def _facts(run: Converted, bench: Bench | None) -> list[tuple[str, str, str]]:
    """The numbers that matter first: name, value, and what stands beside it."""
    results = run.results
    base, reached = results.float_model.score.value, results.scores[results.delivered]
    found = [(f"dev {results.float_model.metric}", results.shown(reached), f"float {results.shown(base)}")]
    beside = results.reached(results.delivered)
    if beside is not None:
        points = f"{signed(100 * beside.against_float.value)} points"
        low, high = (signed(100 * end) for end in beside.against_float.interval)
        found.append(("against float", points, f"95 %: {low} to {high}"))
    if results.integer is not None and results.integer.reached is not None:
        sizes = results.integer
        found.append(("size", _mib(sizes.bytes), f"float32 {_mib(sizes.float32_bytes)}"))
    speed = speed_against_float(bench)
    if speed is not None:
        found.append(("speed, one sentence", f"{speed:.1f} times", "that of float PyTorch, one thread"))
    found.append(("mean KL per head", f"{results.save.kl:.3f}", f"nats; worst {run.heads[0].kl:.3f}"))
    return found


def _warnings(run: Converted, bench: Bench | None) -> list[str]:
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


def _steps(results: Results) -> list[list[Any]]:
    """The rows of all steps, each with a picture of its interval."""
    measured = {stage: score for stage in results.rows if (score := results.score(stage)) is not None}
    ends = [end for score in measured.values() for end in score.interval]
    pad = 0.05 * (max(ends) - min(ends)) or 0.01
    reach, base = (min(ends) - pad, max(ends) + pad), measured["float_model"].value
    return [
        [*cells, chart("interval", measured[stage].value, measured[stage].interval, reach, base)]
        for stage, cells in results.rows.items()
    ]


def _confusion(counts: Sequence[Sequence[int]], labels: Sequence[str]) -> list[list[Any]]:
    return [
        [label, *(tag("strong", count) if i == j else count for j, count in enumerate(line))]
        for i, (label, line) in enumerate(zip(labels, counts, strict=True))
    ]


def _modes(run: Converted) -> list[list[Any]]:
    results, base = run.results, run.results.float_model.score.value
    rows = []
    for mode, score in results.calibrated.modes.items():
        scores = [score] if results.retrain is None else [score, results.retrain.modes[mode]]
        cells = [cell for value in scores for cell in (results.shown(value), signed(100 * (value - base)))]
        name = tag("strong", f"{mode}, delivered") if mode == results.save.mode else mode
        rows.append([name, *cells, *[""] * (4 - len(cells))])
    return rows


def _sizes(run: Converted) -> list[list[Any]]:
    """Bytes of the float model and of what is delivered."""

    def weights(folder: Path) -> int:
        return sum(path.stat().st_size for path in folder.glob("*.safetensors"))

    integer = run.results.integer
    if integer is not None and integer.reached is not None:
        sizes = {"float32 weights": integer.float32_bytes, "all in integers, model.hccs": integer.bytes}
    else:
        sizes = {"float32 weights": weights(run.folder / "float"), "with HCCS, model/": weights(run.model)}
    longest = max(sizes.values()) or 1
    return [
        [
            name,
            f"{size / 2**20:.2f} MiB",
            f"{size / longest:.2f}",
            chart("bar", size, longest, name, "theirs" if "float" in name else "ours"),
        ]
        for name, size in sizes.items()
    ]


def _timings(bench: Bench) -> dict[str, list[list[Any]]]:
    """The times of every runtime by workload and threads, the fastest first."""
    found: dict[str, list[list[Any]]] = {}
    longest = max((row.ms for row in bench.rows), default=0.0)
    for row in sorted(bench.rows, key=lambda row: row.ms):
        ours = row.name == OURS
        case = f"{row.workload}, {row.threads} thread{'s' * (row.threads > 1)}"
        found.setdefault(case, []).append(
            [
                tag("strong", row.name) if ours else row.name,
                f"{row.ms:.3f}",
                f"{row.times_ours:.2f}",
                f"{row.sentences_per_second:,.0f}",
                chart("bar", row.ms, longest, f"{row.ms:.3f} ms", "ours" if ours else "theirs"),
            ]
        )
    return found


def _flattened(settings: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flattened(value, f"{before}{name}.")
        else:
            listed = ", ".join(map(str, value)) if isinstance(value, tuple) else value
            yield before + name, "—" if listed in (None, "") else str(listed)
