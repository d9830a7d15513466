"""Conversions without labels: weights corrected in closed form, training that follows the float model."""

import json
import shutil
from dataclasses import asdict, replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hccs
import hccs.nn
from hccs.conversion import stages, training
from hccs.conversion.data import tasks
from hccs.conversion.data.reading import read_texts
from hccs.conversion.evaluate import Evaluation, evaluate
from hccs.conversion.models import load_classifier
from hccs.conversion.run import convert
from hccs.conversion.runs.folder import RunFolder
from hccs.conversion.scores import Measured
from hccs.conversion.settings import Settings
from hccs.conversion.training import Recipe
from hccs.errors import DataError, FileError, ModelError
from hccs_lab.demo import MODEL

pytestmark = pytest.mark.filterwarnings("ignore")

RECIPE = Recipe(epochs=2, learning_rate=1e-5, batch_size=32, evaluations_per_epoch=1)


class Killed(BaseException):
    """Stands for the end of the process."""


def silent(_: str) -> None:
    pass


def snippets(part="train", count=80):
    return getattr(tasks.load(tasks.TASKS["movies"]), part).subset(count)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Snippets without labels in a plain file, and some with labels to score on."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "texts.txt").write_text("".join(f"{text[0]}\n" for text in snippets().texts))
    dev = snippets("dev", 40)
    names = [("negative", "positive")[label] for label in dev.labels]
    rows = [f"{text[0]}\t{name}" for text, name in zip(dev.texts, names, strict=True)]
    (folder / "dev.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return folder


def settings(texts, dev=False, **changes) -> Settings:
    files = (str(texts / "texts.txt"), str(texts / "dev.tsv") if dev else None)
    task = tasks.custom_task(*files, ("sentence",), "label", 64, unlabelled=True)
    base = Settings(model=str(MODEL), task=task, sentences=32, refine=False, retraining=RECIPE)
    return replace(base, **changes)


def weights(folder):
    model = load_classifier(str(folder), ("negative", "positive")).model
    return {name: value for name, value in model.state_dict().items() if "hccs" not in name}


def test_training_without_labels_follows_the_float_model_and_goes_on(texts, tmp_path):
    """Stopped within its training; no label exists, so what counts is agreement with the float model."""
    chosen, out = settings(texts, integer="attention"), tmp_path / "run"
    real, calls = training.score, []

    def stops_at_the_second_evaluation(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(training, "score", stops_at_the_second_evaluation)
        patched.setattr(training, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
        convert(chosen, out, silent)
    assert (out / "checkpoints" / "retrain.pt").exists()
    seen = []
    with pytest.MonkeyPatch.context() as patched:
        follow = training.divergence

        def counted(logits, wanted, *rest):
            seen.append(wanted.shape)
            return follow(logits, wanted, *rest)

        patched.setattr(training, "divergence", counted)
        results = convert(chosen, out, silent).results
    begun = results.float_model
    assert seen and begun.metric == "agreement" and begun.score.value == 1.0
    assert begun.labels == ("negative", "positive")
    assert 0.7 < results.scores["retrain"] <= 1.0 and len(results.retrain.history) == 2
    before, after = weights(out / "float"), weights(out / "model")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    again = evaluate(out, ("i16_div",))
    assert again == Evaluation("agreement", 8, {"float": 1.0, "i16_div": results.retrain.modes["i16_div"]})
    assert evaluate(out, ("i16_div",), str(texts / "dev.tsv"), metric="accuracy").examples == 40


@pytest.fixture(scope="module")
def corrected(texts, tmp_path_factory):
    """A conversion of an unlabelled task without training, stopped after weights were corrected."""
    out, found = tmp_path_factory.mktemp("corrected") / "run", {}

    def stops(*arguments):
        raise Killed

    with pytest.MonkeyPatch.context() as patched, pytest.raises(Killed):
        patched.setattr(stages, "refine", stops)
        convert(settings(texts, dev=True, retraining=None, refine=True), out, silent)
    found["before"] = list(json.loads((out / "results.json").read_text())["stages"])
    found["results"] = convert(settings(texts, dev=True, retraining=None, refine=True), out, silent).results
    return out, found


def test_weights_are_corrected_where_nothing_is_trained(corrected):
    out, found = corrected
    results = found["results"]
    assert found["before"] == ["float_model", "collect", "calibrate"]
    assert list(results.stages)[3:5] == ["reconstruct", "calibrated"] and results.retrain is None
    stage = results.reconstruct.correction
    assert [(m.layer, m.matrix) for m in stage.matrices] == [
        (layer, matrix) for layer in range(2) for matrix in ("attention_output", "narrow")
    ]
    assert all(m.after <= m.before for m in stage.matrices)
    assert stage.kept == (stage.nearer[0] >= -2 * stage.nearer[1])
    assert results.reconstruct.refined.kl[0] == stage.kl[1 if stage.kept else 0]
    before, after = weights(out / "float"), weights(out / "model")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    places = {"attention_output": "attention.output", "narrow": "output"}
    assert stage.kept and {name.rsplit(".", 1)[0] for name in changed} == {
        f"bert.encoder.layer.{m.layer}.{places[m.matrix]}.dense"
        for m in stage.matrices
        if m.ridge is not None
    }
    assert results.float_model.metric == "accuracy"  # on the labelled dev set
    assert evaluate(out, ("i16_div",)).scores["i16_div"] == results.calibrated.modes["i16_div"]
    assert not (out / "reconstructed").exists()


def test_the_integer_model_is_corrected_for_its_own_rounding(corrected):
    out, found = corrected
    stage = found["results"].integer
    assert len(stage.correction.matrices) == 4 and stage.agreement > 0.8
    assert evaluate(out, backend="whole").scores["whole"] == stage.reached.score.value


def test_a_step_that_loses_is_not_kept(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(stages, "closer", lambda *arguments: Measured(-1.0, 0.1))
    found = convert(settings(texts, retraining=None, integer="attention"), tmp_path / "run", silent)
    assert not found.results.reconstruct.correction.kept
    before, after = weights(tmp_path / "run" / "float"), weights(tmp_path / "run" / "model")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_model_of_other_layers_keeps_its_weights(tmp_path, texts):
    config = transformers.AlbertConfig(
        vocab_size=30522, embedding_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.AlbertForSequenceClassification(config).save_pretrained(tmp_path / "albert")
    load_classifier(str(MODEL), ("negative", "positive")).tokenizer.save_pretrained(tmp_path / "albert")
    chosen = settings(texts, model=str(tmp_path / "albert"), retraining=None, integer="attention")
    said = []
    results = convert(chosen, tmp_path / "run", said.append).results
    assert "whose layers are known" in results.reconstruct.refused
    assert any("weights stay as they are" in line for line in said) and results.save.heads


def test_a_live_model_and_texts_alone(tmp_path):
    loaded = load_classifier(str(MODEL), ("negative", "positive"))
    given = {
        "tokenizer": loaded.tokenizer, "sentences": 32, "retraining": None, "refine": False,
        "integer": "attention", "reconstruct": False, "say": silent,
    }  # fmt: skip
    train = [text[0] for text in snippets().texts]
    found = hccs.convert(loaded.model, train, out=tmp_path / "run", **given)
    assert list(found.scores) == ["float_model", "calibrated", "attention"]
    assert found.scores["float_model"] == 1.0
    pairs = [((text[:20], text[:40]), None) for text in train[:40]]
    assert hccs.convert(loaded.model, pairs, out=tmp_path / "pairs", **given).scores["float_model"] == 1.0
    again = hccs.convert(loaded.model, train, out=tmp_path / "run", **given)
    assert again.scores == found.scores
    with pytest.raises(FileError, match=r"the train that .* was begun with"):
        hccs.convert(loaded.model, train[1:], out=tmp_path / "run", **given)
    with torch.no_grad():
        loaded.model.base_model.embeddings.word_embeddings.weight[5] += 1
    with pytest.raises(FileError, match=r"the model that .* was begun with"):
        hccs.convert(loaded.model, train, out=tmp_path / "run", **given)
    (tmp_path / "mine" / "model").mkdir(parents=True)
    (tmp_path / "mine" / "model" / "notes.txt").write_text("precious")
    with pytest.raises(FileError, match="a folder of other files"):
        hccs.convert(loaded.model, train, out=tmp_path / "mine", **given)
    assert [path.name for path in (tmp_path / "mine").rglob("*")] == ["model", "notes.txt"]
    with RunFolder(tmp_path / "busy", {}), pytest.raises(FileError, match="a run under way in it"):
        hccs.convert(loaded.model, train, out=tmp_path / "busy", **given)
    assert not (tmp_path / "busy" / "given").exists()
    with pytest.raises(DataError, match="or of none"):
        hccs.convert(loaded.model, [(train[0], 1), (train[1], None)], out=tmp_path / "other", **given)
    with pytest.raises(DataError, match="labels in dev"):
        hccs.convert(loaded.model, train, train, out=tmp_path / "other", **given)


def test_a_model_without_a_head_is_refused(texts, tmp_path):
    config = transformers.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    transformers.BertModel(config).save_pretrained(tmp_path / "base")
    load_classifier(str(MODEL), ("negative", "positive")).tokenizer.save_pretrained(tmp_path / "base")
    for dev in (False, True):
        with pytest.raises(ModelError, match="there are no labels to train one on"):
            convert(settings(texts, dev=dev, model=str(tmp_path / "base")), tmp_path / "run", silent)
    assert not (tmp_path / "run").exists()


def test_texts_are_read_from_any_file(tmp_path):
    files = {
        "a.txt": "\ufeffone text\n\n another \n",
        "a.csv": 'id,sentence\n1,one text\n2," another "\n',
        "a.tsv": "sentence\tid\none text\t1\n another \t2\n",
        "a.jsonl": '{"sentence": "one text"}\n{"sentence": " another ", "label": 3}\n',
    }
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        assert read_texts(tmp_path / name, ("sentence",)) == [("one text",), (" another ",)]
    (tmp_path / "pairs.txt").write_text("a\tb\nc\td\n")
    assert read_texts(tmp_path / "pairs.txt", ("premise", "hypothesis")) == [("a", "b"), ("c", "d")]
    (tmp_path / "pairs.txt").write_text("a\tb\nc\n")
    with pytest.raises(DataError, match="1 in line 2"):
        read_texts(tmp_path / "pairs.txt", ("premise", "hypothesis"))
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(DataError, match="an empty file"):
        read_texts(tmp_path / "empty.txt", ("sentence",))
    (tmp_path / "latin.txt").write_bytes("déjà\n".encode("latin-1"))
    for name, told in (("latin.txt", "0xe9"), ("nowhere.txt", "No such file")):
        with pytest.raises(FileError, match=told):
            read_texts(tmp_path / name, ("sentence",))


def test_what_is_no_plain_text_and_what_is(tmp_path):
    """A table under the wrong name would give its labels to read; breaks within a text are none of lines."""
    path = tmp_path / "texts.TXT"
    path.write_text("sentence\tlabel\ngood\t1\nbad\t0\n")
    with pytest.raises(DataError, match=r"ending \.tsv"):
        read_texts(path, ("sentence",))
    path.write_bytes("one\u2028text\r\nan\x0bother\twith a tab\r\n".encode())
    assert read_texts(path, ("sentence",)) == [("one\u2028text",), ("an\x0bother\twith a tab",)]
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"sentence": "one"}\n{"other": "two"}\n')
    assert read_texts(rows, ("sentence",)) == [("one",), ("",)]


def test_a_run_does_not_go_on_with_other_texts_or_weights(texts, tmp_path):
    """The same command, its files changed since it was interrupted."""
    own, model = tmp_path / "texts", tmp_path / "model"
    shutil.copytree(texts, own)
    shutil.copytree(MODEL, model)
    chosen = settings(own, model=str(model), retraining=None)

    def stops(line):
        if line.startswith("collect"):
            raise Killed

    with pytest.raises(Killed):
        convert(chosen, tmp_path / "run", stops)
    with pytest.raises(Killed):
        convert(chosen, tmp_path / "run", stops)
    before = (own / "texts.txt").read_text()
    (own / "texts.txt").write_text(before.replace("the", "a"))
    with pytest.raises(FileError, match="the examples that"):
        convert(chosen, tmp_path / "run", silent)
    (own / "texts.txt").write_text(before)
    loaded = load_classifier(str(model), ("negative", "positive"))
    with torch.no_grad():
        loaded.model.base_model.embeddings.word_embeddings.weight[5] += 1
    loaded.model.save_pretrained(model)
    with pytest.raises(FileError, match="the weights that"):
        convert(chosen, tmp_path / "run", silent)


@pytest.mark.parametrize("problem", ["classification", "regression", "tokens"])
def test_the_float_models_answers_stand_where_labels_would(problem, tmp_path):
    """For every problem: values as they are, labels of words on the first of their tokens alone."""
    from hccs.conversion.data.tokens import tokenise

    (tmp_path / "texts.txt").write_text("a movie worth seeing\nunwatchable\n" * 10)
    task = tasks.custom_task(
        str(tmp_path / "texts.txt"), None, ("sentence",), "label", 16, (), problem, unlabelled=True
    )
    data = tasks.load(task)
    assert not data.train.labelled and not data.dev.labelled and (len(data.train), len(data.dev)) == (18, 2)
    loaded = load_classifier(str(MODEL), ("negative", "positive"))
    tokens = tokenise(data.numbered_as(("negative", "positive")).dev, loaded.tokenizer, 16)
    outputs = 1 if problem == "regression" else 3
    shape = (2, tokens.width, outputs) if problem == "tokens" else (2, outputs)
    answers = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    labels = tokens.labelled_by(answers).labels
    if problem == "tokens":
        words = sum(len(text[0].split()) for text in data.dev.texts)
        assert int((labels != -100).sum()) == words
        assert (labels[labels != -100] == answers.argmax(-1)[labels != -100]).all()
    else:
        wanted = answers[:, 0] if problem == "regression" else answers.argmax(-1)
        assert torch.equal(labels, wanted)
    assert asdict(task)["unlabelled"]
