"""Values, labels of words, and metrics of one's own: each converted, evaluated and lowered end to end."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from typer.testing import CliRunner

import hccs
from hccs.cli.app import app
from hccs.conversion import metrics
from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import tokenise
from hccs.conversion.evaluate import evaluate
from hccs.conversion.run import Run, convert
from hccs.conversion.settings import Settings
from hccs.conversion.training import Recipe
from hccs.errors import DataError, HccsError, ModelError, ParameterError

pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "pe", "ro") for b in ("da", "fo", "gi", "su")]
NAMES = WORDS[:4]
FINE = Recipe(epochs=4, learning_rate=3e-3, batch_size=32, evaluations_per_epoch=1, warmup=0.0)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A small BERT without a head; words that it does not know have several tokens."""
    folder = tmp_path_factory.mktemp("encoder")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces += sorted({w[:2] for w in WORDS}) + sorted({f"##{w[2:]}" for w in WORDS})
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(pieces), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=48, initializer_range=0.1,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def sentences(count, seed):
    rng = random.Random(seed)
    return [[rng.choice(WORDS) for _ in range(rng.randint(3, 8))] for _ in range(count)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def settings(encoder, task, **changes):
    return Settings(
        **{
            "model": str(encoder), "task": task, "sentences": 48, "refine": True,
            "fine_tuning": FINE, "retraining": replace(FINE, epochs=1, learning_rate=1e-4, distil=0.8),
            **changes,
        }
    )  # fmt: skip


def converted(chosen, out):
    """A run that `convert` has finished, with its data in memory, and its results."""
    found = convert(chosen, out, lambda _: None)
    return Run(chosen, out, lambda _: None), found.results


@pytest.fixture(scope="module")
def values(tmp_path_factory, encoder):
    """How alike two texts are: the share of names among their words, in files of pairs."""
    folder = tmp_path_factory.mktemp("values")

    def rows(count, seed):
        pairs = zip(sentences(count, seed), sentences(count, seed + 1), strict=True)
        for a, b in pairs:
            share = sum(word in NAMES for word in a + b) / len(a + b)
            yield {"a": " ".join(a), "b": " ".join(b), "likeness": round(5 * share, 3)}

    train, dev = write(folder / "train.jsonl", rows(192, 0)), write(folder / "dev.jsonl", rows(64, 5))
    task = tasks.custom_task(train, dev, ("a", "b"), "likeness", 32, problem="regression")
    return converted(settings(encoder, task), folder / "run")


def test_a_regression_is_converted_to_an_integer_model_of_values(values):
    run, results = values
    scores = results.scores
    assert results.float_model.metric == "pearson" and scores["float_model"] > 0.7
    assert scores["untrained"] > 0.6
    assert results.integer.equal == 1.0 and results.integer.agreement > 0.95
    assert scores["integer"] == pytest.approx(scores["retrain"], abs=1e-6)
    whole = hccs.IntegerModel.load(run.path / "model.hccs")
    assert whole.labels == ("likeness",)
    dev = run.sets["dev"]
    batch = {name: value.numpy() for name, value in dev.__getitems__(range(64)).items()}
    given = whole(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"]).logits[:, 0]
    assert np.corrcoef(given, batch["labels"])[0, 1] == pytest.approx(scores["integer"], abs=1e-5)
    found = evaluate(run.path, backend="whole", metric=metrics.metric_for("regression", "spearman"))
    assert found.examples == 64 and 0.5 < found.scores["whole"] <= 1


@pytest.fixture(scope="module")
def words(tmp_path_factory, encoder):
    """Which words are names, with the labels of each sentence as a list."""
    folder = tmp_path_factory.mktemp("words")

    def rows(count, seed):
        for text in sentences(count, seed):
            yield {"words": text, "tags": ["NAME" if word in NAMES else "O" for word in text]}

    train, dev = write(folder / "train.jsonl", rows(192, 0)), write(folder / "dev.jsonl", rows(64, 5))
    task = tasks.custom_task(train, dev, ("words",), "tags", 32, problem="tokens")
    return converted(settings(encoder, task, metric="f1"), folder / "run")


def test_words_are_labelled_by_an_integer_model(words):
    run, results = words
    assert results.scores["float_model"] > 0.6 and results.float_model.labels == ("NAME", "O")
    assert results.integer.equal == 1.0 and results.integer.agreement > 0.9
    whole = hccs.IntegerModel.load(run.path / "model.hccs")
    assert whole.program.per_token
    dev = run.sets["dev"]
    batch = {name: value.numpy() for name, value in dev.__getitems__(range(64)).items()}
    counted = batch["labels"] != -100
    # Two tokens a word and one of them with its label; the special tokens have none.
    assert counted.sum() == sum(len(text) for text in sentences(64, 5))
    scores = whole(batch["input_ids"], batch["attention_mask"]).scores
    assert metrics.f1(scores[counted], batch["labels"][counted]) == pytest.approx(results.scores["integer"])
    assert evaluate(run.path, ("i16_div",)).scores["i16_div"] == results.retrain.modes["i16_div"]


def share_of_the_first(logits, labels):
    """A metric of the test's own."""
    return float(((logits.argmax(-1) == labels) & (labels == 0)).sum() / (labels == 0).sum())


def test_a_metric_of_ones_own_by_name_and_as_a_function(words):
    run, _ = words
    result = CliRunner().invoke(
        app, ["evaluate", str(run.path), "--backend", "whole", "--metric", f"{__name__}:share_of_the_first"]
    )
    assert result.exit_code == 0 and "share_of_the_first on 64 examples" in result.output, result.output
    own = evaluate(run.path, backend="whole", metric=metrics.metric_for("tokens", share_of_the_first))
    assert f"{own.scores['whole']:.4f}" in result.output
    for wrong, message in (
        ("pearson", "a metric for tokens among accuracy, f1, matthews"),
        ("nowhere:f", "a function f in a module nowhere"),
    ):
        with pytest.raises(ParameterError, match=message):
            metrics.metric_for("tokens", wrong)
    with pytest.raises(HccsError, match="metric broken to return a number"):
        metrics.Metric("broken", lambda logits, labels: None)(torch.zeros(2, 2), torch.zeros(2))


def test_a_live_model_and_lists_of_examples(encoder, tmp_path):
    torch.manual_seed(1)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=2)
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    model.config.id2label = {0: "none", 1: "some"}

    def examples(count, seed):
        return [(" ".join(t), "some" if {*t} & {*NAMES} else "none") for t in sentences(count, seed)]

    given = {
        "tokenizer": tokenizer, "n": 32, "sentences": 32, "retraining": None, "refine": False,
        "metric": share_of_the_first, "say": lambda _: None,
    }  # fmt: skip
    found = hccs.convert(model, examples(64, 0), examples(32, 1), out=tmp_path / "run", **given)
    assert list(found.scores) == ["float_model", "calibrated", "attention", "integer"]
    assert found.results.float_model.metric == "share_of_the_first"
    answer = found.integer_model(tokenizer(examples(1, 2)[0][0])["input_ids"])
    assert found.integer_model.labels == ("none", "some") and answer.scores.shape == (1, 2)
    assert (found.model / "config.json").exists()
    again = hccs.convert(model, examples(64, 0), examples(32, 1), out=tmp_path / "run", **given)
    assert again.results == found.results
    with pytest.raises(ParameterError, match="the tokenizer of a model"):
        hccs.convert(model, examples(8, 0), out=tmp_path / "other")
    with pytest.raises(DataError, match=r"examples \(text, label\) in train"):
        hccs.convert(str(encoder), [7], out=tmp_path / "other")


def test_metrics_agree_with_their_definitions():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=50), rng.normal(size=50).round(1)  # rounded: there are ties
    assert metrics.pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])
    ranks = [
        [(sum(v < w for v in part) + sum(v <= w for v in part) + 1) / 2 for w in part] for part in (x, y)
    ]
    assert metrics.spearman(x, y) == pytest.approx(np.corrcoef(*ranks)[0, 1])
    logits, labels = rng.normal(size=(60, 2)), rng.integers(0, 2, 60)
    chosen = logits.argmax(-1)
    assert metrics.matthews(logits, labels) == pytest.approx(np.corrcoef(chosen, labels)[0, 1])
    found, either = ((chosen == 1) & (labels == 1)).sum(), (chosen == 1).sum() + (labels == 1).sum()
    assert metrics.f1(logits, labels) == pytest.approx(2 * found / either)


def test_bad_values_words_and_heads_are_refused(tmp_path, encoder, words):
    def read(row, problem, label="y"):
        path = write(tmp_path / "bad.jsonl", [{"x": "kada lofo", "y": row}])
        task = tasks.custom_task(path, path, ("x",), label, 32, ("A", "B"), problem)
        return tasks.load(task)

    with pytest.raises(DataError, match=r"a number in every row.*'high' in row 1"):
        read("high", "regression")
    with pytest.raises(DataError, match="2 words and 3 labels in row 1"):
        read(["A", "B", "A"], "tokens")
    with pytest.raises(DataError, match="'C' in row 1"):
        read(["A", "C"], "tokens")
    with pytest.raises(ParameterError, match="problem to be one of classification, regression, tokens"):
        read("A", "ranking")
    run, _ = words
    task = tasks.custom_task("train.jsonl", None, ("x",), "y", 32, problem="regression")
    with pytest.raises(ModelError, match="one output, a value"):
        from hccs.conversion.models import load_classifier

        load_classifier(str(run.path / "float"), ("y",), problem=task.problem)
    loaded = run.start.tokenizer
    with pytest.raises(DataError, match="longer"):
        tokenise(tasks.Examples([("kada " * 40,)], [[0] * 40]), loaded, 8)
