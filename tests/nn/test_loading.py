"""A model saved with HCCS runs HCCS when transformers loads it, and never float softmax without a word."""

import json
import subprocess
import sys
import warnings

import pytest
import torch
import transformers

import hccs
import hccs.nn
from hccs.errors import ModelError
from hccs.nn.interface import SLOT
from tests.nn.conftest import VOCABULARY, batch_for


def table(model, name="bert"):
    return hccs.calibrate(hccs.nn.collect(model, [batch_for(name)], n=64), n=64)


def logits(model, name="bert"):
    with torch.no_grad():
        return model(**batch_for(name)).logits


@pytest.fixture
def saved(make_model, tmp_path):
    """A converted model, the float model's logits, and the folder the converted one is saved in."""
    model = make_model("bert")
    floating = logits(model)
    hccs.nn.attach(model, table(model), "u8_div")
    model.save_pretrained(tmp_path / "model")
    return model, floating, tmp_path / "model"


@pytest.mark.parametrize("backend", ["float", "integer"])
@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "vit"])
def test_from_pretrained_gives_the_same_bits(make_model, tmp_path, name, backend):
    model = make_model(name)
    found = table(model, name)
    hccs.nn.attach(model, found, "u8_div", backend=backend)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path)
    assert torch.equal(logits(again, name), logits(model, name))
    assert hccs.nn.current_table(again) == hccs.nn.current_table(model)
    assert hccs.nn.current_table(again).mode is hccs.Mode.U8_DIV
    other = hccs.nn.restore(again, backend="float" if backend == "integer" else "integer")
    assert not torch.equal(logits(other, name), logits(model, name))


def test_auto_classes_and_pipelines_run_hccs(saved):
    model, _, folder = saved
    again = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert torch.equal(logits(again), logits(model))
    words = {f"w{i}": i for i in range(5, VOCABULARY)}
    special = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    transformers.BertTokenizer(vocab={**special, **words}).save_pretrained(folder)
    classify = transformers.pipeline("text-classification", model=str(folder), device="cpu", top_k=None)
    answers = {answer["label"]: answer["score"] for answer in classify("w7 w12 w9 w30")[0]}
    batch = classify.tokenizer("w7 w12 w9 w30", return_tensors="pt")
    with torch.no_grad():
        expected = model(**batch).logits.softmax(-1)[0].tolist()
        floating = hccs.nn.detach(model)(**batch).logits.softmax(-1)[0].tolist()
    assert [answers["LABEL_0"], answers["LABEL_1"]] == pytest.approx(expected, abs=1e-6)
    assert expected != pytest.approx(floating, abs=1e-6)


def test_base_models_and_other_heads_run_hccs(saved, tmp_path):
    model, _, folder = saved
    base = transformers.AutoModel.from_pretrained(folder)
    with torch.no_grad():
        expected, got = (m(**batch_for("bert")).last_hidden_state for m in (model.bert, base))
    assert torch.equal(got, expected)
    base.save_pretrained(tmp_path / "base")
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "base")
    with torch.no_grad():
        assert torch.equal(again.bert(**batch_for("bert")).last_hidden_state, expected)
    assert hccs.nn.current_table(again).layers == hccs.nn.current_table(model).layers


def test_a_loaded_model_is_an_ordinary_one(saved):
    model, floating, folder = saved
    again = transformers.BertForSequenceClassification.from_pretrained(folder)
    assert not getattr(again, "is_quantized", False) and not hasattr(again, "hf_quantizer")
    assert torch.equal(logits(again.half().float()), logits(model.half().float()))
    hccs.nn.detach(again)
    assert not [entry for entry in ("hccs", "quantization_config") if entry in again.config.to_dict()]
    assert again.config._attn_implementation == "sdpa"
    fresh = transformers.BertForSequenceClassification.from_pretrained(folder)
    assert torch.equal(logits(hccs.nn.detach(fresh)), floating)


def test_saving_again_and_detaching(saved, tmp_path):
    model, floating, folder = saved
    again = transformers.BertForSequenceClassification.from_pretrained(folder)
    again.save_pretrained(tmp_path / "twice")
    twice = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "twice")
    assert torch.equal(logits(twice), logits(model))
    hccs.nn.detach(model).save_pretrained(tmp_path / "float")
    assert not {"hccs", "quantization_config", "attn_implementation"} & {
        *json.loads((tmp_path / "float" / "config.json").read_text())
    }
    plain = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "float")
    assert torch.equal(logits(plain), floating)


def test_a_model_of_an_older_version_restores(saved):
    model, _, folder = saved
    config = json.loads((folder / "config.json").read_text())
    for entry in ("quantization_config", "attn_implementation"):
        del config[entry]
    config["hccs"]["provenance"]["layers"] = config["hccs"].pop("layers")
    (folder / "config.json").write_text(json.dumps(config))
    again = transformers.BertForSequenceClassification.from_pretrained(folder)
    assert torch.equal(logits(hccs.nn.restore(again)), logits(model))


def test_asking_for_another_attention_is_heeded_with_a_warning(saved):
    model, floating, folder = saved
    with pytest.warns(UserWarning, match=r"float softmax, not HCCS.*attn_implementation='eager'"):
        again = transformers.BertForSequenceClassification.from_pretrained(
            folder, attn_implementation="eager"
        )
    torch.testing.assert_close(logits(again), floating)
    with pytest.raises(ModelError, match=r"expected a model with HCCS attached.*hccs\.nn\.restore"):
        hccs.nn.current_table(again)
    assert torch.equal(logits(hccs.nn.restore(again)), logits(model))


def test_a_model_made_from_the_configuration_alone_refuses_to_run(saved):
    _, _, folder = saved
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    with pytest.raises(ModelError, match=r"hccs\.nn\.restore"):
        logits(model)
    hccs.nn.restore(model)
    assert torch.isfinite(logits(model)).all()


def test_surrogates_are_not_lost_in_silence(make_model, tmp_path):
    import hccs_lab.surrogates as surrogates

    model = make_model("bert")
    scale = table(model).scale
    names = hccs.nn.attention_layers(model)
    hccs.nn.fill({n: surrogates.get("ibert").module(scale[i]) for i, n in enumerate(names)}, model)
    model.save_pretrained(tmp_path)
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path)
    with pytest.raises(ModelError, match="parameters for every attention layer"):
        logits(again)
    assert torch.isfinite(logits(hccs.nn.detach(again))).all()


def test_learnable_parameters_must_be_fixed_before_saving(make_model, tmp_path):
    model = make_model("bert")
    hccs.nn.attach(model, table(model), learnable=True)
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="while they were learnable"):
        transformers.BertForSequenceClassification.from_pretrained(tmp_path)
    hccs.nn.attach(model, hccs.nn.current_table(model)).save_pretrained(tmp_path)
    again = transformers.BertForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(logits(again), logits(model))


def test_a_damaged_table_is_refused_on_loading(saved):
    _, _, folder = saved
    config = json.loads((folder / "config.json").read_text())
    config["hccs"]["B"][0][0] = -5
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="admissible parameters"):
        transformers.BertForSequenceClassification.from_pretrained(folder)


def test_another_methods_entry_stays(make_model):
    model = make_model("bert")
    other = {"quant_method": "another"}
    model.config.quantization_config = other
    hccs.nn.attach(model, table(model))
    assert model.config.quantization_config == other
    assert hccs.nn.detach(model).config.quantization_config == other


def test_a_loaded_model_trains(saved, tmp_path):
    _, _, folder = saved
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    batch = batch_for("bert")
    rows = [{k: v[i] for k, v in batch.items()} | {"labels": torch.tensor(i % 2)} for i in range(4)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "training"),
        max_steps=2,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        save_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    before = logits(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.Trainer(model=model, args=arguments, train_dataset=rows).train()
    after = logits(model.eval())
    assert not torch.equal(before, after)
    checkpoint = tmp_path / "training" / "checkpoint-2"
    again = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint)
    assert torch.equal(logits(again), after)


PLAIN = """
import sys
import transformers
load = transformers.AutoModelForSequenceClassification.from_pretrained
def attempt():
    try:
        print(type(load(sys.argv[1]).bert.encoder.layer[0].attention.self.{slot}).__name__)
    except ValueError as error:
        print(error)
attempt()
transformers.logging.set_verbosity_error()
attempt()
import hccs.nn
attempt()
"""


def test_without_hccs_loading_is_refused_and_importing_it_is_enough(saved):
    command = [sys.executable, "-c", PLAIN.format(slot=SLOT), str(saved[2])]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    told, quiet, with_hccs = result.stdout.splitlines()
    assert 'attn_implementation="hccs"` is not supported' in told
    assert quiet == told
    assert with_hccs == "HeadSoftmax"
