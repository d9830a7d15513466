"""Causal language models by perplexity: GPT-2 to integers throughout, Llama with floats around HCCS."""

from __future__ import annotations

import json
import math

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from typer.testing import CliRunner

import hccs
import hccs.nn
from hccs.calibration import HeadStatistics, search, two_lines
from hccs.cli.app import app
from hccs.conversion import language
from hccs.conversion.language import LanguageSettings, blocks_of, convert_language, perplexity
from hccs.conversion.report.write import write_report
from hccs.errors import DataError, FileError, ModelError, ParameterError
from hccs_lab.demo import MODEL
from tests.report.wellformed import checked

WORDS = ["the", "film", "is", "fine", "and", "plot", "of", "dull", "but", "cast", "it", "good"]
N = 16


def write_text(path, words, seed):
    """The words go round, and now and then one is left out: something to learn."""
    steps = 1 + (torch.rand(words, generator=torch.Generator().manual_seed(seed)) < 0.2).long()
    path.write_text(" ".join(WORDS[int(i) % len(WORDS)] for i in steps.cumsum(0)))
    return str(path)


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Two texts, and tiny models that have learnt a little of them, with the embedded tokenizer."""
    folder = tmp_path_factory.mktemp("language")
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(known) + "\n")
    tokenizer = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), do_lower_case=True)
    write_text(folder / "train.txt", 1500, 0)
    write_text(folder / "dev.txt", 500, 1)
    blocks = blocks_of(str(folder / "train.txt"), tokenizer, N)
    size = len(tokenizer)
    configs = {
        "gpt2": transformers.GPT2Config(vocab_size=size, n_positions=64, n_embd=32, n_layer=1, n_head=4),
        "llama": transformers.LlamaConfig(
            vocab_size=size,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=32,
            max_position_embeddings=64,
        ),
    }
    for name, config in configs.items():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config)
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(25):
            model(input_ids=blocks[:24], labels=blocks[:24]).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.mark.filterwarnings("ignore")
def test_gpt2_is_calibrated_scored_and_lowered(given, tmp_path):
    command = ["perplexity", str(given / "gpt2"), str(given / "train.txt"), "--dev", str(given / "dev.txt")]
    result = CliRunner().invoke(
        app, [*command, "--out", str(tmp_path / "run"), "--n", str(N)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    assert "lower is better" in result.output and ", delivered" in result.output
    stages = json.loads((tmp_path / "run" / "results.json").read_text())["stages"]
    base = stages["float_model"]["perplexity"]
    assert base < 6  # of 17 tokens, two may follow
    for scores in stages["modes"]["perplexity"].values():
        assert abs(math.log(scores["i16_div"] / base)) < 0.1
    assert abs(math.log(stages["integer"]["perplexity"] / base)) < 0.2
    # What was saved restores itself, with the perplexity that was told.
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    again = perplexity(model, blocks_of(str(given / "dev.txt"), tokenizer, N))
    assert again == pytest.approx(stages["save"]["perplexity"], rel=1e-6)
    assert hccs.IntegerModel.load(tmp_path / "run" / "model.hccs").program.per_token
    # Again, for machines: nothing is done twice, and stdout holds the results alone.
    words = [*command, "--out", str(tmp_path / "run"), "--n", str(N), "--json"]
    again = CliRunner().invoke(app, words, catch_exceptions=False)
    told = json.loads(again.stdout)
    assert {name for name in told if name != "seconds"} == set(told["seconds"])
    assert {name: told[name] for name in stages} == stages
    assert "lower is better" in again.stderr
    _check_report(tmp_path / "run", stages)


def _check_report(folder, stages):
    """One well-formed page with every score, every head, what was delivered and how to do it again."""
    page = (folder / "report.html").read_text(encoding="utf-8")
    elements = checked(page)
    words = " ".join("".join(elements.text).split())
    assert all(section in elements.ids for section in ("perplexity", "heads", "time", "again"))
    scores = [value for form in stages["modes"]["perplexity"].values() for value in form.values()]
    for value in (*scores, stages["float_model"]["perplexity"], stages["integer"]["perplexity"]):
        assert f"{value:.3f}" in words
    assert f"HCCS {stages['save']['mode']}, {stages['save']['lines']}, delivered" in words
    for head in stages["save"]["heads"]:
        assert f"head-{head['layer']}-{head['head']}" in elements.ids and f"{head['kl']:.4f}" in words
    assert f"--out {folder} --n {N} --mode i16_div" in words
    CliRunner().invoke(app, ["report", str(folder), "-o", str(folder / "again.html")], catch_exceptions=False)
    assert (folder / "again.html").read_text(encoding="utf-8") == page


def test_an_unfinished_run_has_no_report(tmp_path):
    (tmp_path / "settings.json").write_text(json.dumps({"problem": "language"}))
    with pytest.raises(FileError, match="a finished run"):
        write_report(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_llama_keeps_floats_around_hccs(given, tmp_path):
    settings = LanguageSettings(str(given / "llama"), str(given / "train.txt"), str(given / "dev.txt"), N)
    said: list[str] = []
    found = convert_language(settings, tmp_path / "run", said.append)
    assert "rotary positions" in found.integer.refused
    assert abs(math.log(found.save.perplexity / found.float_model.perplexity)) < 0.1
    assert not (tmp_path / "run" / "model.hccs").exists()


@pytest.mark.filterwarnings("ignore")
def test_long_rows_take_the_scale_of_rows_and_the_error_of_outputs(given, tmp_path, monkeypatch):
    monkeypatch.setattr(two_lines, "LONG_ROWS", N - 1)
    asked = []
    monkeypatch.setattr(language, "search", lambda *a, **k: asked.append(k) or search(*a, **k))
    settings = LanguageSettings(str(given / "llama"), str(given / "train.txt"), str(given / "dev.txt"), N)
    found = convert_language(settings, tmp_path / "run", lambda line: None)
    assert asked == [{}, {"lines": 2, "objective": "output"}]  # once, for every stage
    assert (found.collect.scale, found.collect.objective) == ("rows", "output")
    reached = found.modes.perplexity["two lines"]["i16_div"]
    assert abs(math.log(reached / found.float_model.perplexity)) < 0.1
    model = transformers.AutoModelForCausalLM.from_pretrained(given / "llama").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(given / "llama")
    train = [{"input_ids": part} for part in blocks_of(str(given / "train.txt"), tokenizer, N).split(8)]
    by_rows = hccs.nn.collect(model, train, n=N, scale="rows")
    assert HeadStatistics.load(tmp_path / "run" / "statistics.safetensors").scale == pytest.approx(
        by_rows.scale
    )


def test_perplexity_is_that_of_the_loss(given):
    model = transformers.AutoModelForCausalLM.from_pretrained(given / "gpt2").eval()
    blocks = torch.arange(60).view(4, 15) % 17
    with torch.no_grad():
        loss = model(input_ids=blocks, labels=blocks).loss
    assert perplexity(model, blocks) == pytest.approx(float(loss.exp()), rel=1e-4)


def test_what_cannot_be_scored_is_refused(given, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    with pytest.raises(FileError, match="a text in UTF-8"):
        blocks_of(str(tmp_path / "none.txt"), tokenizer, N)
    (tmp_path / "short.txt").write_text("a fine film")
    with pytest.raises(DataError, match="at least 4 blocks of 16 tokens"):
        blocks_of(str(tmp_path / "short.txt"), tokenizer, N)
    (tmp_path / "config.json").write_text("{}")
    tokenizer.save_pretrained(tmp_path)
    settings = LanguageSettings(str(tmp_path), str(given / "train.txt"), str(given / "dev.txt"), N)
    with pytest.raises(ModelError, match="a causal language model"):
        convert_language(settings, tmp_path / "run")


def test_blocks_that_no_model_could_score_are_refused(given, tmp_path):
    texts = str(given / "train.txt"), str(given / "dev.txt")
    with pytest.raises(ParameterError, match="at least 2 tokens"):
        LanguageSettings(str(given / "llama"), *texts, 1)
    with pytest.raises(ModelError, match="at most 64 tokens"):  # GPT-2's positions are learnt
        convert_language(LanguageSettings(str(given / "gpt2"), *texts, 100), tmp_path / "run")
    with pytest.raises(ModelError, match="looks at later ones"):
        convert_language(LanguageSettings(str(MODEL), *texts, N), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_go_on_with_another_text(given, tmp_path):
    def stops(line):
        if line.startswith("collect"):
            raise KeyboardInterrupt

    dev = write_text(tmp_path / "dev.txt", 500, 1)
    settings = LanguageSettings(str(given / "llama"), str(given / "train.txt"), dev, N)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            convert_language(settings, tmp_path / "run", stops)
    write_text(tmp_path / "dev.txt", 500, 2)
    with pytest.raises(FileError, match="the texts that"):
        convert_language(settings, tmp_path / "run", stops)
