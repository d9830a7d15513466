import json
import operator
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


import hccs
import hccs.nn
from hccs.conversion import run, training
from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import tokenise
from hccs.conversion.evaluate import Evaluation, evaluate
from hccs.conversion.models import load_classifier, predictions
from hccs.conversion.run import Run, convert
from hccs.conversion.settings import Settings
from hccs.conversion.training import Recipe, train
from hccs.errors import DataError, FileError, ModelError, ParameterError
from hccs_lab.demo import MODEL

pytestmark = pytest.mark.filterwarnings("ignore")

STAGES = [
    "float_model",
    "collect",
    "calibrate",
    "calibrated",
    "untrained",
    "retrain",
    "attention",
    "integer",
    "save",
]


def write_data(folder):
    """A few of the embedded snippets, in files."""
    source = tasks.load(tasks.TASKS["movies"])
    for name, examples in (("train", source.train.subset(64)), ("dev", source.dev.subset(48))):
        rows = [f"{text[0]}\t{label}" for text, label in zip(examples.texts, examples.labels, strict=True)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


RECIPE = Recipe(epochs=2, learning_rate=1e-5, batch_size=32, evaluations_per_epoch=1, distil=0.5)


def settings(data, **changes) -> Settings:
    base = Settings(
        model=str(MODEL),
        task=tasks.TASKS["movies"],
        data=None if data is None else str(data),
        sentences=16,
        refine=False,
        retraining=RECIPE,
    )
    return replace(base, **changes)


def silent(_: str) -> None:
    pass


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def interrupted(data, tmp_path_factory):
    """One real run, stopped twice: within its retraining, and before the integer stage has saved."""
    out, found = tmp_path_factory.mktemp("convert") / "run", {}
    real, calls = training.score, []

    def stops_at_the_second_evaluation(*arguments):
        calls.append(1)
        if len(calls) == 3:  # the first is the accuracy before training
            raise Killed
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(training, "score", stops_at_the_second_evaluation)
        patched.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
        convert(settings(data), out, silent)
    found["checkpoints"] = list((out / "checkpoints").glob("retrain.pt"))
    found["before"] = json.loads((out / "results.json").read_text())["stages"]

    save = os.replace

    def stops_before_the_model_appears(source, target):
        if str(target).endswith("model"):
            raise Killed
        save(source, target)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(os, "replace", stops_before_the_model_appears)
        convert(settings(data), out, silent)
    found["model appeared"] = (out / "model").exists()
    found["retrained kept"] = (out / "retrained" / "config.json").exists()
    found["said"] = []
    found["converted"] = convert(settings(data), out, found["said"].append)
    return out, found


def test_an_interrupted_run_goes_on_where_it_stopped(interrupted):
    out, found = interrupted
    stages = json.loads((out / "results.json").read_text())["stages"]
    assert list(stages) == list(found["converted"].results.stages) == STAGES
    assert found["checkpoints"] and list(found["before"]) == STAGES[:5]
    assert all(stages[name] == result for name, result in found["before"].items())
    assert len(stages["retrain"]["history"]) == 2
    assert not found["model appeared"] and found["retrained kept"]
    done = [line for line in found["said"] if line.endswith("done before")]
    assert done == [f"{name}: done before" for name in STAGES[:6]]
    assert {path.name for path in out.iterdir() if path.name[0] != "."} == {
        "settings.json", "results.json", "statistics.safetensors", "table.hccs.safetensors",
        "model.hccs.safetensors", "model.hccs.json", "model.hccs", "float", "model",
        "report.html",
    }  # fmt: skip


def test_stages_say_their_time_and_score(interrupted):
    _, found = interrupted
    seconds = found["converted"].results.seconds["attention"]
    score = found["converted"].scores["attention"]
    assert f"attention: accuracy {score:.4f}, {seconds:.1f} s" in found["said"]


def test_what_a_run_delivers(interrupted, data):
    out, found = interrupted
    results = found["converted"].results
    assert results.float_model.score.value > 0.6 and results.float_model.labels == ("negative", "positive")
    assert set(results.retrain.modes) == {mode.value for mode in hccs.Mode}
    table = hccs.ParamTable.load(out / "model.hccs.safetensors")
    assert table.shape == (2, 2) and table.n == 64
    assert table.qkv_scale.shape == (2, 2, 3)
    assert json.loads((out / "model" / "config.json").read_text())["id2label"]["1"] == "positive"
    scores = evaluate(out).scores
    assert scores["float"] == results.float_model.score.value
    assert scores["i16_div"] == results.retrain.modes["i16_div"]
    both = evaluate(out, ("i16_div",), backend="integer").scores
    assert both["i16_div integer"] == results.scores["attention"]
    assert abs(both["i16_div integer"] - both["i16_div"]) < 0.1
    other = evaluate(out, ("u8_clb",), str(data / "train.tsv"))
    assert other.examples == 64 and set(other.scores) == {"float", "u8_clb"}


def test_a_run_ends_with_the_model_all_in_integers(interrupted, data):
    """Its scores here come from sentences one by one, without torch or padding."""
    out, found = interrupted
    whole, results = hccs.IntegerModel.load(out / "model.hccs"), found["converted"].results
    stage, accuracy = results.integer, results.scores["integer"]
    assert whole.labels == ("negative", "positive")
    loaded = load_classifier(str(out / "model"), whole.labels)
    dev = tasks.load(tasks.TASKS["movies"], data).dev
    chosen = [whole(loaded.tokenizer(text[0])["input_ids"]).labels[0] for text in dev.texts]
    assert accuracy == sum(map(operator.eq, chosen, (whole.labels[i] for i in dev.labels))) / 48
    texts = [text[0] for text in dev.texts]
    assert [found.label for found in hccs.Classifier.load(out).predict(texts)] == chosen
    delivered = predictions(hccs.nn.restore(loaded.model), tokenise(dev, loaded.tokenizer, 64)).argmax(-1)
    assert stage.agreement == sum(map(operator.eq, chosen, (whole.labels[i] for i in delivered))) / 48
    assert stage.agreement > 0.9 and stage.equal == 1.0
    assert results.scores["retrain"] == accuracy  # what was trained is what is deployed
    assert stage.bytes == (out / "model.hccs").stat().st_size
    assert stage.bytes - len(whole.program.tokenizer.encode()) < 0.27 * stage.float32_bytes
    scores = {"float": results.scores["float_model"], "whole": accuracy}
    assert evaluate(out, backend="whole") == Evaluation("accuracy", 48, scores)
    assert evaluate(out, file=str(data / "train.tsv"), backend="whole").examples == 64
    with pytest.raises(ParameterError, match="leave --mode out"):
        evaluate(out, ("u8_clb",), backend="whole")


def test_a_model_without_an_integer_form_is_delivered_all_the_same(data, tmp_path):
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=30522,
        pad_token_id=0, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    )  # fmt: skip
    transformers.LlamaForSequenceClassification(config).save_pretrained(tmp_path / "llama")
    load_classifier(str(MODEL), ("negative", "positive")).tokenizer.save_pretrained(tmp_path / "llama")
    chosen = settings(data, model=str(tmp_path / "llama"), labels=("negative", "positive"), retraining=None)
    said = []
    refused = convert(chosen, tmp_path / "run", said.append).results.integer.refused
    assert "by the length of the text" in refused
    assert f"  not all in integers: {refused}" in said
    assert not (tmp_path / "run" / "model.hccs").exists()
    with pytest.raises(FileError, match="by the length of the text"):
        evaluate(tmp_path / "run", backend="whole")


def test_the_delivered_kl_is_that_of_the_delivered_model(interrupted, data):
    """Measured here a second way: on the delivered model's logits themselves."""
    from hccs.nn.interface import attention_layers
    from hccs_lab.fidelity import _logits

    out, found = interrupted
    loaded = load_classifier(str(out / "model"), ("negative", "positive"))
    model = hccs.nn.restore(loaded.model).eval()
    some = tasks.load(tasks.TASKS["movies"], data).train.subset(16, 0)
    batch = next(iter(tokenise(some, loaded.tokenizer, 64).batches(64)))
    rows = batch["attention_mask"].bool()
    means = []
    layers = attention_layers(model).values()
    for layer, (z, valid) in zip(layers, _logits(model, batch), strict=True):
        p = torch.softmax(z.masked_fill(~valid, -torch.inf).double(), -1)
        q = layer.hccs_softmax(z, valid).double()
        cross = torch.where(p > 0, p * (p.log() - q.log()), 0.0).sum(-1)
        means += [cross[:, head][rows].mean().item() for head in range(z.shape[1])]
    assert found["converted"].results.save.kl == pytest.approx(sum(means) / len(means), rel=0.05)


def test_without_retraining_the_calibrated_model_is_delivered(data, tmp_path):
    chosen = settings(
        data, mode="i16_clb", retraining=None, reconstruct=False
    )  # the mode without an integer form
    results = convert(chosen, tmp_path / "run", silent).results
    assert list(results.stages) == [name for name in STAGES if name not in ("untrained", "retrain")]
    assert results.attention.reached is None
    calibrated = hccs.ParamTable.load(tmp_path / "run" / "table.hccs.safetensors")
    delivered = hccs.ParamTable.load(tmp_path / "run" / "model.hccs.safetensors")
    for name in "BSD":
        assert (getattr(calibrated, name) == getattr(delivered, name)).all()
    # Not equal: the second layer of the delivered model sees what HCCS in the first has made.
    assert results.save.kl == pytest.approx(results.calibrate.kl, rel=0.1)
    scores = evaluate(tmp_path / "run", ("i16_clb",)).scores
    assert scores["i16_clb"] == results.calibrated.modes["i16_clb"]


@pytest.mark.parametrize("at", range(len(STAGES)))
def test_a_stage_is_run_until_it_has_finished_and_never_again(interrupted, data, tmp_path, at, monkeypatch):
    """Stages that return the results of a real run, one of which is interrupted."""
    _, found = interrupted
    results, called, stops_at = found["converted"].results.stages, [], [STAGES[at]]

    def stage(name):
        def work(_):
            called.append(name)
            if [name] == stops_at:
                raise KeyboardInterrupt
            return results[name]

        return work

    monkeypatch.setattr(run, "stages_for", lambda _: {name: stage(name) for name in STAGES})
    with pytest.raises(KeyboardInterrupt):
        Run(settings(data), tmp_path / "run", silent).run()
    assert called == STAGES[: at + 1]
    called.clear()
    stops_at.clear()
    second = Run(settings(data), tmp_path / "run", silent)
    second.run()
    assert list(second.found) == STAGES and called == STAGES[at:]


@pytest.fixture
def tokens(data):
    loaded = load_classifier(str(MODEL), ("negative", "positive"))
    found = tasks.load(tasks.TASKS["movies"], data)
    return loaded.model, {
        name: tokenise(getattr(found, name), loaded.tokenizer, 64) for name in ("train", "dev")
    }


def test_a_resumed_training_keeps_its_patience(tokens, tmp_path, monkeypatch):
    model, sets = tokens
    recipe = Recipe(epochs=5, batch_size=32, evaluations_per_epoch=2, patience=3)  # two steps an epoch

    def scores(*values):
        left = list(values)

        def accuracy(*_):
            if not left:
                raise Killed
            return left.pop(0)

        return accuracy

    monkeypatch.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    # The first value of each is the accuracy before training.
    monkeypatch.setattr(training, "score", scores(0.5, 0.8, 0.7, 0.7))
    with pytest.raises(Killed):
        train(model, sets["train"], sets["dev"], recipe, tmp_path / "state.pt")
    moved = (tmp_path / "state.pt").rename(tmp_path / "moved.pt")
    best = torch.load(moved)["best"]["weights"]
    monkeypatch.setattr(training, "score", scores(0.5, 0.7))
    outcome = train(model, sets["train"], sets["dev"], recipe, moved)
    assert outcome.history == (0.8, 0.7, 0.7, 0.7) and outcome.score == 0.8
    now = model.state_dict()
    assert all(torch.equal(now[name], value) for name, value in best.items())


def test_retraining_keeps_the_table(tokens, tmp_path, monkeypatch):
    model, sets = tokens
    table = hccs.calibrate(hccs.nn.collect(model, list(sets["dev"].batches(64)), n=64), n=64)
    monkeypatch.setattr(training, "score", lambda *_: 0.5)
    recipe = replace(RECIPE, learning_rate=1e-3, distil=0.0)
    train(hccs.nn.attach(model, table), sets["train"], sets["dev"], recipe)
    now = hccs.nn.current_table(model)
    assert all((getattr(now, name) == getattr(table, name)).all() for name in "BSD")
    assert now.scale == pytest.approx(table.scale)
    assert not any("log_ratio" in name for name, _ in model.named_parameters())


def test_other_settings_or_files_are_not_overwritten(data, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        convert(settings(data), out, lambda line: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(FileError, match="other values of mode"):
        convert(settings(data, mode="u8_div"), out, silent)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    with pytest.raises(FileError, match="a folder of other files"):
        convert(settings(data), tmp_path / "mine", silent)
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_bad_input_leaves_nothing_behind(data, tmp_path):
    out, bad = tmp_path / "run", tmp_path / "bad"
    shutil.copytree(data, bad)
    (bad / "dev.tsv").write_text("sentence\tlabel\nfine\tmaybe\n")
    with pytest.raises(DataError, match="'maybe' in row 2"):
        convert(settings(bad), out, silent)
    with pytest.raises(ModelError, match="a transformers model at"):
        convert(settings(None, model=str(tmp_path / "nothing")), out, silent)
    assert not out.exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: settings(None, granularity="row"), "granularity to be one of head, layer, global"),
        (lambda: settings(None, sentences=0), "sentences to be an integer from 1"),
        (lambda: settings(None, seed=-1), "--seed"),
        (
            lambda: settings(None, seed=99999999999999999999),
            "seed to be an integer from 0 to 4294967295; got 9999.*--seed",
        ),
        (lambda: replace(RECIPE, seed=2**32), "--seed"),
        (lambda: settings(None, task=replace(tasks.TASKS["movies"], n=0)), "--n"),
        (lambda: replace(RECIPE, epochs=0), "epochs above 0; got 0. Choose another --epochs"),
        (lambda: replace(RECIPE, epochs=-1), "--epochs"),
        (lambda: replace(RECIPE, epochs=float("nan")), "--epochs"),
        (lambda: replace(RECIPE, learning_rate=0.0), "--learning-rate"),
        (lambda: replace(RECIPE, batch_size=0), "--batch-size"),
        (lambda: replace(RECIPE, seed=-1), "--seed"),
    ],
)
def test_numbers_that_no_run_could_take(make, message):
    with pytest.raises(ParameterError, match=message):
        make()


def test_texts_longer_than_n(data):
    loaded = load_classifier(str(MODEL), ("negative", "positive"))
    few = tasks.Examples([("short",)] * 9 + [("word " * 30,)], [0] * 10)
    with pytest.warns(UserWarning, match="1 of 10 texts are longer than n = 16"):
        assert max(tokenise(few, loaded.tokenizer, 16).lengths) == 16
    with pytest.raises(DataError, match="10 of 10 longer, the longest 32"):
        tokenise(tasks.Examples([("word " * 30,)] * 10, [0] * 10), loaded.tokenizer, 16)


def test_two_processes_share_one_run(data, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0"]
    command += ["--standalone", "-m", "hccs.cli", "convert", str(MODEL), "--out", str(tmp_path / "run")]
    command += ["--train", str(data / "train.tsv"), "--dev", str(data / "dev.tsv"), "--epochs", "1"]
    command += ["--labels", "0,1", "--no-refine", "--batch-size", "16"]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report: ") == 1
    stages = json.loads((tmp_path / "run" / "results.json").read_text())["stages"]
    assert stages["collect"]["sentences"] == 58  # of 64 a tenth is held back
    assert list(stages)[-1] == "save"
    scores = evaluate(tmp_path / "run", ("i16_div",)).scores
    assert scores["i16_div"] == stages["retrain"]["modes"]["i16_div"]


def test_evaluating_an_unfinished_run_is_refused(tmp_path):
    with pytest.raises(FileError, match="hccs convert first"):
        evaluate(tmp_path)
