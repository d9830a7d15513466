"""`HeadExplorer`: the line of every head of a table, to be moved by hand in a notebook or on any page.

One piece of HTML with its script: no widgets, no kernel, no network.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from string import Template

from hccs.errors import ParameterError
from hccs.numbers.region import Region
from hccs.numbers.table import ParamTable

_PAGE = Template("""<div class="hccs-heads" style="max-width: 640px; font-family: sans-serif; font-size: 13px">
<select aria-label="head"></select>
<svg viewBox="0 0 640 260" role="img" aria-label="score over distance" style="width: 100%">
<path d="M40 10V230H630" fill="none" stroke="currentColor"/>
<text x="48" y="20" fill="currentColor" font-size="12">score, the largest = 1</text>
<text x="440" y="250" fill="currentColor" font-size="12">distance from the maximum, steps</text>
<polyline class="exp" fill="none" stroke="gray" stroke-width="2" stroke-dasharray="5 4"/>
<polyline class="line" fill="none" stroke="darkorange" stroke-width="3"/></svg>
<p class="said"></p></div>
<script>
document.querySelectorAll(".hccs-heads:not([data-alive])").forEach((box) => {
  box.dataset.alive = "yes";
  const heads = $heads, largest = $largest, floor = $floor, list = box.querySelector("select");
  const ranges = [["B", 1, largest], ["S", 0, 60], ["D", 1, 127]].map(([name, low, high]) => {
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
  function draw() {
    const scale = heads[list.value][3], steps = [...Array(128).keys()];
    const [B, S, D] = ranges.map(([input, shown]) => +(shown.textContent = input.value));
    const at = (d, y) => (40 + 4.6 * d).toFixed(1) + "," + (230 - 215 * Math.max(0, y)).toFixed(1);
    const drawn = (name, f) => box.querySelector(name).setAttribute("points", steps.map((d) => at(d, f(d))).join(" "));
    drawn(".exp", (d) => Math.exp(-d * scale));
    drawn(".line", (d) => (B - S * Math.min(d, D)) / B);
    const end = B - S * D;
    box.querySelector(".said").textContent = end < floor
      ? "Not admissible: the line ends at " + end + ", and a row of these could not be normalised."
      : "The line ends at " + end + " of " + B + "; a step is " + scale.toFixed(3) + " in logits. Grey: softmax's exp.";
  }
  choose();
});
</script>""")  # noqa: E501


@dataclass(frozen=True)
class HeadExplorer:
    """A table's heads of one line as an interactive picture; notebooks show it by itself.

    >>> import numpy as np, hccs
    >>> from hccs.calibration import HeadStatistics
    >>> stats = HeadStatistics(shape=(1, 2), n=64, scale=0.1)
    >>> stats.update(np.arange(-64, 64, 2, dtype=np.int8).reshape(1, 1, 1, 64).repeat(2, 1))
    >>> "layer 0, head 1" in HeadExplorer(hccs.calibrate(stats)).html
    True
    """

    table: ParamTable

    @property
    def html(self) -> str:
        """A `div` and its script."""
        if self.table.wide:
            raise ParameterError(
                "a table of one line a head",
                "two lines",
                "hccs calibrate --figure draws heads of both kinds.",
            )
        layers, heads = self.table.shape
        region = Region(self.table.n)
        shown = {}
        for layer in range(layers):
            for head in range(heads):
                theta = self.table.head(layer, head)
                step = float(self.table.scale[layer, head])
                shown[f"layer {layer}, head {head}"] = [theta.B, theta.S, theta.D, step]
        return _PAGE.substitute(heads=json.dumps(shown), largest=region.max_base, floor=region.floor)

    def _repr_html_(self) -> str:
        return self.html
