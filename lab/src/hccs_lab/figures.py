"""The figures of `hccs compare`, `reproduce` and `bench`. They need matplotlib."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hccs import _figures
from hccs_lab.compare.entries import FLOAT

FARTHEST = 10.0
"""Distances, in logits, that the curves show."""

LEAST_KL = 1e-5
"""What lies below is drawn here: a logarithm has no zero."""

KL_TITLE = f"KL(softmax || method), renormalised, nats; at least {LEAST_KL:g}"

DECODER_STYLES = {
    "one line": "o-",
    "one line, wide sums": "o--",
    "two lines, int16": "s-",
    "two lines, uint8": "s--",
    "two lines, int16, fitted scale and outputs": "d-",
    "two lines, int16, fitted scale and outputs, integer q, k, v": "d--",
    "IndexSoftmax": "^-",
    "I-BERT": "v-",
}

RATIOS = (1, 1.2, 1.5, 2, 3, 5, 10)
"""Ticks of a decoder's perplexity over softmax's."""


def drawn_heads(scale: np.ndarray[Any, Any]) -> dict[str, tuple[int, int]]:
    """(layer, head) of the heads whose logits have the widest and the narrowest range."""
    ends = {"widest logits": int(scale.argmax()), "narrowest logits": int(scale.argmin())}
    return {name: divmod(flat, scale.shape[1]) for name, flat in ends.items()}


def observed_runs(
    curve: Sequence[float | None], step: float, farthest: float = FARTHEST
) -> list[list[tuple[float, float]]]:
    """The (distance, output) of a score curve up to `farthest`, cut at every int8 distance that no row had.

    A line may join the points of one run; between two runs nothing was observed.

    >>> observed_runs([1.0, 0.5, None, 0.1], 2.0)
    [[(0.0, 1.0), (2.0, 0.5)], [(6.0, 0.1)]]
    """
    runs: list[list[tuple[float, float]]] = [[]]
    for steps, value in enumerate(curve):
        if value is None or not math.isfinite(value):
            runs.append([])
        elif steps * step <= farthest:
            runs[-1].append((steps * step, float(value)))
    return [run for run in runs if run]


def comparison_figures(found: dict[str, Any], folder: Path) -> list[Path]:
    """`curves.png` and, where there was a model, `accuracy.png`."""
    drawn = [folder / "curves.png"]
    _curves_figure(found, drawn[0])
    if FLOAT in found["methods"]:
        drawn.append(folder / "accuracy.png")
        _accuracy_figure(found, drawn[1])
    return drawn


def _curves_figure(found: dict[str, Any], path: Path) -> None:
    """Output over distance from the row's maximum, relative to its largest: one panel per method.

    Two heads are shown, those whose logits have the widest and the narrowest range. Lines join neighbouring
    distances that were observed; a distance that no row had leaves a gap.
    """
    methods = {label: record for label, record in found["methods"].items() if "curves" in record}
    scale = np.asarray(found["scale"])
    across = min(5, len(methods))
    down = math.ceil(len(methods) / across)
    figure = _figures.new(2.3 * across, 1.9 * down)
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    exact = np.linspace(0, FARTHEST, 200)
    for place, (label, record) in zip(axes.flat, methods.items(), strict=False):
        place.plot(exact, np.exp(-exact), "k--", linewidth=0.8, label="exp(-distance)")
        for colour, (name, head) in zip(("tab:blue", "tab:orange"), drawn_heads(scale).items(), strict=True):
            for i, run in enumerate(observed_runs(record["curves"][name], float(scale[head]))):
                place.plot(*zip(*run, strict=True), ".-", color=colour, linewidth=1, markersize=1.5,
                           label=None if i else name)  # fmt: skip
        place.set_title(label, fontsize=8, color=_colour(label))
        place.tick_params(labelsize=6)
    for place in axes.flat[len(methods) :]:
        place.set_visible(False)
    axes.flat[0].legend(fontsize=5.5)
    figure.supxlabel("distance from the row's largest logit; gaps where no row had the distance", fontsize=8)
    figure.supylabel("output, largest of the row = 1", fontsize=8)
    _figures.save(figure, path)


def _accuracy_figure(found: dict[str, Any], path: Path) -> None:
    """A line for every method, the closest to softmax first: its renormalised KL, and points of accuracy."""
    base = found["methods"][FLOAT]["accuracy"]
    scored = {name: r for name, r in found["methods"].items() if "fidelity" in r and "accuracy" in r}
    order = sorted(scored, key=lambda name: scored[name]["fidelity"]["kl_renormalised"])
    lines = range(len(order))

    def closeness(place: Any) -> None:
        values = [max(scored[name]["fidelity"]["kl_renormalised"], LEAST_KL) for name in order]
        place.plot(values, lines, "o", color="tab:blue", markersize=4)
        place.set_xscale("log")

    def accuracy(place: Any) -> None:
        before = [100 * (scored[name]["accuracy"] - base) for name in order]
        place.plot(before, lines, "o", color="tab:blue", markersize=4, label="without retraining")
        at = [i for i in lines if "retrained" in scored[order[i]]]
        if at:
            after = [100 * (scored[order[i]]["retrained"]["accuracy"] - base) for i in at]
            place.hlines(at, [before[i] for i in at], after, color="grey", linewidth=0.6)
            place.plot(after, at, "^", color="tab:orange", markersize=5, label="retrained")
        _points_axis(place, f"float {base:.4f}")
        place.legend(fontsize=6)

    panels = {KL_TITLE: closeness, "accuracy against float, points": accuracy}
    _by_method(order, panels, 7.6, 1.2, path)


def surrogates_figure(found: Sequence[Any], path: Path) -> bool:
    """The softmax replacements of a reproduction: KL, points without training, points retrained.

    Each model and task (`tables.Group`) has a mark, the mean over its seeds; the method that is closest to
    softmax comes first. Returns whether there was anything to draw.
    """
    from hccs_lab.reproduce.plan import LABELS, PREFIX, PREFIX_RETRAINED

    def means(prefix: str, *place: str) -> dict[str, list[float | None]]:
        return {label: [g.mean_at(f"{prefix} {label}", *place) for g in found] for label in LABELS}

    divergences = means(PREFIX, "distances", "kl_renormalised")
    known = {
        label: statistics.fmean(present)
        for label, values in divergences.items()
        if (present := [value for value in values if value is not None])
    }
    if not known:
        return False
    order = sorted(known, key=lambda label: known[label])

    def panel(values: Mapping[str, Sequence[float | None]], place: Any) -> None:
        for at, group in enumerate(found):
            own = [(v, i) for i, label in enumerate(order) if (v := values[label][at]) is not None]
            shown = [max(v, LEAST_KL) if values is divergences else v for v, _ in own]
            mark = "os^Dvp"[at % 6]
            place.plot(shown, [i for _, i in own], mark, markersize=3.5, alpha=0.8, label=group.name)
        if values is divergences:
            place.set_xscale("log")
            place.legend(fontsize=6)
        else:
            _points_axis(place)

    listed = {
        KL_TITLE: divergences,
        "points against float, without training": means(PREFIX, "points"),
        "points against float, retrained": means(PREFIX_RETRAINED, "points"),
    }
    panels = {
        title: lambda place, values=values: panel(values, place)  # type: ignore[misc]
        for title, values in listed.items()
        if any(v is not None for label in order for v in values[label])
    }
    _by_method(order, panels, 3.9 * len(panels), 1.4, path)
    return True


def _by_method(
    order: Sequence[str], panels: Mapping[str, Callable[[Any], None]], width: float, margin: float, path: Path
) -> None:
    """Panels side by side with a line for every method, whose name is on the left."""
    figure = _figures.new(width, margin + 0.19 * len(order))
    places = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for place, (title, draw) in zip(places, panels.items(), strict=True):
        draw(place)
        place.set_xlabel(title, fontsize=7)
        place.grid(axis="y", linewidth=0.3)
        place.margins(y=0.02)
        place.tick_params(labelsize=7)
    places[0].set_yticks(range(len(order)), order)
    for name in places[0].get_yticklabels():
        name.set_color(_colour(name.get_text()))
    places[0].invert_yaxis()
    _figures.save(figure, path)


def _points_axis(place: Any, label: str | None = None) -> None:
    """Points of accuracy against the float model, which is a dashed line; most methods lie within one."""
    place.axvline(0, color="black", linewidth=0.8, linestyle="--", label=label)
    place.set_xscale("symlog", linthresh=1)
    place.xaxis.set_major_formatter("{x:g}")


def _colour(label: str) -> str:
    """HCCS's names are red."""
    return "tab:red" if label.partition(":")[0].startswith("hccs") else "black"


def decoder_figure(
    found: Mapping[str, Any], stages: Mapping[str, Any], contexts: Sequence[int], path: Path
) -> None:
    """The perplexity over softmax's by context; beside it, if recorded, each head's KL by its first token."""
    longest = next((c for c in reversed(contexts) if f"{c}/heads" in stages), None)
    figure = _figures.new(9 if longest else 5.5, 3.4)
    places = figure.subplots(1, 2 if longest else 1, squeeze=False)[0]
    costs = places[0]
    for method, style in DECODER_STYLES.items():
        if cells := found.get(method, {}):
            ratios = [cell["ratio"] for cell in cells.values()]
            costs.plot(list(cells), ratios, style, label=method, linewidth=1, markersize=4)
    costs.set_xscale("log", base=2)
    costs.set_yscale("log")
    highest = max([cell["ratio"] for cells in found.values() for cell in cells.values()], default=1.0)
    ticks = [ratio for ratio in RATIOS if ratio <= max(highest, RATIOS[1])]
    costs.set_yticks(ticks, [f"{ratio:g}" for ratio in ticks])
    costs.minorticks_off()
    costs.set_ylim(top=max(highest, RATIOS[1]) ** 1.7)  # room for the legend
    costs.set_xticks(list(contexts), [str(context) for context in contexts])
    costs.set_xlabel("context, tokens", fontsize=8)
    costs.set_ylabel("perplexity / softmax's", fontsize=8)
    if longest:
        heads, records = places[1], stages[f"{longest}/heads"]
        first = records["weight of the first token"]
        for form in (form for form in ("one line", "two lines, int16") if f"KL, {form}" in records):
            heads.scatter(first, records[f"KL, {form}"], s=6, label=f"{form}, context {longest}")
        heads.set_yscale("log")
        heads.set_xlabel("mean weight of the first token", fontsize=8)
        heads.set_ylabel("KL of a head, nats", fontsize=8)
    for place in places:
        place.legend(fontsize=6)
        place.tick_params(labelsize=7)
    _figures.save(figure, path)


def bench_figure(found: dict[str, Any], ours: str, path: Path) -> None:
    """Bars of sentences per second, one panel per workload; `ours` is orange, more threads are darker."""
    rows = found["rows"]
    cases, threads, names = (
        list(dict.fromkeys(row[key] for row in rows)) for key in ("workload", "threads", "name")
    )
    figure = _figures.new(5.2 * len(cases), 0.55 + 0.5 * len(names) * max(1.0, 0.7 * len(threads)))
    axes = figure.subplots(1, len(cases), sharey=True, squeeze=False)[0]
    height = 0.8 / len(threads)
    for place, case in zip(axes, cases, strict=True):
        for index, count in enumerate(threads):
            chosen = {r["name"]: r for r in rows if r["workload"] == case and r["threads"] == count}
            shade = 1.0 if index == 0 else 0.7
            bars = place.barh(
                [i + (index - (len(threads) - 1) / 2) * height for i in range(len(names))],
                [chosen[name]["sentences_per_second"] for name in names],
                height,
                color=[
                    tuple(shade * c for c in ((1.0, 0.5, 0.05) if name == ours else (0.4, 0.6, 0.8)))
                    for name in names
                ],
                label=f"{count} thread{'s' * (count > 1)}",
            )
            place.bar_label(
                bars, [f"{chosen[n]['ms']:.3g} ms ({count}T)" for n in names], fontsize=7, padding=2
            )
        place.set_yticks(range(len(names)), names, fontsize=8)
        place.set_title(case, fontsize=9)
        place.set_xlabel("sentences per second", fontsize=8)
        place.tick_params(axis="x", labelsize=7)
        place.margins(x=0.25)
    axes[0].invert_yaxis()
    _figures.save(figure, path)
