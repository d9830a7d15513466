"""Small charts as SVG: curves, intervals, bars. Colours are a page's variables, with values of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hccs._html.elements import Markup, tag

OURS, THEIRS, OTHER, FAINT, TEXT = (
    "var(--ours, #b4551d)",
    "var(--theirs, #2f6aa8)",
    "var(--good, #3a7d44)",
    "var(--faint, #8884)",
    "var(--quiet, #777)",
)
"""HCCS, what it is compared with, a third, the background, and words."""


@dataclass(frozen=True)
class Curve:
    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False


@dataclass(frozen=True)
class Frame:
    """Where numbers lie in a drawing of `width` by `height`."""

    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float] = (0.0, 1.0)
    left: float = 34
    right: float = 10
    top: float = 8
    bottom: float = 30

    def across(self, value: float) -> float:
        low, high = self.x
        return self.left + (value - low) / ((high - low) or 1) * (self.width - self.left - self.right)

    def down(self, value: float) -> float:
        low, high = self.y
        return (
            self.height
            - self.bottom
            - (value - low) / ((high - low) or 1) * (self.height - self.top - self.bottom)
        )


def curves(
    lines: Sequence[Curve],
    x_name: str,
    *,
    mass: Sequence[tuple[float, float]] = (),
    marks: Sequence[tuple[float, float, str]] = (),
    described: str,
    width: float = 420,
    height: float = 210,
    y: tuple[float, float] = (0.0, 1.0),
    x_end: float | None = None,
) -> Markup:
    """Lines over a common x from 0, over an area of `mass`, and dots with names as `marks`."""
    last = x_end or max((x for line in lines for x, _ in line.points), default=1.0)
    frame = Frame(width, height, (0.0, last), y)
    drawn: list[Markup] = [*_y_axis(frame), *_x_axis(frame, x_name)]
    if mass:
        drawn.append(_area(frame, mass))
    for line in lines:
        points = " ".join(
            f"{frame.across(x):.1f},{frame.down(v):.1f}" for x, v in line.points if x <= last * 1.0001
        )
        style = f"fill:none;stroke:{line.colour};stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round"
        drawn.append(
            tag("polyline", points=points, style=style, stroke_dasharray="5 4" if line.dashed else None)
        )
    for x, v, name in marks:
        drawn.append(
            tag("circle", cx=f"{frame.across(x):.1f}", cy=f"{frame.down(v):.1f}", r=4, style=f"fill:{OURS}")
        )
        drawn.append(_label(frame.across(x) + 7, frame.down(v) + 4, name))
    return svg(width, height, drawn, described)


def svg(width: float, height: float, drawn: Sequence[Markup], described: str) -> Markup:
    """A drawing that shrinks with its place and says in words what it shows."""
    return tag(
        "svg",
        tag("title", described),
        list(drawn),
        viewBox=f"0 0 {width:g} {height:g}",
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        style=f"width:100%;max-width:{width:g}px;height:auto;display:block",
    )


def interval(
    value: float, ends: tuple[float, float] | None, reach: tuple[float, float], base: float | None
) -> Markup:
    """A dot on its interval, and a thin line where the float model stands."""
    frame = Frame(200, 18, reach, left=5, right=5)
    place, middle = frame.across, 9
    drawn = [tag("line", x1=0, x2=200, y1=middle, y2=middle, style=f"stroke:{FAINT};stroke-width:1")]
    if base is not None:
        x = f"{place(base):.1f}"
        drawn.append(tag("line", x1=x, x2=x, y1=1, y2=17, style=f"stroke:{THEIRS};stroke-width:1.5"))
    if ends is not None:
        low, high = ends
        span = {"x1": f"{place(low):.1f}", "x2": f"{place(high):.1f}", "y1": middle, "y2": middle}
        drawn.append(
            tag("line", **span, style=f"stroke:{OURS};stroke-width:3.5;opacity:.45;stroke-linecap:round")
        )
    drawn.append(tag("circle", cx=f"{place(value):.1f}", cy=middle, r=4.2, style=f"fill:{OURS}"))
    words = f"{value:.4f}" + ("" if ends is None else f", {ends[0]:.4f} to {ends[1]:.4f}")
    return svg(200, 18, drawn, words)


def bar(value: float, longest: float, *, ours: bool = True, described: str = "") -> Markup:
    """A horizontal bar, as long as its share of the longest."""
    width = 200 * min(1.0, max(0.0, value / longest if longest > 0 else 0.0))
    drawn = [
        tag("rect", x=0, y=4, width=200, height=10, rx=2, style=f"fill:{FAINT};opacity:.5"),
        tag(
            "rect", x=0, y=4, width=f"{width:.1f}", height=10, rx=2, style=f"fill:{OURS if ours else THEIRS}"
        ),
    ]
    return svg(200, 18, drawn, described or f"{value:.4g}")


def sparkline(values: Sequence[float], *, described: str, width: float = 120, height: float = 24) -> Markup:
    """A line without axes: the shape of some numbers, the last one dotted."""
    low, high = min(values), max(values)
    pad = (high - low) * 0.1 or 1.0
    frame = Frame(width, height, (0, max(1, len(values) - 1)), (low - pad, high + pad), 3, 5, 2, 2)
    points = [(frame.across(i), frame.down(v)) for i, v in enumerate(values)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return svg(
        width,
        height,
        [
            tag("polyline", points=line, style=f"fill:none;stroke:{OURS};stroke-width:1.4"),
            tag("circle", cx=f"{points[-1][0]:.1f}", cy=f"{points[-1][1]:.1f}", r=2.4, style=f"fill:{OURS}"),
        ],
        described,
    )


def _area(frame: Frame, mass: Sequence[tuple[float, float]]) -> Markup:
    """The share of probability by distance, to the scale of its largest."""
    tallest = max((v for _, v in mass), default=0.0) or 1.0
    inside = [(x, v / tallest) for x, v in mass if x <= frame.x[1]]
    if not inside:
        return Markup("")
    step = inside[1][0] - inside[0][0] if len(inside) > 1 else frame.x[1] / 64
    path = "".join(
        f"M{frame.across(max(0.0, x - step / 2)):.1f} {frame.down(0):.1f}V{frame.down(0.94 * v):.1f}"
        f"H{frame.across(min(frame.x[1], x + step / 2)):.1f}V{frame.down(0):.1f}"
        for x, v in inside
        if v > 0.004
    )
    return tag("path", d=path, style=f"fill:{FAINT}")


def _y_axis(frame: Frame) -> list[Markup]:
    found = []
    for value in ticks(*frame.y, 4):
        y = frame.down(value)
        found.append(
            tag(
                "line",
                x1=frame.left,
                x2=frame.width - frame.right,
                y1=f"{y:.1f}",
                y2=f"{y:.1f}",
                style=f"stroke:{FAINT};stroke-width:.6",
            )
        )
        found.append(_label(frame.left - 6, y + 3.5, f"{value:g}", "end"))
    return found


def _x_axis(frame: Frame, name: str) -> list[Markup]:
    low = frame.height - frame.bottom
    found = [_label(frame.across(value), low + 13, f"{value:g}", "middle") for value in ticks(*frame.x, 6)]
    return [*found, _label(frame.width - frame.right, frame.height - 3, name, "end")]


def _label(x: float, y: float, words: str, anchor: str = "start") -> Markup:
    style = f"fill:{TEXT};font:10.5px system-ui,sans-serif"
    return tag("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, style=style)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers between two ends.

    >>> ticks(0, 1, 4)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if not high > low:
        return [low]
    step = (high - low) / count
    power = 10.0 ** math.floor(math.log10(step))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]
