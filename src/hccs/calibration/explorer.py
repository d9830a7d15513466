"""`HeadExplorer`: the line of every head of a table, to be moved by hand in a notebook or on any page.

One piece of HTML with its script: no widgets, no kernel, no network.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from string import Template
from typing import Any

import numpy as np

from hccs.calibration.statistics import HeadStatistics
from hccs.errors import ParameterError
from hccs.numbers.modes import MAX_DISTANCE, MAX_SLOPE
from hccs.numbers.region import Region
from hccs.numbers.table import ParamTable

MOST_ROWS = 32
"""Rows of a head that the page holds to compute its KL from."""

_PAGE = Template("""<div class="hccs-heads" style="max-width: 640px; font-family: sans-serif; font-size: 13px">
<select aria-label="head"></select>
<svg viewBox="0 0 640 260" role="img" aria-label="score over distance" style="width: 100%">
$ticks
<path d="M40 10V230H630" fill="none" stroke="currentColor"/>
<text x="48" y="20" fill="currentColor" font-size="12">score, the largest = 1</text>
<text x="440" y="258" fill="currentColor" font-size="12">distance from the maximum, steps</text>
<polyline class="exp" fill="none" stroke="gray" stroke-width="2" stroke-dasharray="5 4"/>
<polyline class="line" fill="none" stroke="darkorange" stroke-width="3"/></svg>
<p><output class="kl"></output></p><p class="verdict"></p></div>
<script>
document.querySelectorAll(".hccs-heads:not([data-alive])").forEach((box) => {
  box.dataset.alive = "yes";
  const heads = $heads, largest = $largest, floor = $floor, list = box.querySelector("select");
  const rows = $rows, measured = "$measured";
  const ranges = [["B", 1, largest], ["S", 0, $steepest], ["D", 1, $farthest]].map(([name, low, high]) => {
    const [label, input, shown] = ["label", "input", "b"].map((kind) => document.createElement(kind));
    Object.assign(input, {type: "range", min: low, max: high});
    input.setAttribute("aria-label", name);
    label.append(" " + name + " ", input, shown);
    box.insertBefore(label, box.querySelector("svg"));
    input.addEventListener("input", draw);
    return [input, shown];
  });
  for (const name in heads) list.add(new Option(name));
  list.addEventListener("change", choose);
  function choose() {
    heads[list.value].slice(0, 3).forEach((value, i) => { ranges[i][0].value = value; });
    draw();
  }
  // The mean over rows of sum p log(p / (s / Z)); a row is its weight and [distance, count] pairs.
  function divergence([B, S, D, scale]) {
    let total = 0, weights = 0;
    for (const [weight, pairs] of rows[list.value]) {
      const score = (d) => Math.max(0, B - S * Math.min(d, D));
      const sum = (f) => pairs.reduce((all, [d, count]) => all + count * f(d), 0);
      const Z = sum(score), E = sum((d) => Math.exp(-d * scale));
      total += weight * sum((d) => Math.exp(-d * scale) / E * (Math.log(Z / score(d)) - d * scale - Math.log(E)));
      weights += weight;
    }
    return total / weights;
  }
  function draw() {
    const scale = heads[list.value][3], steps = [...Array(128).keys()];
    const [B, S, D] = ranges.map(([input, shown]) => +(shown.textContent = input.value));
    const at = (d, y) => (40 + 4.6 * d).toFixed(1) + "," + (230 - 215 * Math.max(0, y)).toFixed(1);
    const drawn = (name, f) => box.querySelector(name).setAttribute("points", steps.map((d) => at(d, f(d))).join(" "));
    drawn(".exp", (d) => Math.exp(-d * scale));
    drawn(".line", (d) => (B - S * Math.min(d, D)) / B);
    const [here, calibrated] = [[B, S, D, scale], heads[list.value]].map((head) => divergence(head).toFixed(4));
    box.querySelector(".kl").textContent =
      "KL from softmax " + here + " nats (the table's own: " + calibrated + ") over " + measured;
    const end = B - S * D;
    box.querySelector(".verdict").textContent = end < floor
      ? "Not admissible: the line ends at " + end + ", and a row of these could not be normalised."
      : "The line ends at " + end + " of " + B + "; a step is " + scale.toFixed(3) + " in logits. Grey: softmax's exp.";
  }
  choose();
});
</script>""")  # noqa: E501


@dataclass(frozen=True)
class HeadExplorer:
    """A table's heads of one line as an interactive picture; notebooks show it by itself.

    With the `statistics` that the table was calibrated on, KL is that of rows of the data; otherwise of one
    row that has every distance once.

    >>> import numpy as np, hccs
    >>> from hccs.calibration import HeadStatistics
    >>> stats = HeadStatistics(shape=(1, 2), n=64, scale=0.1)
    >>> stats.update(np.arange(-64, 64, 2, dtype=np.int8).reshape(1, 1, 1, 64).repeat(2, 1))
    >>> "layer 0, head 1" in HeadExplorer(hccs.calibrate(stats), stats).html
    True
    """

    table: ParamTable
    statistics: HeadStatistics | None = None

    @property
    def html(self) -> str:
        if self.table.wide:
            raise ParameterError(
                "a table of one line a head",
                "two lines",
                "hccs calibrate --figure draws heads of both kinds.",
            )
        if self.statistics is not None and self.statistics.shape != self.table.shape:
            raise ParameterError(
                f"statistics of the table's {self.table.shape} heads",
                f"shape {self.statistics.shape}",
                "Pass those that the table was calibrated on.",
            )
        heads, rows = {}, {}
        for number, (layer, head) in enumerate(np.ndindex(self.table.shape)):
            theta, name = self.table.head(layer, head), f"layer {layer}, head {head}"
            heads[name] = [theta.B, theta.S, theta.D, float(self.table.scale[layer, head])]
            rows[name] = self._rows(number)
        region = Region(self.table.n)
        return _PAGE.substitute(
            heads=json.dumps(heads),
            rows=json.dumps(rows, separators=(",", ":")),
            measured="one row of every distance" if self.statistics is None else "rows of the data",
            largest=region.max_base,
            floor=region.floor,
            steepest=MAX_SLOPE,
            farthest=MAX_DISTANCE,
            ticks="\n".join([*map(_across, (0, 32, 64, 96, 127)), *map(_up, (0.25, 0.5, 0.75, 1.0))]),
        )

    def _rows(self, head: int) -> list[Any]:
        """At most MOST_ROWS rows of a head: the weight of each, and how often it has each distance."""
        if self.statistics is None:
            return [[1, [[d, 1] for d in range(MAX_DISTANCE + 1)]]]
        rows = self.statistics.kept_rows(head, MOST_ROWS)
        return [[w, np.stack(np.unique(d, return_counts=True), -1).tolist()] for w, d in rows]

    def _repr_html_(self) -> str:
        return self.html


def _across(d: int) -> str:
    x = f"{40 + 4.6 * d:.1f}"
    mark = f'<path class="tick" d="M{x} 230v5" stroke="currentColor"/>'
    return f'{mark}<text x="{x}" y="246" fill="currentColor" font-size="11" text-anchor="middle">{d}</text>'


def _up(score: float) -> str:
    y = f"{230 - 215 * score:.1f}"
    mark = f'<path class="tick" d="M35 {y}h595" stroke="currentColor" stroke-opacity="0.2"/>'
    place = f'x="33" y="{y}" dy="4" text-anchor="end"'
    return f'{mark}<text {place} fill="currentColor" font-size="11">{score:g}</text>'
