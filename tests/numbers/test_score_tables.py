"""Scores by distance: what a table may hold."""

from __future__ import annotations

import numpy as np
import pytest

from hccs.errors import HccsError
from hccs.numbers.heads import HeadParams
from hccs.numbers.score_tables import ScoreTable, theta_of


def falling(heads: int = 2) -> np.ndarray:
    return np.tile(np.arange(128, 0, -1, dtype=np.int16), (heads, 1))


@pytest.mark.parametrize(
    "packed",
    [
        falling().astype(np.int32),
        falling()[:, :127],
        falling()[0],
        falling()[:0],
        falling()[:, ::-1],
        falling() - 2,
        np.zeros((1, 128), np.int16),
    ],
    ids=["int32", "127 entries", "one dimension", "no heads", "rising", "negative", "zeros"],
)
def test_tables_that_are_no_scores_are_refused(packed: np.ndarray) -> None:
    with pytest.raises(HccsError):
        ScoreTable(np.ascontiguousarray(packed))


def test_the_longest_row_is_what_24_bits_hold() -> None:
    table = ScoreTable.of_exponentials(np.array([0.1]), 1023)
    table.require_columns(table.max_columns)
    with pytest.raises(HccsError):
        table.require_columns(table.max_columns + 1)
    assert table.max_columns * 1023 < 2**24 <= (table.max_columns + 1) * 1023


def test_lines_are_tables_too() -> None:
    """The reference gives the same scores for two lines and for the table of them."""
    from hccs.reference.softmax import scores

    theta = HeadParams(B=[1023, 600], S=[4, 3], D=[50, 127], S2=[41, 2], D2=[20, 60])
    d = np.arange(128)
    lines = [
        B - S * np.minimum(d, D) - S2 * np.minimum(d, D2) for B, S, D, S2, D2, _ in theta.packed.tolist()
    ]
    rng = np.random.default_rng(0)
    x = rng.integers(-128, 128, (3, 2, 4, 9)).astype(np.int8)
    mask = rng.random(x.shape) < 0.7
    mask[0, 0, 0] = False
    table = ScoreTable(np.array(lines, np.int16))
    assert np.array_equal(table.scores(x, mask), scores(x, theta, mask))
    assert theta_of(theta.packed) == theta and np.array_equal(theta_of(table.packed).packed, table.packed)
