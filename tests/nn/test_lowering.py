"""Whole encoders in integers: every family, the training model's bits, the gradient, and what is refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers

import hccs
import hccs.nn
from hccs.errors import DataError, ModelError, ParameterError
from hccs.nn.lowering import lower, take_apart
from hccs.nn.lowering.assembling import activation_table, assemble
from hccs.nn.lowering.quantised import quantised
from hccs.nn.lowering.ranges import magnitudes, measured
from hccs.nn.lowering.scales import choose_scales
from hccs.program import IntegerModel
from tests.nn.conftest import TEXT_ENCODERS, VOCABULARY, batch_for, sentences


def measure(model, encoder, batches, method="max-abs"):
    return magnitudes(encoder, measured(model, encoder, batches), method)


def electra():
    config = transformers.ElectraConfig(
        vocab_size=VOCABULARY,
        embedding_size=32,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=37,
        initializer_range=0.15,
        max_position_embeddings=64,
    )
    return transformers.ElectraForSequenceClassification(config)


SHAPE = dict(
    vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=37
)
MODELS = {**TEXT_ENCODERS, "electra": electra}


def made(name):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    batches = [batch_for(name, seed=s, count=24) for s in range(4)]
    table = hccs.calibrate(hccs.nn.collect(model, batches, n=32), n=32)
    return model, table, batches


def ids_of(batch):
    return batch["input_ids"].numpy(), batch["attention_mask"].numpy()


@pytest.mark.parametrize("name", MODELS)
def test_every_family_lowers_to_a_model_that_answers_like_hccs(name):
    model, table, batches = made(name)
    whole = lower(model, table, batches)
    fresh = batch_for(name, seed=9, count=64)
    with torch.no_grad():
        expected = hccs.nn.attach(model, table, backend="integer")(**fresh).logits.numpy()
    got = whole(*ids_of(fresh)).logits
    spread = expected.std()
    assert abs(got - expected).mean() < 0.15 * spread  # random weights; real ones come closer
    assert np.array_equal(whole(*ids_of(fresh), reference=True).scores, whole(*ids_of(fresh)).scores)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["max-abs", "least-error"])
def test_the_training_model_computes_the_programs_integers(name, method):
    model, table, batches = made(name)
    encoder = take_apart(model)
    scales = choose_scales(encoder, measure(model, encoder, batches, method))
    whole = IntegerModel(assemble(encoder, table, scales))
    fresh = batch_for(name, seed=5, count=48)
    with torch.no_grad(), quantised(model, encoder, table, scales):
        trained = model(**fresh).logits
    exact = torch.tensor(whole(*ids_of(fresh)).logits)
    torch.testing.assert_close(trained, exact, rtol=1e-5, atol=1e-6)


def test_gradients_train_it_and_the_program_follows():
    model, table, batches = made("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    encoder = take_apart(model)
    scales = choose_scales(encoder, measure(model, encoder, batches))
    data = sentences(count=64, seed=3)
    labels = (data["input_ids"][:, 1] > VOCABULARY // 2).long()
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    losses = []
    with quantised(model, encoder, table, scales):
        for _ in range(30):
            loss = torch.nn.functional.cross_entropy(model(**data).logits, labels)
            optimiser.zero_grad()
            loss.backward()
            assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
            optimiser.step()
            losses.append(loss.item())
        with torch.no_grad():
            trained = model(**data).logits
    assert losses[-1] < 0.7 * losses[0]
    touched = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert any("query" in name for name in touched) and any("word_embeddings" in name for name in touched)
    scores = IntegerModel(assemble(encoder, table, scales))(*ids_of(data))
    torch.testing.assert_close(trained, torch.tensor(scores.logits), rtol=1e-5, atol=1e-6)


def test_the_model_is_left_as_it_was():
    model, table, batches = made("bert")
    fresh = sentences(seed=7)
    with torch.no_grad():
        before = model(**fresh).logits
        encoder = take_apart(model)
        scales = choose_scales(encoder, measure(model, encoder, batches))
        with pytest.raises(KeyboardInterrupt), quantised(model, encoder, table, scales):
            raise KeyboardInterrupt
        assert torch.equal(model(**fresh).logits, before)
        # With HCCS attached it stays attached, and flags of single modules stay as they were set.
        before = hccs.nn.attach(model, table)(**fresh).logits
        model.bert.encoder.layer[0].train()
        measure(model, encoder, batches)
        assert model.bert.encoder.layer[0].training and not model.training
        with quantised(model.eval(), encoder, table, scales):
            assert not torch.equal(model(**fresh).logits, before)
        assert torch.equal(model(**fresh).logits, before)


def test_padding_changes_nothing():
    model, table, batches = made("bert")
    whole = lower(model, table, batches)
    short = sentences(count=5, longest=12, seed=2)
    long = sentences(count=5, longest=12, seed=2, padded_to=30)
    assert np.array_equal(whole(*ids_of(short)).scores, whole(*ids_of(long)).scores)
    one = [
        whole(short["input_ids"][i, : int(n)].numpy()) for i, n in enumerate(short["attention_mask"].sum(1))
    ]
    assert np.array_equal(np.concatenate([s.scores for s in one]), whole(*ids_of(short)).scores)


def test_what_cannot_be_lowered_is_refused():
    model, table, batches = made("bert")
    families = "families bert, roberta, xlm-roberta, camembert, electra, distilbert, gpt2, vit, deit, albert"
    config = transformers.MPNetConfig(**SHAPE)
    with pytest.raises(ModelError, match=families):
        lower(transformers.MPNetForSequenceClassification(config), table, batches)
    with pytest.raises(ModelError, match="AutoModelForSequenceClassification"):
        lower(transformers.BertModel(model.config), table, batches)
    with pytest.raises(DataError, match="at least one batch"):
        lower(model, table, [])
    with pytest.raises(ParameterError, match="max-abs, least-error"):
        lower(model, table, batches, scales="best")
    for parameter in ("layer.1.output.dense.weight", "layer.0.output.LayerNorm.bias"):
        broken = copy.deepcopy(model)
        broken.bert.encoder.get_parameter(parameter).data.view(-1)[0] = torch.nan
        with pytest.raises(DataError, match=f"NaN or infinity in bert.encoder.{parameter}"):
            lower(broken, table, batches)


FLOAT_ONLY = {
    "relative positions": lambda: transformers.MPNetForSequenceClassification(
        transformers.MPNetConfig(**SHAPE)
    ),
    "decoder|absolute positions": lambda: transformers.BertForSequenceClassification(
        transformers.BertConfig(is_decoder=True, **SHAPE)
    ),
    "convolutions, batch or group normalisation": lambda: transformers.ResNetForImageClassification(
        transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic")
    ),
    "a classifier of sequences|a sequence classifier": lambda: transformers.BertForMaskedLM(
        transformers.BertConfig(**SHAPE)
    ),
}


@pytest.mark.parametrize("part", FLOAT_ONLY)
def test_float_only_parts_are_named(part):
    with pytest.raises(ModelError, match=part):
        take_apart(FLOAT_ONLY[part]())


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "relu", "silu", "tanh", "quick_gelu", "mish", "relu2"])
def test_any_activation_of_one_value_becomes_a_table(name):
    function = transformers.activations.ACT2FN[name]
    entries = activation_table(function, 0.05, 0.04)
    real = function(torch.arange(-128, 128).double() * 0.05).numpy() / 0.04
    assert (abs(entries - np.clip(real, -127, 127)) <= 0.5).all()


def test_activations_that_mix_channels_are_refused():
    for gated in (torch.nn.GLU(), torch.nn.Softmax(-1), torch.nn.PReLU(4)):
        with pytest.raises(ModelError, match="an activation of one value at a time"):
            activation_table(gated, 0.05, 0.04)
    model, table, batches = made("bert")
    model.bert.encoder.layer[1].intermediate.intermediate_act_fn = torch.nn.Softmax(-1)
    with pytest.raises(ModelError, match="Softmax, which mixes channels"):
        lower(model, table, batches)
