"""Conversions to two lines and to wide sums: what is chosen, and that everything behind takes it."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
runner = pytest.importorskip("typer.testing").CliRunner()

import hccs
import hccs.nn
from hccs.calibration import HeadStatistics, two_lines
from hccs.calibration.two_lines import Fitting, fitting_for
from hccs.cli.app import app
from hccs.conversion.data import tasks
from hccs.conversion.evaluate import evaluate
from hccs.conversion.run import convert
from hccs.conversion.settings import LineForm, chosen_form
from hccs.errors import ParameterError
from hccs.program import operators as op
from tests.conversion.test_convert import RECIPE, settings, silent, write_data

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    """A run without training that says nothing about lines, refined, and what it said."""
    out, said = tmp_path_factory.mktemp("lines") / "run", []
    return out, convert(settings(data, retraining=None, refine=True), out, said.append), said


def test_without_training_two_lines_are_taken(plain):
    out, found, said = plain
    calibrated = found.results.calibrate
    assert (calibrated.lines, calibrated.scores, calibrated.sum_bits) == (2, "uint8", 24)
    assert "  two lines, uint8 scores: close enough to softmax without any training" in said
    for file in ("table.hccs.safetensors", "model.hccs.safetensors"):
        table = hccs.ParamTable.load(out / file)
        assert table.lines == 2 and (table.f == 2).all() and (table.S2 > 0).any()
    assert calibrated.kl < 0.06 and found.results.save.kl < 0.06


def test_two_lines_are_several_times_as_close_as_one(plain, data, tmp_path):
    one = convert(settings(data, retraining=None, lines=1), tmp_path / "one", silent).results.calibrate
    fine = settings(data, retraining=None, scores="int16")
    two = convert(fine, tmp_path / "two", silent).results.calibrate
    assert (one.lines, one.sum_bits, two.scores) == (1, 15, "int16")
    assert two.kl < plain[1].results.calibrate.kl < 0.4 * one.kl


def test_every_backend_and_mode_scores_it(plain):
    out, found, _ = plain
    results = found.results
    scores = evaluate(out).scores
    assert {mode.value for mode in hccs.Mode} <= {*scores}
    assert scores["i16_div"] == results.calibrated.modes["i16_div"]
    integer = evaluate(out, ("i16_div", "u8_div"), backend="integer").scores
    assert integer["i16_div integer"] == results.scores["attention"]
    assert evaluate(out, backend="whole").scores["whole"] == results.scores["integer"]
    assert results.integer.agreement > 0.9


def test_the_saved_model_comes_back_with_two_lines(plain):
    out, _, _ = plain
    model = transformers.AutoModelForSequenceClassification.from_pretrained(out / "model")
    table = hccs.ParamTable.load(out / "model.hccs.safetensors")
    assert hccs.nn.current_table(model) == table
    whole = hccs.IntegerModel.load(out / "model.hccs")
    forms = [step.theta for step in whole.program.operators if isinstance(step, op.Attention)]
    assert forms == [table.layer(i) for i in range(2)]


def test_the_commands_take_it(plain, tmp_path):
    out, _, _ = plain
    shown = runner.invoke(app, ["show", str(out / "model.hccs")])
    assert shown.exit_code == 0 and "2 heads, two lines, uint8 scores" in shown.output
    written = runner.invoke(app, ["export", "c", str(out), "--out", str(tmp_path / "c")])
    assert written.exit_code == 0, written.output
    assert "{1023, " in (tmp_path / "c" / "hccs_weights.c").read_text()
    pytest.importorskip("onnxruntime")
    written = runner.invoke(app, ["export", "onnx", str(out / "model.hccs"), "--out", str(tmp_path / "m")])
    assert written.exit_code == 0 and "32 of 32 random inputs" in written.output, written.output


def test_a_finished_run_stays_and_other_lines_are_refused(plain, data):
    said = []
    convert(settings(data, retraining=None, refine=True), plain[0], said.append)
    assert all(line.endswith("done before") for line in said) and said
    with pytest.raises(hccs.errors.FileError, match="other values of lines"):
        convert(settings(data, retraining=None, refine=True, lines=1), plain[0], silent)


def test_two_lines_are_trained_as_they_are_deployed(data, tmp_path):
    recipe = replace(RECIPE, epochs=0.5)
    found = convert(settings(data, retraining=recipe, lines=2), tmp_path / "run", silent).results
    assert found.calibrate.scores == "uint8" and found.integer.equal == 1.0
    assert found.scores["retrain"] == found.scores["integer"]


@pytest.mark.parametrize(("lines", "said"), [(1, "one line, int16 scores, sums of 24 bits: rows this long"),
                                             (2, "two lines, int16 scores")])  # fmt: skip
def test_long_rows(lines, said, tmp_path):
    """Documents of joined snippets, up to 512 tokens: 15 bits would leave one line no slope."""
    source = tasks.load(tasks.TASKS["movies"])
    for name, examples, count in (("train", source.train, 5), ("dev", source.dev, 2)):
        texts = [text[0] for text in examples.texts]
        rows = [f"{' '.join(texts[16 * i : 16 * i + 16])}\t{i % 2}" for i in range(count)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    long = replace(tasks.TASKS["movies"], n=512)
    chosen = settings(tmp_path, task=long, retraining=None, lines=lines, sentences=4)
    heard = []
    stages = convert(chosen, tmp_path / "run", heard.append).results
    assert any(said in line for line in heard)
    table = hccs.ParamTable.load(tmp_path / "run" / "model.hccs.safetensors")
    assert (table.n, table.lines, table.sum_bits) == (512, lines, 24)
    assert (table.B > 63).all() and (table.S + (0 if table.S2 is None else table.S2) > 0).all()
    fitted = "output" if lines == 2 else "kl_i16"
    assert (stages.collect.scale, stages.calibrate.objective) == ("largest", fitted)
    assert stages.integer.agreement >= 0.5 and stages.save.kl < (0.35 if lines == 1 else 0.2)
    if lines == 2:  # KL is larger than it might be, for the sake of outputs
        kept = HeadStatistics.load(tmp_path / "run" / "statistics.safetensors")
        own = hccs.ParamTable.load(tmp_path / "run" / "table.hccs.safetensors")
        least = hccs.calibrate(kept, lines=2)
        for h in range(4):
            both = [table.head(*divmod(h, 2)).packed for table in (own, least)]
            assert np.less(*two_lines.objectives(kept, [h], both, output=True))
            assert np.greater(*two_lines.objectives(kept, [h], both))


def test_the_form_that_is_chosen():
    assert chosen_form(64, None, None, retrains=True) == LineForm(1, "int16", 15)
    assert chosen_form(64, 2, None, retrains=True) == LineForm(2, "uint8", 24)
    assert chosen_form(128, None, None, retrains=False) == LineForm(2, "uint8", 24)
    assert chosen_form(129, None, None, retrains=False) == LineForm(2, "int16", 24)
    assert chosen_form(512, None, "uint8", retrains=False) == LineForm(2, "uint8", 24)
    assert fitting_for(257, 2) == Fitting(None, "output")
    assert fitting_for(257, 2, causal=True) == Fitting("rows", "output")
    assert (
        fitting_for(256, 2, causal=True)
        == fitting_for(256, 2)
        == fitting_for(512, 1)
        == fitting_for(512, 2, "uint8")
        == Fitting()
    )
    narrow = [n for n in range(1, 600) if chosen_form(n, 1, None, retrains=True).sum_bits == 15]
    assert narrow == [*range(1, 253)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lines": 3}, "lines 1 or 2; got 3"),
        ({"lines": True}, "--lines"),
        ({"scores": "int8"}, "scores to be one of int16, uint8; got 'int8'"),
        ({"scores": "uint8"}, "two lines for uint8 scores; got one line. Add --lines 2"),
    ],
)
def test_lines_and_scores_that_do_not_go_together(changes, message):
    with pytest.raises(ParameterError, match=message):
        settings(None, **changes)
