import json
from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import hccs.nn
from hccs.errors import FileError, ParameterError
from hccs.pipeline.convert.demo import MODEL
from hccs.pipeline.data import tasks
from hccs.pipeline.report import fidelity
from hccs.pipeline.reproduce import accuracy, tables
from hccs.pipeline.training import Recipe

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """A reproduction in small: the embedded model as encoder, a few of its sentences as SST-2."""
    source = tasks.load(tasks.TASKS["movies"])
    (tmp_path / "data" / "sst2").mkdir(parents=True)
    for name, examples in (("train", source.train.subset(64)), ("dev", source.dev.subset(48))):
        rows = [f"{text[0]}\t{label}" for text, label in zip(examples.texts, examples.labels, strict=True)]
        (tmp_path / "data" / "sst2" / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    words = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    (tmp_path / "data" / "vocab.txt").write_text("\n".join(sorted(words, key=words.get)) + "\n")
    (tmp_path / "data" / "tiny").symlink_to(MODEL)
    short = Recipe(epochs=1, learning_rate=1e-5, batch_size=32, evaluations_per_epoch=1)
    monkeypatch.setitem(
        accuracy.ENCODERS, "tiny", accuracy.Encoder("tiny", {"sst2": accuracy.Schedule(short, 1e-5)})
    )
    monkeypatch.setattr(accuracy, "RETRAINING", replace(short, distil=0.5))
    monkeypatch.setattr(accuracy, "CALIBRATION_SENTENCES", 32)
    monkeypatch.setattr(hccs.nn, "refine", partial(hccs.nn.refine, steps=4))
    return accuracy.Plan(
        tmp_path / "data", tmp_path / "out", ("head", "float, same budget"), keep_models=True
    )


def test_a_cell_is_run_once_and_tabulated(plan):
    cells = accuracy.cells(["tiny"], ["sst2"], 1)
    accuracy.run(plan, cells)
    path = plan.out / "cells" / "tiny-sst2-0.json"
    first = path.read_text()
    accuracy.run(plan, cells)
    assert path.read_text() == first
    record = json.loads(first)["stages"]
    assert set(record["retrained/head"]["modes"]) == {"i16_div", "i16_clb", "u8_div", "u8_clb"}
    tables.write(plan.out)
    text = (plan.out / "accuracy.md").read_text()
    assert f"| sst2 | tiny | 1 | {record['float']['accuracy']:.4f} |" in text
    assert "0.825 / 0.619 / 0.822" in text

    fidelity.measure_cells(plan, cells)
    found = json.loads((plan.out / "fidelity" / "tiny-sst2-0.json").read_text())
    assert len(found["kl_before"]) == len(found["kl_after"]) == 4
    assert found["kl_by_mode"]["u8_clb"]["kl_renormalised"] >= 0
    pytest.importorskip("matplotlib")
    assert fidelity.draw_cells(plan.out)[0].stat().st_size > 10_000


def test_interrupted_cells_keep_their_finished_steps(plan, monkeypatch):
    from hccs.pipeline.reproduce.experiment import CellRun

    def interrupted(self, *arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(CellRun, "retrained", interrupted)
        accuracy.run(plan, accuracy.cells(["tiny"], ["sst2"], 1))
    before = json.loads((plan.out / "cells" / "tiny-sst2-0.json").read_text())["stages"]
    assert {"float", "without"} <= set(before)
    accuracy.run(plan, accuracy.cells(["tiny"], ["sst2"], 1))
    after = json.loads((plan.out / "cells" / "tiny-sst2-0.json").read_text())["stages"]
    assert after["float"] == before["float"] and "retrained/head" in after


def test_refusals(tmp_path):
    with pytest.raises(ParameterError, match="models among"):
        accuracy.cells(["huge"], ["sst2"], 1)
    with pytest.raises(FileError, match="--keep-models"):
        fidelity.draw_cells(tmp_path)
