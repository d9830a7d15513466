"""The figures of `hccs reproduce`. They need matplotlib."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hccs._files.atomic import replacing

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
    "all integers": "*-",
}

RATIOS = (1, 1.2, 1.5, 2, 3, 5, 10)
"""Ticks of a decoder's perplexity over softmax's."""


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure that belongs to no window; sizes in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure, its format by the path's suffix; an old file is replaced only by a complete one."""
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:] or "png", dpi=130)


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
    figure = new_figure(width, margin + 0.19 * len(order))
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
    save_figure(figure, path)


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
    figure = new_figure(9 if longest else 5.5, 3.4)
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
    save_figure(figure, path)
