"""The figure of a decoder: what each method costs over the context, and which heads are hard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hccs import _figures

SHOWN = {
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
"""Ticks of the ratio."""


def draw(found: Mapping[str, Any], stages: Mapping[str, Any], contexts: Sequence[int], path: Path) -> None:
    """The perplexity over softmax's by context; beside it, if recorded, each head's KL by its first token."""
    longest = next((c for c in reversed(contexts) if f"{c}/heads" in stages), None)
    figure = _figures.new(9 if longest else 5.5, 3.4)
    places = figure.subplots(1, 2 if longest else 1, squeeze=False)[0]
    costs = places[0]
    for method, style in SHOWN.items():
        cells = found.get(method, {})
        if cells:
            costs.plot(
                list(cells),
                [cell["ratio"] for cell in cells.values()],
                style,
                label=method,
                linewidth=1,
                markersize=4,
            )
    costs.set_xscale("log", base=2)
    costs.set_yscale("log")
    highest = max([cell["ratio"] for cells in found.values() for cell in cells.values()], default=1.0)
    ratios = [ratio for ratio in RATIOS if ratio <= max(highest, RATIOS[1])]
    costs.set_yticks(ratios, [f"{ratio:g}" for ratio in ratios])
    costs.minorticks_off()
    costs.set_ylim(top=max(highest, RATIOS[1]) ** 1.7)  # the legend's place
    costs.set_xticks(list(contexts), [str(context) for context in contexts])
    costs.set_xlabel("context, tokens", fontsize=8)
    costs.set_ylabel("perplexity / softmax's", fontsize=8)
    costs.legend(fontsize=6)
    if longest:
        heads, of_heads = places[1], stages[f"{longest}/heads"]
        first = of_heads["weight of the first token"]
        for form in (form for form in ("one line", "two lines, int16") if f"KL, {form}" in of_heads):
            heads.scatter(first, of_heads[f"KL, {form}"], s=6, label=f"{form}, context {longest}")
        heads.set_yscale("log")
        heads.set_xlabel("mean weight of the first token", fontsize=8)
        heads.set_ylabel("KL of a head, nats", fontsize=8)
        heads.legend(fontsize=6)
    for place in places:
        place.tick_params(labelsize=7)
    _figures.save(figure, path)
