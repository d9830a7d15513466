"""The report of `hccs compare`: every softmax replacement on the same logits."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hccs._html.charts import FAINT, OTHER, OURS, TEXT, THEIRS, Curve, Frame, curves, svg, ticks
from hccs._html.elements import Markup, tag
from hccs.conversion.report.page import Fact, Report, Section, boxed, command, key, paragraph, signed, words
from hccs.conversion.runs.record import read_json
from hccs_lab.compare.entries import FLOAT
from hccs_lab.compare.tables import Grid, grids
from hccs_lab.figures import FARTHEST, LEAST_KL, drawn_heads, observed_runs

KEPT = 0.5
"""Points of accuracy that a method may lose and still counts as one that keeps it."""


def comparison_report(folder: Path) -> Report:
    found = read_json(folder / "comparison.json", "Run hccs compare again.")
    methods, settings = found["methods"], found["settings"]
    of = Path(settings["model"]).name if settings["model"] else ", ".join(settings["files"])
    task = f" on {settings['task']['name']}" if settings["task"] else ""
    tables = [part for grid in grids(found) for part in _table(grid)]
    return Report(
        kicker="hccs compare",
        title=f"Softmax replacements: {of}{task}",
        sentence=_sentence(found),
        facts=_facts(found),
        warnings=[f"{label} refuses: {r['refused']}" for label, r in methods.items() if "refused" in r],
        sections=[
            Section("accuracy", "Accuracy against divergence", _scatter(methods)),
            Section("tables", "Tables", tables),
            Section("curves", "Curves", _curves(found)),
            Section("again", "Settings and commands", _commands(found, folder)),
        ],
    )


def _measured(found: Mapping[str, Any]) -> dict[str, Any]:
    return {label: r for label, r in found["methods"].items() if "fidelity" in r}


def _sentence(found: Mapping[str, Any]) -> str:
    measured = {label: r for label, r in _measured(found).items() if label != "softmax"}
    closest = sorted(measured, key=lambda label: measured[label]["fidelity"]["kl_renormalised"])
    integer = [label for label in closest if measured[label].get("costs", {}).get("integer_only")]
    words = f"{len(measured)} replacements of softmax on the same {found['rows']:,} rows of every head"
    if integer:
        kl = measured[integer[0]]["fidelity"]["kl_renormalised"]
        words += f"; of those in integers alone {integer[0]} comes closest, at {kl:.4f} nats"
    scored = [r["accuracy"] for r in measured.values() if "accuracy" in r]
    if scored and FLOAT in found["methods"]:
        base = found["methods"][FLOAT]["accuracy"]
        kept = sum(score > base - KEPT / 100 for score in scored)
        words += f"; {kept} of {len(scored)} stay within half a point of float without retraining"
    return words + "."


def _facts(found: Mapping[str, Any]) -> list[Fact]:
    facts = [Fact("methods", str(len(_measured(found)))), Fact("rows per head", f"{found['rows']:,}")]
    if FLOAT in found["methods"]:
        facts.insert(0, Fact("float accuracy", f"{100 * found['methods'][FLOAT]['accuracy']:.2f} %"))
    return facts


def _table(grid: Grid) -> list[Markup]:
    return [tag("h3", grid.title), boxed(grid.header, grid.rows)]


def _is_ours(label: str) -> bool:
    return label.startswith("hccs")


def _scatter(methods: Mapping[str, Any]) -> list[Markup]:
    """Points lost without retraining over renormalised KL, our methods in our colour."""
    if FLOAT not in methods:
        return []
    base = methods[FLOAT]["accuracy"]
    points = {
        label: (
            math.log10(max(r["fidelity"]["kl_renormalised"], LEAST_KL)),
            100 * (r["accuracy"] - base),
        )
        for label, r in methods.items()
        if "fidelity" in r and "accuracy" in r
    }
    if not points:
        return []
    xs, ys = zip(*points.values(), strict=True)
    frame = Frame(
        660,
        330,
        (math.floor(min(xs)), math.ceil(max(*xs, math.floor(min(xs)) + 1))),
        (min(*ys, -0.5) * 1.1, max(*ys, 0.2) + 0.3),
        left=46,
    )
    style = f"fill:{TEXT};font:10.5px system-ui,sans-serif"
    right = frame.width - frame.right
    drawn = []
    for value in ticks(*frame.y, 6):
        y = f"{frame.down(value):.1f}"
        drawn.append(
            tag("line", x1=frame.left, x2=right, y1=y, y2=y, style=f"stroke:{FAINT};stroke-width:.6")
        )
        drawn.append(
            tag("text", signed(value, 1), x=frame.left - 6, y=y, dy=3.5, text_anchor="end", style=style)
        )
    for power in range(int(frame.x[0]), int(frame.x[1]) + 1):
        x, y = f"{frame.across(power):.1f}", f"{frame.height - 16:g}"
        drawn.append(tag("text", f"{10.0**power:g}", x=x, y=y, text_anchor="middle", style=style))
    axis = "renormalised KL, nats (logarithmic)"
    drawn.append(tag("text", axis, x=right, y=frame.height - 2, text_anchor="end", style=style))
    for name, (across, down) in sorted(points.items(), key=lambda item: _is_ours(item[0])):
        colour = OURS if _is_ours(name) else THEIRS
        x, y = f"{frame.across(across):.1f}", f"{frame.down(down):.1f}"
        dot = tag("circle", cx=x, cy=y, r=5, style=f"fill:{colour};fill-opacity:.85")
        drawn.append(tag("g", tag("title", f"{name}: {signed(down)} points, KL {10**across:.4f}"), dot))
    picture = svg(frame.width, frame.height, drawn, "accuracy lost over divergence, one dot per method")
    return [
        paragraph(
            "Points of accuracy against the float model, without retraining, over the divergence from "
            "softmax. Further up and further left is better; a dot tells its name."
        ),
        tag("figure", picture),
        tag("p", key(HCCS=OURS, others=THEIRS)),
    ]


def _curves(found: Mapping[str, Any]) -> list[Markup]:
    """The output of every method over distance, its largest being 1, for the widest and narrowest head."""
    scale = np.asarray(found["scale"])
    heads = drawn_heads(scale)
    colours = dict(zip(heads, (OURS, OTHER), strict=True))
    exact = [(FARTHEST * i / 60, math.exp(-FARTHEST * i / 60)) for i in range(61)]
    panels = []
    for label, record in found["methods"].items():
        if "curves" not in record:
            continue
        lines = [Curve("softmax", exact, THEIRS, dashed=True)]
        for name, head in heads.items():
            for run in observed_runs(record["curves"][name], float(scale[head])):
                shown = [(x, min(v, 1.2)) for x, v in run]
                # A lone point is a line to itself, which its round ends make a dot.
                lines.append(Curve(name, shown * (2 if len(shown) == 1 else 1), colours[name]))
        chart = curves(
            lines,
            "distance, logits",
            described=f"{label} against softmax",
            width=260,
            height=150,
            x_end=FARTHEST,
        )
        panels.append(tag("figure", tag("figcaption", tag("strong", label)), chart))
    if not panels:
        return []
    legend = {"exp(-distance)": THEIRS, **colours}
    return [
        paragraph(
            "A row's output over the distance from its largest logit. Lines join neighbouring distances that "
            "rows had; where no row had a distance there is a gap."
        ),
        tag("p", key(**legend)),
        tag("div", panels, class_="grid"),
    ]


def _commands(found: Mapping[str, Any], folder: Path) -> list[Markup]:
    settings = found["settings"]
    spelled = ["hccs", "compare", *([settings["model"]] if settings["model"] else settings["files"])]
    task = settings["task"]
    if task and not task["custom"]:
        spelled += ["--task", task["name"]]
    for name in ("data", "vocabulary", "scale", "examples"):
        if settings.get(name):
            spelled += [f"--{name}", str(settings[name])]
    for name in ("rows", "sentences", "seed"):
        spelled += [f"--{name}", str(settings[name])]
    spelled += ["--methods", " ".join(label for label in found["methods"] if label != FLOAT)]
    if any("retrained" in record for record in found["methods"].values()):
        spelled.append("--retrain")
    spelled += ["--out", str(folder)]
    recipe = [(f"retraining.{name}", str(value)) for name, value in settings["retraining"].items()]
    return [
        command(shlex.join(spelled), "Reproduce with:"),
        tag("details", tag("summary", "Retraining"), words(recipe), class_="plain"),
    ]
