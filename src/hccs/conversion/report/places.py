"""Where accuracy goes, by operator and layer: what `hccs where` has found, as a part of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hccs._html.charts import bar
from hccs._html.elements import Markup, tag
from hccs.conversion.report.page import boxed, command, said, signed

WORST = 12


def where_section(account: Mapping[str, Any] | None, folder: Path, whole: bool) -> list[Markup]:
    """Each operator alone in integers, by kind and by layer; the command where that was not measured."""
    if account is None:
        return [command(f"hccs where {folder}", "Not measured yet:")] if whole else []
    everything = account["whole"]
    single = sorted(
        (c for c in account["operators"] if c["operator"] != "embeddings"), key=lambda c: _decibels(c)
    )
    return [
        said(
            "One kind of operator alone is put into integers, floats around it, and the answers are compared "
            f"with the float model's. All together change {100 * (1 - everything['agreement']):.1f} % of "
            f"the answers; the logits lie {_shown(everything)} above their noise. Shorter bars are better."
        ),
        boxed(_header(account), _rows([everything, *_sorted(account["kinds"])], account)),
        tag("h3", "By layer, the dearest first"),
        boxed(_header(account), _rows(single[:WORST], account)),
    ]


def _sorted(costs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(costs, key=_decibels)


def _decibels(cost: Mapping[str, Any]) -> float:
    """JSON has no infinity: None stands for no noise at all."""
    return math.inf if cost["decibels"] is None else float(cost["decibels"])


def _shown(cost: Mapping[str, Any]) -> str:
    value = _decibels(cost)
    return "infinitely" if math.isinf(value) else f"{value:.1f} dB"


def _header(account: Mapping[str, Any]) -> list[str]:
    points = [] if account["accuracy"] is None else ["points"]
    return ["operator", "layer", "answers that stay, %", "KL, nats", "logits, dB", *points, "noise"]


def _rows(costs: Sequence[Mapping[str, Any]], account: Mapping[str, Any]) -> list[list[Any]]:
    def power(cost: Mapping[str, Any]) -> float:
        return float(10 ** (-_decibels(cost) / 20))  # amplitudes: powers would hide all but the worst

    longest = max(power(cost) for cost in costs)
    found = []
    for cost in costs:
        points = (
            []
            if account["accuracy"] is None
            else [signed(100 * ((cost["accuracy"] or 0) - account["accuracy"]))]
        )
        name = tag("strong", "everything") if cost["operator"] == "everything" else cost["operator"]
        found.append(
            [
                name,
                "all" if cost["layer"] is None else cost["layer"],
                f"{100 * cost['agreement']:.1f}",
                f"{cost['kl']:.5f}",
                _shown(cost).removesuffix(" dB"),
                *points,
                bar(power(cost), longest, described=_shown(cost)),
            ]
        )
    return found
