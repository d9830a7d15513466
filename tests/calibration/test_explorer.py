"""The explorer of heads: every head with its own numbers, and the bounds of the region."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import hccs
from hccs.calibration import HeadStatistics
from hccs.calibration.explorer import HeadExplorer
from hccs.errors import ParameterError


@pytest.fixture(scope="module")
def statistics():
    stats = HeadStatistics(shape=(2, 2), n=32, scale=np.array([[0.05, 0.1], [0.2, 0.4]]))
    rng = np.random.default_rng(0)
    stats.update(rng.integers(-128, 128, (2, 2, 50, 32)).astype(np.int8))
    return stats


def test_every_head_has_its_own_line(statistics):
    table = hccs.calibrate(statistics)
    page = HeadExplorer(table)._repr_html_()
    shown = json.loads(re.search(r"heads = (\{.*?\})", page)[1])
    assert len(shown) == 4
    theta = table.head(1, 0)
    assert shown["layer 1, head 0"] == [theta.B, theta.S, theta.D, 0.2]
    assert f"largest = {32767 // 32}, floor = {hccs.Region(32).floor}" in page
    assert "http" not in page  # nothing is fetched


def test_two_lines_are_refused(statistics):
    with pytest.raises(ParameterError, match="one line a head"):
        HeadExplorer(hccs.calibrate(statistics, lines=2))._repr_html_()
