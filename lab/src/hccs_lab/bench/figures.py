"""The figure of `hccs bench`: throughput of every contender, per workload and number of threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hccs import _figures
from hccs_lab.bench.contenders import OURS


def bench_figure(found: dict[str, Any], path: Path) -> None:
    """Bars of sentences per second, one panel per workload; the label is the ratio to ours."""
    rows = found["rows"]
    cases = list(dict.fromkeys(row["workload"] for row in rows))
    threads = list(dict.fromkeys(row["threads"] for row in rows))
    names = list(dict.fromkeys(row["name"] for row in rows))
    figure = _figures.new(5.2 * len(cases), 0.55 + 0.5 * len(names) * max(1.0, 0.7 * len(threads)))
    axes = figure.subplots(1, len(cases), sharey=True, squeeze=False)[0]
    height = 0.8 / len(threads)
    for place, case in zip(axes, cases, strict=True):
        for index, count in enumerate(threads):
            chosen = {r["name"]: r for r in rows if r["workload"] == case and r["threads"] == count}
            at = [i + (index - (len(threads) - 1) / 2) * height for i in range(len(names))]
            bars = place.barh(
                at,
                [chosen[name]["sentences_per_second"] for name in names],
                height,
                color=[_colour(name, index) for name in names],
                label=f"{count} thread{'s' * (count > 1)}",
            )
            labels = [f"{chosen[n]['ms']:.3g} ms ({count}T)" for n in names]
            place.bar_label(bars, labels, fontsize=7, padding=2)
        place.set_yticks(range(len(names)), names, fontsize=8)
        place.set_title(case, fontsize=9)
        place.set_xlabel("sentences per second", fontsize=8)
        place.tick_params(axis="x", labelsize=7)
        place.margins(x=0.25)
    axes[0].invert_yaxis()
    _figures.save(figure, path)


def _colour(name: str, index: int) -> tuple[float, float, float]:
    """Ours in orange, others in blue; more threads are darker."""
    base = (1.0, 0.5, 0.05) if name == OURS else (0.4, 0.6, 0.8)
    shade = 1.0 if index == 0 else 0.7
    return (base[0] * shade, base[1] * shade, base[2] * shade)
