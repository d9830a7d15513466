import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import hccs
import hccs.nn
from hccs.errors import DataError, FileError, ModelError, ParameterError
from hccs.pipeline.convert.demo import MODEL
from hccs.pipeline.convert.evaluate import evaluate
from hccs.pipeline.convert.stages import Conversion, Settings, convert
from hccs.pipeline.data import tasks
from hccs.pipeline.data.tokens import tokenise
from hccs.pipeline.models import load_classifier
from hccs.pipeline.training import Recipe

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    source = tasks.load(tasks.TASKS["movies"])
    for name, examples in (("train", source.train.subset(64)), ("dev", source.dev.subset(48))):
        rows = [f"{text[0]}\t{label}" for text, label in zip(examples.texts, examples.labels, strict=True)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder


def settings(data, **changes) -> Settings:
    recipe = Recipe(epochs=1, learning_rate=1e-5, batch_size=32, evaluations_per_epoch=1, distil=0.5)
    base = Settings(
        model=str(MODEL),
        task=tasks.TASKS["movies"],
        data=None if data is None else str(data),
        sentences=16,
        refine=False,
        retraining=recipe,
    )
    return replace(base, **changes)


def silent(_: str) -> None:
    pass


def test_a_run_from_start_to_end(data, tmp_path):
    results = convert(settings(data), tmp_path / "run", silent)
    stages = results["stages"]
    names = ["float", "collect", "calibrate", "without retraining", "retrain", "integer", "save"]
    assert list(stages) == names
    assert stages["float"]["accuracy"] > 0.6
    assert set(stages["retrain"]["modes"]) == {mode.value for mode in hccs.Mode}
    table = hccs.ParamTable.load(tmp_path / "run" / "model.hccs.safetensors")
    assert table.shape == (2, 2) and table.n == 64
    assert table.qkv_scale.shape == (2, 2, 3)
    scores = evaluate(tmp_path / "run")
    assert scores["float"] == stages["float"]["accuracy"]
    assert scores["i16_div"] == stages["retrain"]["modes"]["i16_div"]
    whole = evaluate(tmp_path / "run", ("i16_div",), backend="integer")
    assert whole["i16_div integer"] == stages["integer"]["accuracy"]
    assert abs(whole["i16_div integer"] - whole["i16_div"]) < 0.1
    other = evaluate(tmp_path / "run", ("u8_clb",), str(data / "train.tsv"))
    assert other["examples"] == 64 and set(other) == {"examples", "float", "u8_clb"}


@pytest.mark.parametrize("stage", ["_collect", "_calibrate", "_without", "_retrain", "_integer", "_save"])
def test_interrupted_runs_go_on_where_they_stopped(data, tmp_path, stage, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Conversion, stage, interrupted)
        convert(settings(data), tmp_path / "run", silent)
    before = json.loads((tmp_path / "run" / "results.json").read_text())["stages"]
    said: list[str] = []
    after = convert(settings(data), tmp_path / "run", said.append)["stages"]
    assert len(after) == 7
    assert all(after[name] == result for name, result in before.items())
    assert [line for line in said if line.endswith("done before")] == [
        f"{name}: done before" for name in before
    ]


def test_training_resumes_from_its_checkpoint(data, tmp_path, monkeypatch):
    from hccs.pipeline import training

    chosen = settings(data, retraining=replace(settings(data).retraining, epochs=2))
    real, calls = training.accuracy, []

    def stops_at_the_second_evaluation(*arguments):
        calls.append(1)
        if len(calls) == 3:  # the first is the accuracy before training
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(training, "accuracy", stops_at_the_second_evaluation)
        convert(chosen, tmp_path / "run", silent)
    kept = list((tmp_path / "run" / "checkpoints" / "retrain").glob("checkpoint-*"))
    assert kept
    stages = convert(chosen, tmp_path / "run", silent)["stages"]
    assert len(stages["retrain"]["history"]) >= 2
    assert not (tmp_path / "run" / "checkpoints" / "retrain").exists()


@pytest.mark.parametrize(
    "changes", [{"recalibrate": True, "epochs": 2.0}, {"learn": True, "theta_learning_rate": 0.05}]
)
def test_recalibrated_and_learnt_parameters_are_saved(data, tmp_path, changes):
    recipe = replace(settings(data).retraining, learning_rate=1e-4, **changes)
    chosen = settings(data, mode="i16_clb", retraining=recipe)  # the mode without an integer form
    stages = convert(chosen, tmp_path / "run", silent)["stages"]
    assert "accuracy" in stages["retrain"] and "accuracy" not in stages["integer"]
    loaded = load_classifier(str(tmp_path / "run" / "model"), ("0", "1"))
    assert hccs.nn.current_table(hccs.nn.restore(loaded.model)).shape == (2, 2)


def test_other_settings_or_files_are_not_overwritten(data, tmp_path):
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        convert(settings(data), run, lambda line: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(FileError, match="other values of mode"):
        convert(settings(data, mode="u8_div"), run, silent)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    with pytest.raises(FileError, match="a folder of other files"):
        convert(settings(data), tmp_path / "mine", silent)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_bad_input_leaves_nothing_behind(data, tmp_path):
    run = tmp_path / "run"
    (data / "dev.tsv").write_text("sentence\tlabel\nfine\tmaybe\n")
    with pytest.raises(DataError, match="'maybe' in row 2"):
        convert(settings(data), run, silent)
    with pytest.raises(ModelError, match="a transformers model at"):
        convert(settings(None, model=str(tmp_path / "nothing")), run, silent)
    with pytest.raises(ParameterError, match="granularity"):
        convert(settings(None, granularity="row"), run, silent)
    assert not run.exists()


def test_texts_longer_than_n(data):
    loaded = load_classifier(str(MODEL), ("0", "1"))
    few = tasks.Examples([("short",)] * 9 + [("word " * 30,)], [0] * 10)
    with pytest.warns(UserWarning, match="1 of 10 texts are longer than n = 16"):
        assert max(tokenise(few, loaded.tokenizer, 16).lengths) == 16
    with pytest.raises(DataError, match="10 of 10 longer, the longest 32"):
        tokenise(tasks.Examples([("word " * 30,)] * 10, [0] * 10), loaded.tokenizer, 16)


def test_two_processes_share_one_run(data, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0"]
    command += ["--standalone", "-m", "hccs.cli", "convert", str(MODEL), "--out", str(tmp_path / "run")]
    command += ["--train", str(data / "train.tsv"), "--dev", str(data / "dev.tsv"), "--epochs", "1"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--batch-size", "16"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("saved in") == 1
    stages = json.loads((tmp_path / "run" / "results.json").read_text())["stages"]
    assert stages["collect"]["sentences"] == 64
    assert list(stages)[-1] == "save"
    assert evaluate(tmp_path / "run", ("i16_div",))["i16_div"] == stages["retrain"]["modes"]["i16_div"]


def test_evaluating_an_unfinished_run_is_refused(tmp_path):
    with pytest.raises(FileError, match="hccs convert first"):
        evaluate(tmp_path)


def test_commands_are_registered():
    from typer.testing import CliRunner

    from hccs.cli.app import app

    for command in (
        ["convert"],
        ["evaluate"],
        ["demo"],
        ["reproduce", "accuracy"],
        ["reproduce", "fidelity"],
    ):
        result = CliRunner().invoke(app, [*command, "--help"])
        assert result.exit_code == 0, result.output
