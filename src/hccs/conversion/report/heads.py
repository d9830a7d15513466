"""The heads of a run: worst first, each with its curve against softmax; and a map of them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hccs._html.charts import FAINT, OURS, TEXT, THEIRS, Curve, bar, curves, svg
from hccs._html.elements import Markup, tag
from hccs.calibration import HeadStatistics
from hccs.conversion.report.page import key, paragraph
from hccs.conversion.results import HeadFit
from hccs.errors import FileError
from hccs.numbers.heads import NAMES, HeadParams
from hccs.numbers.modes import MAX_DISTANCE
from hccs.numbers.table import CONVERTED, ParamTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

FARTHEST = 12.0
"""Distances in logits that a curve shows at most: exp(-12) is six millionths."""


@dataclass(frozen=True)
class Head:
    """One head: its parameters, its KL and the mass that softmax puts at each distance."""

    layer: int
    head: int
    theta: HeadParams
    scale: float
    kl: float
    entropy: float
    calibrated_kl: float | None
    mass: NDArray[np.float64] | None
    """Softmax's mass by distance, in the steps of the calibration."""
    mass_step: float

    @property
    def key(self) -> str:
        """Its place on the page."""
        return f"head-{self.layer}-{self.head}"

    @property
    def name(self) -> str:
        """For people."""
        return f"layer {self.layer}, head {self.head}"

    @property
    def theta_words(self) -> str:
        """Its parameters with their names."""
        values = self.theta.packed.tolist()
        return " ".join(f"{name} {value}" for name, value in zip(NAMES, values, strict=False))


def heads_of(folder: Path, calibrated: Sequence[HeadFit], delivered: Sequence[HeadFit]) -> list[Head]:
    """Every head of a finished run, the worst first; curves have no mass where the statistics are gone."""
    table = ParamTable.load(folder / CONVERTED)
    statistics = folder / "statistics.safetensors"
    stats = HeadStatistics.load(statistics) if statistics.exists() else None
    before = {(fit.layer, fit.head): fit for fit in calibrated}
    now = {(fit.layer, fit.head): fit for fit in delivered}
    if not {*np.ndindex(table.shape)} <= now.keys():
        raise FileError(
            f"results of all heads in {folder / 'results.json'}", f"{len(now)} heads", "Convert the model."
        )
    found = []
    for layer, head in np.ndindex(table.shape):
        summary = None if stats is None else stats.summary([layer * table.shape[1] + head])
        earlier = before.get((layer, head))
        found.append(
            Head(
                layer,
                head,
                table.head(layer, head),
                float(table.scale[layer, head]),
                kl=now[layer, head].kl,
                entropy=now[layer, head].entropy,
                calibrated_kl=None if earlier is None else earlier.kl,
                mass=None if summary is None else summary.mass,
                mass_step=1.0 if stats is None else float(stats.scale[layer, head]),
            )
        )
    return sorted(found, key=lambda h: -h.kl)


def heads_section(heads: Sequence[Head]) -> list[Markup]:
    """The map, a sentence, and the list with a curve in every entry."""
    worst = max(h.kl for h in heads)
    mean = sum(h.kl for h in heads) / len(heads)
    many = f"{len(heads)} heads" if len(heads) > 1 else "One head"
    orders = {"KL, worst first": "kl down", "place in the model": "place up", "entropy": "entropy up"}
    choice = tag(
        "label",
        tag("small", "Order "),
        tag(
            "select",
            [tag("option", name, value=way) for name, way in orders.items()],
            data_sorts="heads-list",
        ),
        class_="scripted",
    )
    names = ("head", "θ", "scale", "", "KL, nats", "entropy")
    classes = (None, None, "n", None, "n", "n")
    return [
        paragraph(
            f"{many}, mean KL {mean:.4f} nats between softmax and HCCS. A head opens to its curve: the "
            "weight of a position over its distance from the row's largest logit, in logits."
        ),
        _map(heads, worst) if len(heads) > 1 else Markup(""),
        tag("div", key(softmax=THEIRS, HCCS=OURS, probability_by_distance=FAINT), choice, class_="row"),
        tag(
            "div",
            tag(
                "div",
                [tag("span", name, class_=kind) for name, kind in zip(names, classes, strict=True)],
                class_="names",
            ),
            tag("div", [_entry(h, worst, place == 0) for place, h in enumerate(heads)], id="heads-list"),
            class_="heads",
        ),
    ]


def _entry(head: Head, worst: float, is_open: bool) -> Markup:
    return tag(
        "details",
        tag(
            "summary",
            tag("span", head.name),
            tag("span", head.theta_words, class_="theta"),
            tag("span", f"{head.scale:.4f}", class_="n scale"),
            tag("span", bar(head.kl, worst, described=f"KL {head.kl:.4f}"), class_="bar"),
            tag("span", f"{head.kl:.4f}", class_="n"),
            tag("span", f"{head.entropy:.2f}", class_="n entropy"),
        ),
        tag("div", tag("figure", head_curve(head)), _facts(head), class_="side"),
        id=head.key,
        open=is_open,
        data_kl=f"{head.kl:.6f}",
        data_entropy=f"{head.entropy:.4f}",
        data_place=1000 * head.layer + head.head,
    )


def _facts(head: Head) -> Markup:
    rows = [
        ("θ", tag("span", head.theta_words, class_="theta")),
        ("one int8 step", f"{head.scale:.5f} logits"),
        ("flat beyond", f"{int(head.theta.D) * head.scale:.2f} logits"),
        ("KL", f"{head.kl:.4f} nats"),
        *([] if head.calibrated_kl is None else [("as calibrated", f"{head.calibrated_kl:.4f} nats")]),
        ("entropy", f"{head.entropy:.3f} nats"),
    ]
    return tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in rows])


def head_curve(head: Head) -> Markup:
    """exp(-distance) and the score of HCCS relative to its largest, over the mass that softmax puts there."""
    last = min(FARTHEST, MAX_DISTANCE * head.scale)
    mass = []
    if head.mass is not None:
        # The maximum itself holds most of the mass; what lies beyond it shows the shape.
        mass = [(d * head.mass_step, float(m)) for d, m in enumerate(head.mass) if d > 0]
        mass = _binned([pair for pair in mass if pair[0] <= last])
    exact = [(last * i / 60, math.exp(-last * i / 60)) for i in range(61)]
    return curves(
        [
            Curve("softmax", exact, THEIRS),
            Curve("HCCS", surrogate(head.theta, head.scale, last), OURS),
        ],
        "distance from the maximum, logits",
        mass=mass,
        described=f"{head.name}: HCCS against softmax, KL {head.kl:.4f}",
        x_end=last,
    )


def surrogate(theta: HeadParams, scale: float, last: float) -> list[tuple[float, float]]:
    """The corners of s(d) / s(0): a broken line needs no more."""
    corners = sorted({0, int(theta.D2), int(theta.D), math.ceil(last / scale)})
    distances = np.array(corners if not int(theta.f) else range(corners[-1] + 1))
    scores = (
        theta.B - theta.S * np.minimum(distances, theta.D) - theta.S2 * np.minimum(distances, theta.D2)
    ) >> theta.f
    top = max(int(scores[0]), 1)
    return [(float(d * scale), float(s) / top) for d, s in zip(distances, scores, strict=True)]


def _binned(mass: Sequence[tuple[float, float]], most: int = 64) -> list[tuple[float, float]]:
    """At most so many bars: neighbours are added up."""
    width = math.ceil(len(mass) / most) or 1
    groups = [mass[i : i + width] for i in range(0, len(mass), width)]
    return [(sum(x for x, _ in g) / len(g), sum(v for _, v in g)) for g in groups]


def _map(heads: Sequence[Head], worst: float) -> Markup:
    """One square per head, darker for more KL; each leads to its head."""
    layers, across = 1 + max(h.layer for h in heads), 1 + max(h.head for h in heads)
    size, left, top = 22, 56, 16
    label = f"fill:{TEXT};font:10.5px system-ui,sans-serif"
    drawn = [
        tag("text", f"layer {i}", x=left - 8, y=top + size * i + 15, text_anchor="end", style=label)
        for i in range(layers)
    ]
    drawn += [
        tag("text", i, x=left + size * i + 10, y=top - 5, text_anchor="middle", style=label)
        for i in range(across)
    ]
    for h in heads:
        strength = 0.08 + 0.92 * (h.kl / worst if worst > 0 else 0)
        square = tag(
            "rect",
            x=left + size * h.head,
            y=top + size * h.layer,
            width=size - 2,
            height=size - 2,
            rx=3,
            style=f"fill:{OURS};fill-opacity:{strength:.2f}",
        )
        drawn.append(tag("a", tag("title", f"{h.name}: KL {h.kl:.4f}"), square, href=f"#{h.key}"))
    picture = svg(left + size * across + 4, top + size * layers, drawn, "KL of every head")
    return tag("figure", picture, tag("figcaption", "KL by layer and head; darker is more."), class_="map")
