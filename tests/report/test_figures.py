"""A figure that leaves heads out says how many."""

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("torch")

from hccs import _figures
from hccs.calibration import HeadStatistics, search
from hccs.calibration.figure import save_figure
from hccs.conversion.report.figures import heads_figure
from hccs.conversion.report.heads import Head
from hccs.numbers.heads import HeadParams


@pytest.fixture
def titles(monkeypatch):
    """The titles of the figures that are saved."""
    found = []
    monkeypatch.setattr(_figures, "save", lambda figure, path: found.append(figure.get_suptitle()))
    return found


@pytest.mark.parametrize(("heads", "title"), [(12, ""), (72, "the 12 worst of 72 heads")])
def test_the_figure_of_a_conversion_tells_how_many_heads_it_shows(titles, tmp_path, heads, title):
    one = Head(0, 0, HeadParams(800, 9, 80), 0.1, 0.01, 1.0, None, None, 0.1)
    heads_figure([one] * heads, tmp_path / "heads.png")
    assert titles == [title]


@pytest.mark.parametrize(("layers", "end"), [(6, "n = 8"), (9, "n = 8; the first 48 of 72 heads")])
def test_the_figure_of_a_calibration_tells_how_many_heads_it_shows(titles, tmp_path, layers, end):
    stats = HeadStatistics((layers, 8), n=8, scale=np.full((layers, 8), 0.1))
    x = np.random.default_rng(0).integers(-60, 60, (layers, 8, 4, 8), dtype=np.int8)
    stats.update(x, np.ones(x.shape, bool))
    save_figure(tmp_path / "heads.png", stats, search(stats, 8))
    assert titles[0].endswith(end)
