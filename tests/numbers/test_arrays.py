"""Whatever users give in the place of numbers is refused by an `HccsError` that names it."""

from __future__ import annotations

import numpy as np
import pytest

import hccs
from hccs.calibration import HeadStatistics, LogitRange
from hccs.ops.quantise import quantise

RAGGED = [[1, 2, 3], [4]]
THETA = hccs.HeadParams(B=300, S=5, D=40)
REQUANT = hccs.Requant(hccs.FixedPoint(1, 1))
X = np.zeros((2, 3, 4), np.int8)


def statistics(*arguments, **options):
    stats = HeadStatistics((1, 2), 4, 0.1)
    stats.update(np.zeros((1, 2, 3, 4), np.int8), *arguments, **options)


CALLS = {
    "multiplier": lambda wrong: hccs.FixedPoint(wrong, 1),
    "shift": lambda wrong: hccs.FixedPoint(1, wrong),
    "factor": hccs.FixedPoint.nearest,
    "v_scale": lambda wrong: hccs.Requant(hccs.FixedPoint(1, 1), wrong),
    "B": lambda wrong: hccs.HeadParams(wrong, 1, 1),
    "f": lambda wrong: hccs.HeadParams(300, 1, 1, 1, 1, wrong),
    "scale": lambda wrong: hccs.ParamTable([[300]], [[1]], [[1]], wrong, 64),
    "n": lambda wrong: hccs.ParamTable([[300]], [[1]], [[1]], [[1.0]], wrong),
    "n of a region": hccs.Region,
    "sum_bits": lambda wrong: hccs.Region(4, wrong),
    "layer of a table": lambda wrong: hccs.ParamTable([[300]], [[1]], [[1]], [[1.0]], 64).layer(wrong),
    "head of a table": lambda wrong: hccs.ParamTable([[300]], [[1]], [[1]], [[1.0]], 64).head(0, wrong),
    "x": lambda wrong: hccs.softmax(wrong, THETA),
    "valid": lambda wrong: hccs.softmax(X, THETA, valid=wrong if wrong is not None else "x"),
    "threads": lambda wrong: hccs.softmax(X, THETA, threads=wrong if wrong is not None else "x"),
    "keys": lambda wrong: hccs.attention(X, wrong, wrong, THETA, REQUANT),
    "scale of logits": lambda wrong: quantise(X.astype(float), wrong),
    "logits": lambda wrong: quantise(wrong, 1.0),
    "shape": HeadStatistics,
    "shape of a range": LogitRange,
    "n of statistics": lambda wrong: HeadStatistics((1, 1), wrong),
    "scale of statistics": lambda wrong: HeadStatistics((1, 1), 4, wrong),
    "weight_unit": lambda wrong: HeadStatistics((1, 1), 4, weight_unit=wrong),
    "layer": lambda wrong: statistics(layer=wrong if wrong is not None else "x"),
    "weight": lambda wrong: statistics(weight=wrong if wrong is not None else "x"),
    "lengths": lambda wrong: statistics(wrong if wrong is not None else "x"),
    "rows": lambda wrong: HeadStatistics((1, 2), 4).update(wrong),
}
WRONG = {
    "ragged": RAGGED,
    "None": None,
    "text": "three",
    "an object": object(),
    "a complex number": 1j,
    "beyond int64": 2**70,
    "a list of text": ["a"],
    "an empty list": [],
    "NaN": float("nan"),
}


TAKEN = {("n of a region", "beyond int64"), ("logits", "an empty list")}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("call", CALLS)
def test_no_numbers_are_refused(call, wrong):
    if (call, wrong) in TAKEN:
        CALLS[call](WRONG[wrong])
        return
    with pytest.raises(hccs.HccsError) as refused:
        CALLS[call](WRONG[wrong])
    assert "\n" not in str(refused.value)


def test_indices_of_a_table_are_pythons():
    table = hccs.ParamTable([[300, 200]], [[1, 2]], [[1, 1]], [[1.0, 1.0]], 64)
    assert table.head(0, -1) == table.head(0, 1) and table.layer(-1) == table.layer(np.int64(0))
    for place in ((1, 0), (0, 2), (-2, 0), (0, True), (0, 1.0)):
        with pytest.raises(hccs.HccsError, match="to be an integer from -"):
            table.head(*place)
