"""Models and tokenizers that are not whole, and the default length of sequences."""

import json
import shutil

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file

from hccs.conversion.data import tasks
from hccs.conversion.data.tokens import choose_length, tokenise
from hccs.conversion.models import (
    default_length,
    load_classifier,
    load_tokenizer,
    predictions,
    require_fit,
)
from hccs.errors import ModelError
from hccs_lab.demo import MODEL

LABELS = ("negative", "positive")


@pytest.fixture
def folder(tmp_path):
    """The embedded BERT under the names of transformers, with its tokenizer."""
    loaded = load_classifier(str(MODEL), LABELS)
    loaded.model.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def configure(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def without(folder, part):
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if part not in name}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("new_head", [False, True])
def test_a_body_without_all_weights_is_refused(folder, new_head):
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    configure(folder, num_hidden_layers=layers + 1)
    with pytest.raises(ModelError, match=rf"all weights.*none of bert.encoder.layer.{layers}\."):
        load_classifier(str(folder), LABELS, new_head=new_head)
    configure(folder, num_hidden_layers=layers)
    without(folder, "layer.0.attention.self.query.weight")
    with pytest.raises(
        ModelError, match=r"none of bert\.encoder\.layer\.0\.attention\.self\.query\.weight\."
    ):
        load_classifier(str(folder), LABELS, new_head=new_head)


@pytest.mark.parametrize("problem", ["classification", "regression"])
def test_a_body_of_another_size_is_refused_with_any_head(folder, problem):
    configure(folder, intermediate_size=8)
    with pytest.raises(ModelError, match=r"fit its config\.json; got other sizes of bert\.encoder"):
        load_classifier(str(folder), LABELS, new_head=True, problem=problem)


def test_a_head_may_be_missing_but_not_its_pooler_alone(folder):
    without(folder, "pooler")
    with pytest.raises(ModelError, match=r"none of bert\.pooler.*--new-head"):
        load_classifier(str(folder), LABELS)
    assert not load_classifier(str(folder), LABELS, new_head=True).has_head
    without(folder, "classifier")
    assert not load_classifier(str(folder), LABELS).has_head


def test_a_folder_without_a_tokenizer_is_refused(folder, tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    known = load_tokenizer(str(folder)).get_vocab()
    vocabulary.write_text("\n".join(sorted(known, key=known.__getitem__)) + "\n")
    for file in folder.glob("*token*"):
        file.unlink()
    with pytest.raises(ModelError, match=r"a tokenizer with a vocabulary.*--vocabulary"):
        load_classifier(str(folder), LABELS)
    assert len(load_classifier(str(folder), LABELS, vocabulary).tokenizer) == len(known)
    with pytest.raises(ModelError, match=r"a transformers tokenizer at .*none\.txt"):
        load_tokenizer(str(folder), tmp_path / "none.txt")


def test_tokens_that_a_model_has_not_are_refused(folder):
    loaded = load_classifier(str(folder), LABELS)
    loaded.tokenizer.add_tokens(["zyzzyva"])
    short = tasks.Examples([("a fine film",)], [1])
    require_fit(loaded.model, [tokenise(short, loaded.tokenizer, 32)])
    with pytest.raises(ModelError, match="token ids below"):
        require_fit(loaded.model, [tokenise(tasks.Examples([("zyzzyva",)], [1]), loaded.tokenizer, 32)])
    pair = tokenise(tasks.Examples([("a fine film", "dull")], [1]), loaded.tokenizer, 32)
    pair.columns["token_type_ids"][0, 0] = 7
    with pytest.raises(ModelError, match="token types below 2"):
        require_fit(loaded.model, [pair])
    limit = loaded.tokenizer.model_max_length = loaded.model.config.max_position_embeddings
    loaded.tokenizer.model_max_length += 1
    with pytest.raises(ModelError, match=f"at most {limit} tokens"):
        require_fit(loaded.model, [tokenise(texts(limit + 1), loaded.tokenizer, limit + 1)])


def test_pairs_for_a_model_with_one_token_type_are_of_that_type(folder):
    weights = load_file(folder / "model.safetensors")
    name = "bert.embeddings.token_type_embeddings.weight"
    save_file({**weights, name: weights[name][:1].clone()}, folder / "model.safetensors", {"format": "pt"})
    configure(folder, type_vocab_size=1)
    loaded = load_classifier(str(folder), LABELS)
    pairs = tokenise(tasks.Examples([("a fine film", "a dull one")], [1]), loaded.tokenizer, 32)
    require_fit(loaded.model, [pairs])
    assert predictions(loaded.model, pairs).shape == (1, 2)


def texts(*lengths):
    """Texts of so many tokens, the two special ones among them."""
    return tasks.Examples([("film " * (length - 2),) for length in lengths], [0] * len(lengths))


def test_a_default_length_covers_99_texts_in_100(folder):
    tokenizer = load_tokenizer(str(folder))
    found = choose_length(texts(*[10] * 98, 33, 60), tokenizer)
    assert found.n == 48 and "1 longer ones, up to 60 tokens, are cut" in found.sentence
    assert choose_length(texts(16, 3), tokenizer).n == 16
    assert "none is cut" in choose_length(texts(16, 3), tokenizer).sentence
    limited = choose_length(texts(*[90] * 10), tokenizer, 50)
    assert limited.n == 50 and "the model's limit; 10 longer ones" in limited.sentence


def test_the_default_length_of_a_task_ends_at_the_models_positions(folder, tmp_path):
    rows = [f"{text[0]}\t{i % 2}" for i, text in enumerate(texts(*[20] * 30).texts)]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    task = tasks.custom_task("train.tsv", None, ["sentence"], "label", 64)
    assert default_length(task, str(tmp_path), str(folder)).n == 32
    limit = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    longer = "\n".join(["sentence\tlabel", *[f"{'film ' * limit}\t{i % 2}" for i in range(30)]])
    (tmp_path / "train.tsv").write_text(longer)
    found = default_length(task, str(tmp_path), str(folder))
    assert found.n == limit and f"up to {limit + 2} tokens" in found.sentence
    shutil.rmtree(folder)
    with pytest.raises(ModelError, match="a transformers tokenizer at"):
        default_length(task, str(tmp_path), str(folder))
