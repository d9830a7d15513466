"""Which number a label has, and which output of a model it is: without a model, then with real ones."""

import doctest

import pytest

from hccs.conversion.data import labels
from hccs.errors import DataError, ModelError, ParameterError


def test_examples_in_docstrings_run_as_written():
    failed, attempted = doctest.testmod(labels)
    assert attempted > 0 and failed == 0


def test_numbers_sort_as_numbers_and_words_as_words():
    assert labels.from_column(["10", "9", "0", "1"], "file") == ("0", "1", "9", "10")
    assert labels.from_column(["1.0", "0.0", "1"], "file") == ("0.0", "1.0")
    assert labels.from_column([" yes", "No", "YES "], "file") == ("No", "yes")


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([str(i / 7) for i in range(700)], "look like values to predict: --problem regression"),
        ([f"id {i}" for i in range(50)], "50 different ones in 50 rows"),
        (["1", "1.0"], "at least two labels"),
    ],
)
def test_columns_that_are_no_labels(column, message):
    with pytest.raises(DataError, match=message):
        labels.from_column(column, "file")


@pytest.mark.parametrize(
    ("own", "data", "order", "wanted"),
    [
        (("unhappy", "happy"), ("happy", "unhappy"), (), ("unhappy", "happy")),
        (("Contradiction", "NEUTRAL", "entailment "), ("entailment", "neutral", "contradiction"), (), "own"),
        (("a", "b", "c"), ("c", "a"), (), "own"),  # data without one of the labels
        (("LABEL_0", "LABEL_1"), ("bad", "good"), (), ("bad", "good")),
        (("LABEL_0", "LABEL_1"), ("bad", "good"), ("good", "bad"), ("good", "bad")),
        (("LABEL_0", "LABEL_1", "LABEL_2"), ("0", "2"), (), ("0", "1", "2")),
        (("0", "1"), ("negative", "positive"), (), ("negative", "positive")),
        (("NEGATIVE", "POSITIVE"), ("0", "1"), (), None),
        (("NEGATIVE", "POSITIVE"), ("0", "1"), ("0", "1"), ("0", "1")),
        (
            ("NEGATIVE", "POSITIVE"),
            ("positive", "negative"),
            ("positive", "negative"),
            ("positive", "negative"),
        ),
        (("a", "b", "c"), ("c", "a"), ("c", "a"), "own"),  # too few to tell every output
        (("LABEL_0", "LABEL_1"), ("0", "1"), ("1", "0"), ("1", "0")),
        (("a", "b", "c"), ("x", "y"), ("x", "y"), None),
    ],
)
def test_the_order_of_a_models_outputs(own, data, order, wanted):
    assert labels.in_model_order(own, data, order) == (own if wanted == "own" else wanted)


def test_empty_labels_are_refused_with_their_rows():
    with pytest.raises(DataError, match="an empty label in rows 3, 5"):
        labels.require_filled(["yes", "", "no", " "], range(2, 6), "file")


def test_long_integers_stay_apart():
    near = [str(2**53), str(2**53 + 1)]
    assert labels.from_column(near * 2, "file") == tuple(near)
    long = ["9" * 5000, "1" + "0" * 5000, "-3", "+2.", "-0"]
    assert labels.from_column(long, "file") == ("-3", "-0", "+2.", long[0], long[1])
    assert labels.key("-000.0") == "0" and labels.in_model_order(("0", "1"), long[:2]) == tuple(long[:2])


@pytest.mark.parametrize("listed", [["one"], ["a", "A "], ["a", ""]])
def test_listed_labels_must_differ(listed):
    with pytest.raises(ParameterError, match="two or more different labels"):
        labels.checked(listed)


torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hccs.conversion import models
from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import tokenise
from hccs.conversion.models import float_accuracy, load_classifier
from hccs_lab.demo import MODEL


@pytest.fixture(scope="module")
def original():
    """The embedded sentiment model: output 0 is negative, output 1 positive."""
    return load_classifier(str(MODEL), ("negative", "positive"))


@pytest.fixture
def saved(original, tmp_path):
    """Saves the model under other names of its outputs, without its head, or with another one."""

    def save(names=None, *, encoder=False, outputs=None, **config):
        import copy

        model = copy.deepcopy(original.model)
        if outputs is not None:
            model.classifier = torch.nn.Linear(model.classifier.in_features, outputs)
            names = names or [f"LABEL_{i}" for i in range(outputs)]
        if names is not None:
            model.config.id2label = dict(enumerate(names))
            model.config.label2id = {name: i for i, name in enumerate(names)}
        for key, value in config.items():
            setattr(model.config, key, value)
        (model.bert if encoder else model).save_pretrained(tmp_path / "model")
        original.tokenizer.save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


def data_labelled(tmp_path, negative, positive):
    """Sixty snippets in a file of their own labels."""
    some = tasks.load(tasks.TASKS["movies"]).dev.subset(60)
    lines = [f"{t[0]}\t{(negative, positive)[i]}" for t, i in zip(some.texts, some.labels, strict=True)]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    custom = tasks.custom_task("train.tsv", "train.tsv", ["sentence"], "label", 64)
    return tasks.load(custom, tmp_path)


def score(data, loaded):
    return models.score(loaded.model, tokenise(data.numbered_as(loaded.labels).dev, loaded.tokenizer, 64))


def test_a_models_own_names_decide_whatever_their_order(saved, tmp_path):
    data = data_labelled(tmp_path, " Unhappy", "HAPPY ")
    assert data.labels == ("HAPPY", "Unhappy")  # the alphabet's order is not the model's
    loaded = load_classifier(saved(["unhappy", "happy"]), data.labels)
    assert loaded.has_head and loaded.labels == ("unhappy", "happy")
    assert loaded.model.config.id2label == {0: "unhappy", 1: "happy"}
    assert score(data, loaded) > 0.7


@pytest.mark.filterwarnings("ignore:the model does not name its labels")
def test_outputs_without_names_take_numbers_as_positions_and_words_in_their_order(saved, tmp_path):
    name = saved(["LABEL_0", "LABEL_1"])
    numbers = data_labelled(tmp_path, 0, 1)
    assert score(numbers, load_classifier(name, numbers.labels)) > 0.7
    words = data_labelled(tmp_path, "bad", "good")
    loaded = load_classifier(name, words.labels)
    assert loaded.labels == ("bad", "good") and score(words, loaded) > 0.7
    swapped = data_labelled(tmp_path, "unhappy", "happy")
    wrong = load_classifier(name, swapped.labels)
    dev = tokenise(swapped.numbered_as(wrong.labels).dev, wrong.tokenizer, 64)
    with pytest.warns(UserWarning, match=r"below chance.*With --labels unhappy,happy .*it would be 0\.[789]"):
        assert float_accuracy(wrong.model, dev, wrong.labels) < 0.3
    right = load_classifier(name, swapped.labels, order=("unhappy", "happy"))
    assert score(swapped, right) > 0.7


def test_listed_labels_decide_over_the_models_names(saved, tmp_path):
    """A model whose names stand in the wrong order, and the advice of the warning followed as it is given."""
    data = data_labelled(tmp_path, "negative", "positive")
    name = saved(["positive", "negative"])
    wrong = load_classifier(name, data.labels)
    dev = tokenise(data.numbered_as(wrong.labels).dev, wrong.tokenizer, 64)
    with pytest.warns(UserWarning, match="below chance") as told:
        assert float_accuracy(wrong.model, dev, wrong.labels) < 0.3
    advice = str(told[0].message).split("--labels ")[1].split()[0].split(",")
    listed = tasks.custom_task("train.tsv", "train.tsv", ["sentence"], "label", 64, advice)
    again = tasks.load(listed, tmp_path)
    with pytest.warns(
        UserWarning, match="outputs positive, negative; --labels makes them negative, positive"
    ):
        right = load_classifier(name, again.labels, order=advice)
    assert right.labels == ("negative", "positive") and score(again, right) > 0.7


def test_names_that_nothing_matches_are_refused_until_their_order_is_told(saved, tmp_path):
    data = data_labelled(tmp_path, 0, 1)
    name = saved(["NEGATIVE", "POSITIVE"])
    with pytest.raises(ModelError, match=r"NEGATIVE, POSITIVE; got labels 0, 1\. .*--labels 0,1"):
        load_classifier(name, data.labels)
    loaded = load_classifier(name, data.labels, order=data.labels)
    assert score(data, loaded) > 0.7
    # A model saved from here on carries the data's labels, and is found again by them.
    loaded.model.save_pretrained(tmp_path / "again")
    loaded.tokenizer.save_pretrained(tmp_path / "again")
    assert load_classifier(str(tmp_path / "again"), data.labels).labels == ("0", "1")


def test_a_built_in_task_knows_the_names_of_its_numbers(original):
    data = tasks.load(tasks.TASKS["movies"])
    assert data.labels == ("negative", "positive") and original.labels == data.labels
    assert 0.4 < sum(data.dev.labels) / len(data.dev) < 0.6


def test_a_head_for_other_labels_is_refused_unless_a_new_one_is_asked_for(saved):
    name = saved(outputs=5)
    with pytest.raises(
        ModelError, match=r"2 labels of the data, bad, good; got a head for 5 labels.*--new-head"
    ):
        load_classifier(name, ("bad", "good"))
    fresh = load_classifier(name, ("bad", "good"), new_head=True)
    assert not fresh.has_head and fresh.labels == ("bad", "good")
    assert fresh.model.classifier.out_features == fresh.model.config.num_labels == 2


def test_an_encoder_gets_a_head_in_the_order_of_the_data_drawn_from_the_seed(saved):
    name, heads = saved(encoder=True), []
    for _ in range(2):
        torch.manual_seed(3)
        loaded = load_classifier(name, ("c", "a", "b"))
        assert not loaded.has_head and loaded.labels == ("c", "a", "b")
        heads.append(loaded.model.classifier.weight)
    assert torch.equal(*heads)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"outputs": 1, "problem_type": None}, "one for regression"),
        ({"problem_type": "regression"}, "one for regression"),
        ({"problem_type": "multi_label_classification"}, "several labels at once"),
    ],
)
def test_models_that_do_not_choose_one_label(saved, changes, message):
    with pytest.raises(ModelError, match=message):
        load_classifier(saved(**changes), ("negative", "positive"))


def test_damaged_models_are_refused_in_words(saved):
    from pathlib import Path

    folder = Path(saved())
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ModelError, match="a transformers model at"):
        load_classifier(str(folder), ("negative", "positive"))
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match="a transformers model at"):
        load_classifier(str(folder), ("negative", "positive"))
