"""HTML from Python: escaping, charts that stay within their frames, and objects that show themselves."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

import hccs
from hccs._html import Markup, joined, sparkline, table, tag
from hccs.calibration import HeadStatistics
from hccs.conversion.report.heads import Head
from hccs.conversion.report.write import chart
from hccs.conversion.scores import Difference, Measured, of_pairs, of_share
from hccs.numbers.heads import HeadParams
from hccs.numbers.table import ParamTable
from hccs.program import Program
from tests.program.programs import random_program
from tests.report.wellformed import checked

HOSTILE = '<b>"bad"</b> & <script>alert(1)</script>'


def test_text_and_attributes_are_escaped_and_markup_is_not():
    made = tag("p", HOSTILE, tag("i", "in"), title=HOSTILE, id=None)
    found = checked(made)
    assert found.names == ["p", "i"] and "".join(found.text) == HOSTILE + "in"
    assert made.startswith('<p title="&lt;b&gt;&quot;bad') and "id=" not in made
    assert joined([Markup("<br />"), ["<", None, ("&",)]]) == "<br />&lt;&amp;"
    assert checked(table([HOSTILE], [[HOSTILE, 1]])).names.count("script") == 0


def test_charts_are_xml_and_stay_within_their_frames():
    pytest.importorskip("jinja2")
    mass = np.array([1.0, 0.5, 0.1, *[0.0] * 125])
    drawn = [
        chart("curve", Head(0, 1, HeadParams(444, 11, 40), 0.05, 0.01, 1.0, None, mass, 0.05)),
        chart("curve", Head(0, 1, HeadParams(444, 11, 40), 0.5, 0.01, 1.0)),
        chart("interval", 0.8, (0.75, 0.85), (0.7, 0.9), 0.82),
        chart("interval", 0.8, (0.8, 0.8), (0.8, 0.8), 0.8),
        chart("bar", 3, 2, HOSTILE),
        chart("bar", 0, 0),
        sparkline([1, 2, 1], described="up and down"),
        sparkline([1.0], described="one"),
    ]
    for picture in drawn:
        root = ElementTree.fromstring(picture)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for x in re.findall(r' (?:cx|x1|x2|x)="([\d.-]+)"', picture):
            assert -0.1 <= float(x) <= width + 0.1
        for x, y in re.findall(r"([\d.-]+),([\d.-]+)(?=[ \"])", picture):
            assert -0.1 <= float(x) <= width + 0.1 and -0.1 <= float(y) <= height + 0.1
        assert "nan" not in picture and root.find("{http://www.w3.org/2000/svg}title") is not None


def test_intervals_hold_what_they_promise():
    rng = np.random.default_rng(0)
    for share, examples in ((0.5, 40), (0.9, 200), (0.99, 1000)):
        seen = rng.binomial(examples, share, 2000) / examples
        held = np.mean([low <= share <= high for low, high in (of_share(s, examples) for s in seen)])
        assert 0.92 < held < 0.98
    assert of_share(0.0, 10)[0] == 0.0 and 0.999 < of_share(1.0, 10)[1] <= 1.0
    low, high = Measured(1.0, 0.5).interval
    assert (low + high) / 2 == 1.0 and high - low == pytest.approx(2 * 1.96 * 0.5, rel=1e-3)


def test_intervals_of_differences_hold_what_they_promise():
    """Two models on the same examples that rarely differ: an interval that closes at 0 would not hold."""
    rng = np.random.default_rng(0)
    for won, lost, examples in ((0.01, 0.02, 66), (0.05, 0.02, 200), (0.001, 0.001, 100)):
        drawn = rng.multinomial(examples, (won, lost, 1 - won - lost), 2000)
        found = [of_pairs(int(w), int(z), examples) for w, z, _ in drawn]
        assert np.mean([low <= won - lost <= high for low, high in found]) > 0.93
    low, high = Difference(0.0, 0.0, 66, 0, 0).interval
    assert low == -high and 0.03 < high < 3.5 / 66  # about the rule of three
    low, high = Difference(0.0, 0.0, 66).interval  # a metric that is no share
    assert (low, high) == (-3 / 66, 3 / 66)
    assert Measured(1.0, 0.0, 66).interval[0] < 0.96


def shown_objects():
    table = ParamTable(B=[[444, 300]], S=[[11, 4]], D=[[40, 60]], scale=[[0.1, 0.05]], n=64)
    seen = HeadStatistics(shape=(1, 2), n=8, scale=0.1)
    seen.update(np.random.default_rng(0).integers(-60, 60, (1, 2, 50, 8), dtype=np.int8))
    program = random_program(1)
    program = replace(program, labels=(HOSTILE, *program.labels[1:]))
    return {
        "ParamTable": (table, "layer 0, head 1", "444"),
        "HeadStatistics": (seen, "layer 0, head 1", "50"),
        "integer model": (program, "Attention", HOSTILE),
    }


@pytest.mark.parametrize("name", ["ParamTable", "HeadStatistics", "integer model"])
def test_objects_show_themselves(name):
    thing, *wanted = shown_objects()[name]
    page = thing._repr_html_()
    found = checked(page)
    words = "".join(found.text)
    assert name in words and all(word in words for word in wanted)
    assert "script" not in found.names and len(page) < 20_000
    if isinstance(thing, Program):
        assert hccs.IntegerModel(thing)._repr_html_() == page


def test_many_heads_are_counted_and_no_rows_are_no_fault():
    ones = np.ones((12, 12), np.int32)
    table = ParamTable(B=300 * ones, S=4 * ones, D=60 * ones, scale=0.1 * ones, n=64)
    assert "and 96 more" in table._repr_html_()
    assert "layer 0, head 0" in HeadStatistics(shape=(1, 1), n=8, scale=0.1)._repr_html_()


def test_showing_needs_numpy_alone():
    program = (
        "import sys, hccs; t = hccs.ParamTable(B=[[444]], S=[[11]], D=[[40]], scale=[[0.1]], n=64); "
        "t._repr_html_(); print(sorted({'torch', 'matplotlib', 'rich', 'jinja2'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
