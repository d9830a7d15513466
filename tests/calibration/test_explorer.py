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
from tests.report.browser import Browser, executable


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


def test_axes_have_ticks_with_numbers(statistics):
    page = HeadExplorer(hccs.calibrate(statistics)).html
    assert page.count('class="tick"') == 9
    shown = re.findall(r">([\d.]+)</text>", page)
    assert shown == ["0", "32", "64", "96", "127", "0.25", "0.5", "0.75", "1"]


def test_rows_of_the_page_are_rows_of_the_data(statistics):
    table = hccs.calibrate(statistics)
    page = HeadExplorer(table, statistics).html
    rows = json.loads(re.search(r"rows = (\{.*?\})", page)[1])["layer 1, head 0"]
    assert 16 <= len(rows) <= 32 and all(sum(count for _, count in pairs) == 32 for _, pairs in rows)
    x = np.random.default_rng(0).integers(-128, 128, (2, 2, 50, 32))[1, 0]
    distances = {tuple(sorted(row.tolist())) for row in x.max(-1, keepdims=True) - x}
    for _, pairs in rows:
        assert tuple(d for d, count in pairs for _ in range(count)) in distances
    with pytest.raises(ParameterError, match="statistics of the table's"):
        HeadExplorer(table, HeadStatistics((1, 1), 32)).html  # noqa: B018


def test_the_page_shows_the_kl_of_the_line_as_it_is_dragged(statistics, tmp_path):
    """In a browser: the KL shown is the formula's, at first and after a slider has moved."""
    if executable() is None:
        pytest.skip("no Chromium")
    table = hccs.calibrate(statistics)
    rows = statistics.kept_rows(0, 32)
    path = tmp_path / "page.html"
    path.write_text(f"<!doctype html><title>heads</title>{HeadExplorer(table, statistics).html}")

    def kl(B, S, D):
        total = 0.0
        for _, row in rows:
            d, p = row.astype(int), np.exp(-row.astype(float) * 0.05)
            s, p = B - S * np.minimum(d, D), p / p.sum()
            total += float((p * np.log(p * s.sum() / s)).sum())
        return total / len(rows)

    theta = table.head(0, 0)
    with Browser(tmp_path / "profile") as chromium:
        chromium.open(path, 800)
        words = chromium.ask("document.querySelector('.kl').textContent")
        own = kl(theta.B, theta.S, theta.D)
        assert words.startswith(f"KL from softmax {own:.4f} nats (the table's own: {own:.4f})")
        words = chromium.ask(
            "(() => { const slider = document.querySelector('input[aria-label=D]'); slider.value = 9;"
            "slider.dispatchEvent(new Event('input')); return document.querySelector('.kl').textContent })()"
        )
        assert words.startswith(f"KL from softmax {kl(theta.B, theta.S, 9):.4f} nats")
        assert not chromium.complaints


def test_two_lines_are_refused(statistics):
    with pytest.raises(ParameterError, match="one line a head"):
        HeadExplorer(hccs.calibrate(statistics, lines=2))._repr_html_()
