"""Encoders of sentences and rerankers, from folders that the tests write: read, converted and certified."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("accelerate")
pytest.importorskip("typer")

from typer.testing import CliRunner

import hccs
from hccs.cli.app import app
from hccs.conversion.certificate import Retrieval, compare_order, compare_vectors
from hccs.conversion.converted import Converted
from hccs.conversion.embeddings import BY_DISTANCE, ConvertedEncoder, EmbeddingSettings, convert_embeddings
from hccs.conversion.evaluate import evaluate
from hccs.conversion.metrics import kendall, metric_for
from hccs.conversion.sentence_transformers import load_sentence_encoder
from hccs.errors import DataError, FileError, HccsError, ModelError, ParameterError

LETTERS = "abcdefghijklmnop"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", ":", "query", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
POOLING = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False}
LONGEST = 40


def write(path: Path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def tokenizer():
    words = {word: number for number, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def config(**options):
    return transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, initializer_range=0.15, max_position_embeddings=64, **options,
    )  # fmt: skip


def sentence_folder(
    folder: Path, pooling="mean_tokens", *, dense=(), normalise=True, settings=None, bert=None, seed=0
) -> Path:
    """A folder as sentence-transformers saves it; `dense` lists (outputs, activation, file)."""
    torch.manual_seed(seed)
    transformers.BertModel(config()).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    chosen = [pooling] if isinstance(pooling, str) else pooling
    write(
        folder / "1_Pooling" / "config.json", {**POOLING, **{f"pooling_mode_{name}": True for name in chosen}}
    )
    width = 32
    for number, (outputs, activation, file) in enumerate(dense, 2):
        place = folder / f"{number}_Dense"
        layer = torch.nn.Linear(width, outputs)
        weights = {f"linear.{name}": value for name, value in layer.state_dict().items()}
        write(place / "config.json", {
            "in_features": width, "out_features": outputs, "bias": True,
            "activation_function": f"torch.nn.modules.activation.{activation}",
        })  # fmt: skip
        if file.endswith(".bin"):
            torch.save(weights, place / file)
        else:
            pytest.importorskip("safetensors.torch").save_file(weights, place / file)
        modules.append((place.name, "Dense"))
        width = outputs
    if normalise:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
    write(folder / "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ])  # fmt: skip
    bert = {"max_seq_length": LONGEST, "do_lower_case": False} if bert is None else bert
    write(folder / "sentence_bert_config.json", bert)
    if settings is not None:
        write(folder / "config_sentence_transformers.json", settings)
    return folder


def some_texts(count=120, seed=0):
    rng = np.random.default_rng(seed)
    letters = np.array([*LETTERS])
    return [
        " ".join("".join(rng.choice(letters, rng.integers(1, 5))) for _ in range(rng.integers(1, 9)))
        for _ in range(count)
    ]


def quiet(_):
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    prompts = {"prompts": {"query": "query : ", "passage": "a "}, "default_prompt_name": "query"}
    return sentence_folder(tmp_path_factory.mktemp("models") / "small", settings=prompts)


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Pairs with scores, and documents, queries and relevance."""
    place, texts = tmp_path_factory.mktemp("collection"), some_texts(40, seed=5)
    rows = [f"{texts[i]}\t{texts[i + 1]}\t{i % 6}.0" for i in range(20)]
    (place / "pairs.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    rows = [f"d{i}\t{text.split()[0]}\t{text}" for i, text in enumerate(texts)]
    (place / "documents.tsv").write_text("\n".join(["id\ttitle\ttext", *rows]))
    (place / "queries.tsv").write_text(f"id\ttext\n1\t{texts[3]}\n2\t{texts[9]}\n3\tnothing relevant\n")
    (place / "relevance.txt").write_text("1 0 d3 1\n1 0 d4 2\n2 0 d9 1\n3 0 d1 0\n")
    return place


@pytest.fixture(scope="module")
def converted(folder, collection, tmp_path_factory):
    return hccs.convert(
        str(folder), some_texts(), problem="embeddings", out=tmp_path_factory.mktemp("runs") / "run",
        pairs=str(collection / "pairs.tsv"), retrieval=str(collection), say=quiet,
    )  # fmt: skip


# --- reading folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pooling"),
    [("mean_tokens", "mean"), ("cls_token", "first"), ("max_tokens", "max"), ("lasttoken", "last")],
)
def test_poolings_are_those_of_the_folder(tmp_path, name, pooling):
    encoder = load_sentence_encoder(str(sentence_folder(tmp_path / "m", name)), say=quiet)
    assert encoder.head.pooling == pooling and encoder.max_length == LONGEST
    texts = some_texts(9)
    model = transformers.BertModel.from_pretrained(tmp_path / "m").eval()
    for text, vector in zip(texts, encoder.encode(texts), strict=True):
        ids = tokenizer()(text, truncation=True, max_length=LONGEST, return_tensors="pt")
        hidden = model(**ids).last_hidden_state[0].detach().numpy()
        row = {"mean": hidden.mean(0), "first": hidden[0], "max": hidden.max(0), "last": hidden[-1]}[pooling]
        assert np.allclose(vector, row / np.linalg.norm(row), atol=1e-5)


def test_dense_layers_come_from_either_kind_of_file(tmp_path):
    layers = [(24, "Tanh", "model.safetensors"), (16, "Identity", "pytorch_model.bin")]
    encoder = load_sentence_encoder(str(sentence_folder(tmp_path / "m", dense=layers)), say=quiet)
    plain = load_sentence_encoder(str(sentence_folder(tmp_path / "plain")), say=quiet)
    assert encoder.dims == 16 and [type(act).__name__ for _, act in encoder.head.dense] == [
        "Tanh",
        "Identity",
    ]
    (first, _), (second, _) = encoder.head.dense
    batch = encoder.batches(["a b c"])[0][1]
    mean = plain.model(**batch).last_hidden_state[0].mean(0)
    wanted = torch.nn.functional.normalize(second(first(mean).tanh()), dim=-1).detach().numpy()
    assert np.allclose(encoder.encode(["a b c"])[0], wanted, atol=1e-5)


def test_prompts_and_length_come_from_the_folder(folder):
    encoder = load_sentence_encoder(str(folder), say=quiet)
    assert encoder.prompts == {"query": "query : ", "passage": "a "} and encoder.default_prompt == "query"
    ids = encoder.batches(["b"])[0][1]["input_ids"][0].tolist()
    assert ids == [2, WORDS.index("query"), WORDS.index(":"), WORDS.index("b"), 3]


def test_texts_are_lowered_where_the_folder_says_so(tmp_path):
    lowered = {"max_seq_length": 8, "do_lower_case": True}
    encoder = load_sentence_encoder(str(sentence_folder(tmp_path / "m", bert=lowered)), say=quiet)
    small, large = (encoder.batches([text])[0][1]["input_ids"].tolist() for text in ("ab", "AB"))
    assert small == large and "Lowercase" in encoder.tokenizer_text
    assert encoder.batches(["a " * 30])[0][1]["input_ids"].shape[1] == 8
    assert encoder.count_cut(["a", "a " * 30]) == 1


def test_a_plain_folder_takes_the_mean_and_says_so(tmp_path):
    sentence_folder(tmp_path / "m")
    (tmp_path / "m" / "modules.json").unlink()
    told = []
    assert load_sentence_encoder(str(tmp_path / "m"), say=told.append).head.pooling == "mean"
    assert "no pooling" in told[0]
    assert load_sentence_encoder(str(tmp_path / "m"), "last", say=quiet).head.pooling == "last"


def test_a_model_that_does_not_normalise_is_told(tmp_path):
    told = []
    load_sentence_encoder(str(sentence_folder(tmp_path / "m", normalise=False)), say=told.append)
    assert "does not normalise" in told[0]


@pytest.mark.parametrize(
    ("pooling", "named"),
    [
        ("weightedmean_tokens", "weightedmean_tokens"),
        ("mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        (("cls_token", "mean_tokens"), "cls_token and mean_tokens"),
        ((), "none"),
    ],
)
def test_other_poolings_are_refused_by_name(tmp_path, pooling, named):
    with pytest.raises(ModelError, match=named):
        load_sentence_encoder(str(sentence_folder(tmp_path / "m", pooling)), say=quiet)


@pytest.mark.parametrize("kind", ["LayerNorm", "WordWeights", "CNN"])
def test_other_modules_are_refused_by_name(tmp_path, kind):
    folder = sentence_folder(tmp_path / "m")
    modules = json.loads((folder / "modules.json").read_text())
    modules[-1]["type"] = f"sentence_transformers.models.{kind}"
    write(folder / "modules.json", modules)
    with pytest.raises(ModelError, match=kind):
        load_sentence_encoder(str(folder), say=quiet)


def test_refusals_of_parts_that_programs_have_not(tmp_path):
    folder = sentence_folder(tmp_path / "relu", dense=[(16, "ReLU", "pytorch_model.bin")])
    with pytest.raises(ModelError, match="ReLU"):
        load_sentence_encoder(str(folder), say=quiet)
    folder = sentence_folder(tmp_path / "order")
    modules = json.loads((folder / "modules.json").read_text())
    write(folder / "modules.json", [modules[0], modules[2], modules[1]])
    with pytest.raises(ModelError, match="Transformer, Normalize, Pooling"):
        load_sentence_encoder(str(folder), say=quiet)
    prompts = {"prompts": {"query": "query : "}}
    folder = sentence_folder(tmp_path / "prompt", settings=prompts)
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    write(folder / "1_Pooling" / "config.json", {**pooling, "include_prompt": False})
    with pytest.raises(ModelError, match="include_prompt"):
        load_sentence_encoder(str(folder), say=quiet)
    with pytest.raises(ParameterError, match="own pooling, mean"):
        load_sentence_encoder(str(sentence_folder(tmp_path / "mean")), "max", say=quiet)
    with pytest.raises(ParameterError, match="n of 1 to 64"):
        load_sentence_encoder(str(tmp_path / "mean"), n=65, say=quiet)
    with pytest.raises(HccsError, match="an encoder of sentences at"):
        load_sentence_encoder(str(tmp_path / "nothing"), say=quiet)
    (tmp_path / "mean" / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(FileError, match="JSON"):
        load_sentence_encoder(str(tmp_path / "mean"), say=quiet)


# --- conversion -------------------------------------------------------------------------------------------


def test_the_converted_encoder_is_close_and_reads_texts(converted, folder):
    assert isinstance(converted, ConvertedEncoder)
    teacher, texts = load_sentence_encoder(str(folder), say=quiet), some_texts(30, seed=9)
    encoder = hccs.Encoder.load(converted.folder)
    cosines = (teacher.encode(texts) * encoder.encode(texts)).sum(1)
    assert cosines.min() > 0.97
    assert encoder.settings.default_prompt == "query" and encoder.max_length == LONGEST
    other = (teacher.encode(texts) * encoder.encode(texts, prompt="")).sum(1)
    assert other.mean() < cosines.mean()
    assert encoder.model.verify() == converted.certificate.fingerprint


def test_held_back_texts_decide_and_others_certify(converted):
    found = converted.results
    assert set(found.float_model.texts) == {"fitted", "chooses", "certifies"}
    assert sum(found.float_model.texts.values()) == 120
    assert found.calibrate.scores == BY_DISTANCE
    corrected = found.reconstruct
    assert corrected.before == found.calibrate.cosine and corrected.kept == (
        corrected.after > corrected.before
    )
    assert (
        corrected.matrices and converted.certificate.held_back.texts == found.float_model.texts["certifies"]
    )


def test_the_certificate_has_every_field(converted):
    written = json.loads((converted.folder / "certificate.json").read_text())
    assert written["model"] == "small" and written["problem"] == "embeddings"
    held = written["held_back"]
    assert 0.9 < held["min"] <= held["percentiles"]["1"] <= held["percentiles"]["5"] <= held["mean"] <= 1
    assert 0 < held["overlap"] <= 1 and sum(count for _, count in held["histogram"]) == held["texts"]
    assert held["worst"][0]["cosine"] == held["min"]
    assert written["pairs"]["pairs"] == 20 and abs(written["pairs"]["float_model"]) <= 100
    assert written["retrieval"]["queries"] == 2 and written["retrieval"]["documents"] == 40
    assert 0 <= written["retrieval"]["overlap"] <= 1
    assert len(written["fingerprint"]) == 64 and written["versions"]["hccs"] == hccs.__version__


def test_a_run_is_evaluated_on_pairs(converted, collection):
    run, pairs = str(converted.folder), converted.certificate.pairs
    found = evaluate(run, file=str(collection / "pairs.tsv"))
    assert (found.metric, found.examples) == ("spearman", pairs.pairs)
    assert found.scores == {"float": pairs.float_model / 100, "whole": pairs.integer_model / 100}
    shown = CliRunner().invoke(app, ["evaluate", run, "--file", str(collection / "pairs.tsv")])
    assert shown.exit_code == 0 and "all in integers" in shown.output and "points" in shown.output
    with pytest.raises(ParameterError, match="sentence1, sentence2 and score"):
        evaluate(run)
    for more in ({"modes": ("i16_div",)}, {"metric": "accuracy"}, {"backend": "integer"}):
        with pytest.raises(ParameterError, match="no mode, metric or backend"):
            evaluate(run, file=str(collection / "pairs.tsv"), **more)
    with pytest.raises(FileError, match="one of an encoder of sentences"):
        Converted(converted.folder)


def test_card_and_report_show_the_certificate(converted):
    card = (converted.folder / "README.md").read_text()
    page = converted.report.read_text()
    for name, _, integer in converted.certificate.rows():
        assert name.split(",")[0] in card and integer in card and integer in page
    assert converted.certificate.fingerprint in card and "hccs.Encoder.load" in card
    worst = converted.certificate.held_back.worst[0]
    assert worst.text in page and f"{worst.cosine:.4f}" in page
    assert converted.summary in page and "--problem embeddings" in converted.command


def test_a_run_is_resumed_with_the_same_bits(folder, tmp_path):
    texts = some_texts(60)
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    settings = EmbeddingSettings(str(folder), str(tmp_path / "texts.txt"))
    first = convert_embeddings(settings, tmp_path / "run", quiet)
    before = first.model.read_bytes()
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    for name in ("reconstruct", "certify"):
        del results["stages"][name]
    write(tmp_path / "run" / "results.json", results)
    first.model.unlink()
    with pytest.raises(FileError, match="not finished"):
        ConvertedEncoder(tmp_path / "run")
    told = []
    again = convert_embeddings(settings, tmp_path / "run", told.append)
    assert "calibrate: done before" in told and again.model.read_bytes() == before
    (tmp_path / "texts.txt").write_text("\n".join([*texts[:-1], "a b c d"]))
    with pytest.raises(FileError, match="the texts that"):
        convert_embeddings(settings, tmp_path / "run", quiet)


def test_a_dense_model_converts_from_an_object_and_a_plain_one(tmp_path):
    dense = sentence_folder(tmp_path / "dense", "cls_token", dense=[(16, "Tanh", "model.safetensors")])
    found = hccs.convert(str(dense), some_texts(60), problem="embeddings", out=tmp_path / "a", say=quiet)
    assert found.encoder.dims == 16 and found.certificate.held_back.mean > 0.95
    torch.manual_seed(0)
    model = transformers.BertModel(config(), add_pooling_layer=False)
    found = hccs.convert(
        model, some_texts(60), problem="embeddings", tokenizer=tokenizer(), out=tmp_path / "b", say=quiet,
        pooling="max", scores="int16", reconstruct=False, n=16,
    )  # fmt: skip
    assert found.results.float_model.pooling == "max" and found.encoder.max_length == 16
    assert found.results.calibrate.scores == "int16"
    assert not found.results.reconstruct.kept and found.results.reconstruct.after is None


def test_bad_data_and_options_are_refused_before_anything_is_written(folder, tmp_path):
    with pytest.raises(DataError, match="at least 40 texts"):
        hccs.convert(str(folder), some_texts(9), problem="embeddings", out=tmp_path / "run", say=quiet)
    assert not (tmp_path / "run" / "settings.json").exists()
    with pytest.raises(ParameterError, match="texts alone"):
        hccs.convert(
            str(folder), some_texts(), some_texts(), problem="embeddings", out=tmp_path / "x", say=quiet
        )
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\tscore\na\tb\tmany\n")
    with pytest.raises(DataError, match="numbers in column score"):
        hccs.convert(
            str(folder), some_texts(), problem="embeddings", out=tmp_path / "y", say=quiet,
            pairs=str(tmp_path / "pairs.tsv"),
        )  # fmt: skip


def test_the_command_converts_and_refuses(folder, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(some_texts(60)))
    line = ["convert", str(folder), "--problem", "embeddings", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(
        app, [*line, "--unlabelled", str(tmp_path / "texts.txt"), "--n", "16", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["certificate"]["held_back"]["mean"] > 0.95
    assert hccs.Encoder.load(tmp_path / "run").max_length == 16
    assert isinstance(CliRunner().invoke(app, line).exception, (HccsError, SystemExit))
    labelled = [*line, "--unlabelled", str(tmp_path / "texts.txt"), "--metric", "f1"]
    assert CliRunner().invoke(app, labelled).exit_code != 0
    other = ["convert", str(folder), "--task", "sst2", "--out", str(tmp_path / "x"), "--pooling", "mean"]
    assert CliRunner().invoke(app, other).exit_code != 0
    assert CliRunner().invoke(app, ["report", str(tmp_path / "run")]).exit_code == 0


# --- rerankers --------------------------------------------------------------------------------------------


def test_a_reranker_is_certified_by_its_order(tmp_path):
    torch.manual_seed(3)
    model = transformers.BertForSequenceClassification(config(num_labels=1))
    model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    queries = some_texts(12, seed=1)
    pairs = [f"{queries[i % 12]}\t{text}" for i, text in enumerate(some_texts(240, seed=2))]
    (tmp_path / "pairs.txt").write_text("\n".join(pairs))
    line = ["convert", str(tmp_path / "model"), "--problem", "rerank", "--no-retrain"]
    line += ["--unlabelled", str(tmp_path / "pairs.txt"), "--n", "56", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, (done.output, done.exception)
    written = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert written["problem"] == "rerank" and written["order"]["pairs"] == 24
    assert written["order"]["kendall"] > 0.5 and 0 <= written["order"]["top1"] <= 1
    ranked = hccs.Reranker.load(tmp_path / "run").rank(queries[0], some_texts(5, seed=4))
    assert [entry.score for entry in ranked] == sorted((entry.score for entry in ranked), reverse=True)
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "hccs.Reranker" in card and "Kendall" in card
    assert "Kendall" in (tmp_path / "run" / "report.html").read_text()


def test_rerankers_take_pairs_and_are_scored_by_kendall(tmp_path):
    assert metric_for("rerank").name == "kendall" and metric_for("regression").name == "pearson"
    with pytest.raises(ParameterError, match="query and passage"):
        hccs.convert(str(tmp_path), ["a", "b"], problem="rerank", out=tmp_path / "run", label=None, say=quiet)


# --- measures ---------------------------------------------------------------------------------------------


def test_kendall_is_that_of_all_pairs():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 30, 700), rng.integers(0, 30, 700)
    signs = [np.sign(np.subtract.outer(x, x)) for x in (a, b)]
    wanted = (signs[0] * signs[1]).sum() / np.sqrt((signs[0] ** 2).sum() * (signs[1] ** 2).sum())
    assert kendall(a, b) == pytest.approx(wanted) and kendall(a, a) == 1 and kendall(a, -a) == -1
    assert kendall(a, np.zeros(700)) == 0


def test_equal_vectors_have_a_perfect_certificate():
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(30, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    same = compare_vectors(["a"] * 30, vectors, vectors)
    assert same.mean == pytest.approx(1) and same.overlap == 1
    turned = vectors.copy()
    turned[4] = -turned[4]
    other = compare_vectors([f"t{i}" for i in range(30)], vectors, turned)
    assert other.min == pytest.approx(-1) and other.worst[0].text == "t4" and other.overlap < 1


def test_ndcg_is_that_of_the_definition(collection):
    found = Retrieval.of(str(collection))
    assert len(found.queries) == 2 and found.grades[0] == {3: 1.0, 4: 2.0}
    results = np.array([[3, 0, 4, *range(10, 17)], [9, *range(20, 29)]])
    first = (1 + 2 / np.log2(4)) / (2 + 1 / np.log2(3))
    assert found.ndcg(results) == pytest.approx(100 * (first + 1) / 2)
    (collection / "bad").mkdir(exist_ok=True)
    for name in ("documents.tsv", "queries.tsv"):
        (collection / "bad" / name).write_text((collection / name).read_text())
    (collection / "bad" / "relevance.txt").write_text("1 0 unknown 1\n")
    with pytest.raises(DataError, match="line 1"):
        Retrieval.of(str(collection / "bad"))


def test_order_counts_queries_with_several_passages():
    wanted, found = np.array([3.0, 1.0, 2.0, 5.0]), np.array([3.0, 4.0, 2.0, 9.0])
    order = compare_order(["a", "a", "b", "c"], wanted, found)
    assert (order.queries, order.top1, order.pairs) == (1, 0.0, 4)
    assert compare_order(["a", "b"], wanted[:2], found[:2]).top1 is None


@pytest.mark.slow
@pytest.mark.skipif("HCCS_MINILM" not in os.environ, reason="HCCS_MINILM names no folder")
def test_minilm_is_close_to_its_float_vectors(tmp_path):
    texts = Path(os.environ["HCCS_MINILM_TEXTS"])  # one per line, 2,000 of them
    found = hccs.convert(
        os.environ["HCCS_MINILM"], texts, problem="embeddings", out=tmp_path / "run", say=quiet
    )
    assert found.certificate.held_back.mean > 0.99 and found.certificate.held_back.min > 0.93
