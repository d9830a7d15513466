import io
from dataclasses import replace

import pytest
from rich.console import Console

pytest.importorskip("torch")
pytest.importorskip("transformers")

from hccs.cli.convert import show_summary
from hccs.cli.tables import show
from hccs.conversion.results import (
    AllInteger,
    Calibrated,
    Collected,
    FloatModel,
    IntegerForm,
    Reached,
    Results,
    Saved,
    Scored,
    Trained,
)
from hccs.conversion.scores import Difference, Measured, of_pairs

HEADER = (
    "method",
    "without retraining",
    "points",
    "rank corr.",
    "table bytes",
    "KL renorm.",
    "NumPy",
    "PyTorch",
)
ROWS = [("hccs:mode=u8_clb", "0.7912", "-0.30", "0.9912", "1024", "0.0421", "1.52", "12.31")] * 2


def printed(width, header=HEADER, rows=ROWS):
    file = io.StringIO()
    show(Console(file=file, width=width), "a table", header, rows)
    return file.getvalue()


@pytest.mark.parametrize("width", [200, 90, 80])
def test_headings_are_whole_at_any_width(width):
    text = printed(width)
    assert "…" not in text and "|" not in text
    assert all(len(line) <= width for line in text.splitlines())
    assert all(word in text for name in HEADER for word in name.split())
    assert all(cell in text for cell in ROWS[0])


def test_where_no_table_fits_it_is_markdown():
    lines = printed(40).splitlines()
    assert f"| {' | '.join(HEADER)} |" in lines and f"| {' | '.join(ROWS[0])} |" in lines


def reached(accuracy):
    return Reached(Measured(accuracy, 0.01, 1000), Difference(accuracy - 0.8, 0.01, 1000, 20, 30), None)


@pytest.mark.parametrize("retrained", [True, False])
def test_a_summary_shows_every_step_and_what_is_delivered(retrained):
    modes = ("i16_div", "i16_clb", "u8_div", "u8_clb")
    results = Results(
        float_model=FloatModel(
            metric="accuracy", score=Measured(0.8, 0.01, 1000), examples=1000, cut={}, fine_tuned=False,
            labels=("a", "b"), fingerprints={},
        ),
        collect=Collected(sentences=4, rows=4, scale="largest"),
        calibrate=Calibrated(kl=0.126, lines=1, scores="int16", sum_bits=15, objective="kl_i16", heads=()),
        calibrated=Scored(
            reached=reached(0.79), modes={mode: 0.79 - 0.01 * i for i, mode in enumerate(modes)}
        ),
        retrain=Trained(
            reached=reached(0.795), modes={mode: 0.795 - 0.02 * i for i, mode in enumerate(modes)},
            held_back=0.8, history=(),
        ) if retrained else None,
        attention=IntegerForm(reached=reached(0.794)),
        integer=AllInteger(reached=reached(0.791), agreement=0.985, bytes=2**22, float32_bytes=2**24),
        save=Saved(mode="i16_div", kl=0.2011, heads=()),
        seconds={},
    )  # fmt: skip
    file = io.StringIO()
    show_summary(Console(file=file, width=100), results)
    lines = [line.split() for line in file.getvalue().splitlines()]
    low, high = (f"{100 * end:+.2f}" for end in of_pairs(20, 30, 1000))
    assert ["HCCS,", "calibrated", "79.00", "%", *lines[4][4:7], "-1.00", low, "to", high] in lines
    assert (["trained", "79.50", "%"] in [line[:3] for line in lines]) == retrained
    assert ["all", "in", "integers,", "delivered", "79.10", "%"] in [line[:6] for line in lines]
    assert "mean KL over heads: 0.1260 as calibrated, 0.2011 as delivered" in file.getvalue()
    last = file.getvalue().splitlines()[-1]
    assert last.startswith("all in integers: -0.90 points, 98.5 % agreement with floats around HCCS, 4.0 MiB")
    refused = replace(results, integer=AllInteger(refused="expected a; got [b]. c."))
    show_summary(Console(file=file, width=100), refused)
    assert file.getvalue().splitlines()[-1] == "not all in integers: expected a; got [b]. c."
