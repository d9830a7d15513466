"""The perplexities of a decoder: a tiny random Llama, cells that are recorded, tables and a figure."""

import json
import math
import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from typer.testing import CliRunner

from hccs.cli.app import app
from hccs.errors import DataError, FileError, ParameterError
from hccs.nn.interface import SLOT
from hccs_lab.reproduce import decoder

WORDS = [f"word{i}" for i in range(30)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, its tokenizer and two texts."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    path = tmp_path_factory.mktemp("decoder")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="word0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="word0").save_pretrained(path)
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=37, max_position_embeddings=64, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    for name in ("text", "other"):
        (path / f"{name}.txt").write_text(" ".join(random.Random(name).choices(WORDS, k=200)))
    return path


def plan(folder, out, **options):
    options = {"contexts": (12, 24), "tokens": 48, "calibration_tokens": 72, **options}
    return decoder.DecoderPlan(folder, folder / "text.txt", folder / "other.txt", out, **options)


def test_every_method_is_measured_once_and_told(folder, tmp_path, monkeypatch):
    said = []
    chosen = plan(folder, tmp_path / "out")
    stages = decoder.run(chosen, said.append)
    assert len(said) == 2 * len(decoder.METHODS) and "perplexity" in said[0]
    found = decoder.summary(stages, chosen.contexts)
    for method in decoder.METHODS:
        assert {*found[method]} == {12, 24}
        assert 0.8 < found[method][24]["ratio"] < 1.3
    assert found[decoder.SOFTMAX][12]["ratio"] == 1
    close, far = (abs(math.log(found[name][24]["ratio"])) for name in (decoder.TWO, "one line"))
    assert close < max(far, 0.01)
    heads = stages["24/heads"]
    assert all(len(values) == 8 for values in heads.values())
    assert all(a <= b for a, b in zip(heads["fitted scale"], heads["scale"], strict=True))

    decoder.write(chosen, stages)
    table = (tmp_path / "out" / "decoder.md").read_text()
    assert all(f"| {method} |" in table for method in decoder.METHODS)
    assert (tmp_path / "out" / "decoder.png").stat().st_size > 1000
    monkeypatch.setattr(decoder.AtContext, "measured", None)  # nothing is left to measure
    assert (
        decoder.run(chosen, said.append)
        == json.loads((tmp_path / "out" / "decoder.json").read_text())["stages"]
    )


def test_softmax_is_the_models_own_loss(folder, tmp_path):
    work = decoder.Work(plan(folder, tmp_path))
    at = work.at(24)
    found = at.measured(decoder.SOFTMAX)
    ids = torch.cat([batch["input_ids"] for batch in work.windows(folder / "text.txt", 24, 48)])
    with torch.no_grad():
        expected = [work.model(row[None], labels=row[None]).loss.item() for row in ids]
    assert found["losses"] == pytest.approx(expected, abs=1e-4)
    at.measured("two lines, uint8")
    assert not any(hasattr(module, SLOT) for module in work.model.modules())


def test_refusals(folder, tmp_path):
    with pytest.raises(FileError, match="a folder with a decoder"):
        decoder.run(plan(tmp_path / "none", tmp_path))
    with pytest.raises(DataError, match="at least 300 tokens"):
        decoder.run(plan(folder, tmp_path, contexts=(300,)))


def test_other_texts_models_and_contexts_are_refused(folder, tmp_path):
    chosen = plan(folder, tmp_path, contexts=(12,), methods=(decoder.SOFTMAX,))
    decoder.run(chosen, lambda _: None)
    with pytest.raises(FileError, match=r"the text that .* was begun with; got others"):
        decoder.run(replace(chosen, text=chosen.calibration_text), lambda _: None)
    with pytest.raises(FileError, match="the tokens that"):
        decoder.run(replace(chosen, tokens=24), lambda _: None)
    with pytest.raises(FileError, match="two texts that can be read"):
        decoder.run(replace(chosen, text=tmp_path / "none"), lambda _: None)
    command = ["reproduce", "decoder", "--model", str(folder), "--text", str(chosen.text)]
    command += ["--calibration-text", str(chosen.calibration_text), "--out", str(tmp_path / "new")]
    for contexts in ("a,b", "12,-3", "0", "1.5", ","):
        result = CliRunner().invoke(app, [*command, "--contexts", contexts])
        assert isinstance(result.exception, ParameterError), result.output
        assert "context lengths of at least 2 tokens" in str(result.exception)
    assert not (tmp_path / "new").exists()
