"""Attention in integers inside models: the reference's bits, close to float q, k, v, for inference only."""

import dataclasses

import numpy as np
import pytest
import torch

import hccs
import hccs.nn
from hccs.errors import DataError, ModelError, ParameterError
from hccs.nn.integer import as_lengths
from hccs.nn.interface import SLOT, attention, attention_layers
from hccs.ops.quantise import by_factor
from hccs.reference.attention import attention as reference_attention
from tests.nn.conftest import ALL, batch_for, sentences

BACKENDS = ("float", "integer")


_tables: dict[str, hccs.ParamTable] = {}


def calibrated(model, name):
    """The table of the fixture's model, which is the same in every test."""
    if name not in _tables:
        _tables[name] = hccs.calibrate(hccs.nn.collect(model, [batch_for(name)], n=64), n=64)
    return _tables[name]


def layer_of(model, index=0):
    return getattr(list(attention_layers(model).values())[index], SLOT)


def watched(model, layer, batch):
    """What the layer's slot got and returned when the model ran."""
    caught, attend = [], layer.attend
    layer.attend = lambda inputs: caught.append((inputs, attend(inputs))) or caught[-1][1]
    with torch.no_grad():
        model(**batch)
    del layer.attend
    inputs, (output, probabilities) = caught[0]
    assert probabilities is None
    return inputs, output


@pytest.mark.parametrize("name", [*ALL, "llama"])
def test_every_architecture_runs_close_to_float_qkv(make_model, name):
    model = make_model(name)
    table, batch = calibrated(model, name), batch_for(name)
    with torch.no_grad():
        expected, got = (hccs.nn.attach(model, table, backend=b)(**batch).logits.double() for b in BACKENDS)
    real = batch["attention_mask"].bool() if got.ndim == 3 else slice(None)  # padding queries mean nothing
    difference = (got - expected)[real].norm() / expected[real].norm()
    assert 0 < difference < 0.15


@pytest.mark.parametrize("mode", ["i16_div", "u8_div", "u8_clb"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_a_layer_returns_the_reference(make_model, name, mode):
    model = make_model(name)
    hccs.nn.attach(model, calibrated(model, name), mode, backend="integer")
    layer = layer_of(model, 1)
    inputs, output = watched(model, layer, batch_for(name))
    q, k, v = (x.numpy() for x in layer.integers(inputs.query, inputs.key, inputs.value))
    factors = layer.factor_bits.view(torch.float32)[0, :, None, None].numpy()
    assert np.array_equal(q, np.clip(np.rint(inputs.query.numpy() * factors), -128, 127))
    assert k.shape == v.shape == inputs.key.shape
    expected = reference_attention(
        q,
        k,
        v,
        layer.theta,
        layer.requant(inputs.scaling),
        valid=inputs.valid.numpy(),
        mode=None if mode == "i16_div" else mode,
    )
    assert np.array_equal(output.numpy(), expected)


def test_quantising_rounds_half_to_even_and_saturates(instruction_set):
    generator = torch.Generator().manual_seed(0)
    halves = torch.randint(-300, 300, (2, 5, 3, 37), generator=generator) / 2
    factor = torch.tensor([1.0, 2.0, 0.1, 3e-9, 1e9])
    by_token = halves.transpose(1, 2).contiguous().transpose(1, 2)
    for x in (halves, by_token, halves.bfloat16(), halves[..., ::2]):
        expected = (x.float() * factor[:, None, None]).round().clamp(-128, 127).to(torch.int8)
        assert torch.equal(by_factor(x, factor), expected)
    halves[1, 2, 0, 36] = torch.nan
    with pytest.raises(DataError, match="NaN"):
        by_factor(halves, factor)


def test_masks_become_lengths_where_they_can():
    padding = (torch.arange(7) < torch.tensor([7, 3, 0])[:, None])[:, None, None, :]
    assert as_lengths(padding).flatten().tolist() == [7, 3, 0]
    assert as_lengths(torch.ones(4, 4, dtype=torch.bool).tril()).tolist() == [1, 2, 3, 4]
    left = padding.flip(-1)
    assert as_lengths(left) is left


def test_outputs_do_not_depend_on_padding_length(make_model):
    model = make_model("bert")
    hccs.nn.attach(model, calibrated(model, "bert"), backend="integer")
    with torch.no_grad():
        short, long = (model(**batch_for("bert", padded_to=width)).logits for width in (20, 41))
    torch.testing.assert_close(short, long, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_causal_models_generate_with_a_cache(make_model, name):
    model = make_model(name)
    hccs.nn.attach(model, calibrated(model, name), backend="integer")
    ids = sentences(count=2)["input_ids"][:1]
    with torch.no_grad():
        whole = model(ids).logits
        part = model(ids[:, :9]).logits
        torch.testing.assert_close(part[:, -1], whole[:, 8], rtol=1e-4, atol=1e-5)
        settings = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        cached, anew = (model.generate(ids[:, :5], use_cache=c, **settings) for c in (True, False))
    assert torch.equal(cached, anew) and cached.shape[1] == 9


def test_scales_survive_half_precision(make_model):
    model = make_model("bert")
    hccs.nn.attach(model, calibrated(model, "bert"), backend="integer")
    before = layer_of(model).factor_bits.clone()
    with torch.no_grad():
        assert model.bfloat16()(**batch_for("bert")).logits.dtype == torch.bfloat16
    assert torch.equal(layer_of(model.float()).factor_bits, before)


def test_training_is_refused(make_model):
    model = make_model("bert")
    hccs.nn.attach(model, calibrated(model, "bert"), backend="integer")
    batch = {**batch_for("bert"), "labels": torch.zeros(6, dtype=torch.long)}
    loss = model(**batch).loss  # with gradients on, as many people run inference
    with pytest.raises(ModelError, match="a backward pass"):
        loss.backward()
    with pytest.raises(ModelError, match="one in training mode"):
        model.train()(**batch)


def test_scales_are_the_largest_magnitudes_without_padding(make_model):
    model, batch = make_model("llama"), sentences()
    table = calibrated(model, "llama")
    alone = [
        {"input_ids": row[mask.bool()][None], "attention_mask": mask[mask.bool()][None]}
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    unpadded = hccs.nn.calibrate_operands(model, table, alone)
    np.testing.assert_allclose(unpadded.qkv_scale, table.qkv_scale, rtol=1e-5)
    assert table.qkv_scale.shape == (2, 4, 3)
    assert np.array_equal(
        table.qkv_scale[:, ::2, 1:], table.qkv_scale[:, 1::2, 1:]
    )  # two heads share k and v
    assert not np.array_equal(table.qkv_scale[:, ::2, 0], table.qkv_scale[:, 1::2, 0])


def test_scales_follow_the_weights(make_model):
    model = make_model("bert")
    table = calibrated(model, "bert")
    with torch.no_grad():
        for layer in attention_layers(model).values():
            layer.query.weight.mul_(3)
            layer.query.bias.mul_(3)
    after = hccs.nn.calibrate_operands(hccs.nn.attach(model, table), table, [batch_for("bert")])
    np.testing.assert_allclose(after.qkv_scale[0, :, 0], 3 * table.qkv_scale[0, :, 0], rtol=1e-4)
    np.testing.assert_allclose(after.qkv_scale[0, :, 1:], table.qkv_scale[0, :, 1:], rtol=1e-4)


def test_logits_are_collected_behind_integer_attention_too(make_model):
    model, batch = make_model("bert"), batch_for("bert")
    table = calibrated(model, "bert")
    hccs.nn.attach(model, table, backend="integer")
    stats = hccs.nn.collect(model, [batch], n=64)
    np.testing.assert_array_equal(stats.scale[0], table.scale[0])
    np.testing.assert_allclose(stats.scale[1], table.scale[1], rtol=0.2)
    assert not np.array_equal(stats.scale[1], table.scale[1])
    assert all(type(layer_of(model, i)).__name__ == "IntegerAttention" for i in (0, 1))


def test_every_way_to_a_table_keeps_the_scales(make_model):
    model, batches = make_model("bert"), [batch_for("bert")]
    refined = hccs.nn.refine(model, calibrated(model, "bert"), batches, steps=2)
    assert refined.qkv_scale is not None
    assert hccs.nn.current_table(hccs.nn.attach(model, refined, learnable=True)).qkv_scale is not None


def test_refusals(make_model):
    model = make_model("bert")
    table = calibrated(model, "bert")
    without = hccs.ParamTable(table.B, table.S, table.D, table.scale, 64, layers=table.layers)
    with pytest.raises(ModelError, match="calibrate_operands"):
        hccs.nn.attach(model, without, backend="integer")
    with pytest.raises(ModelError, match="i16_clb"):
        hccs.nn.attach(model, table, "i16_clb", backend="integer")
    with pytest.raises(ParameterError, match="with learnable"):
        hccs.nn.attach(model, table, learnable=True, backend="integer")
    with pytest.raises(ParameterError, match="'fixed'"):
        hccs.nn.attach(model, table, backend="fixed")
    with pytest.raises(DataError, match="at least one batch"):
        hccs.nn.calibrate_operands(model, table, [])
    with pytest.raises(ModelError, match="another model"):
        hccs.nn.calibrate_operands(make_model("distilbert"), table, [batch_for("distilbert")])
    hccs.nn.attach(model, table, backend="integer")
    layer = next(iter(attention_layers(model).values()))
    q = torch.zeros(1, 4, 5, 8)
    with pytest.raises(ModelError, match="softcap"):
        attention(layer, q, q, q, None, softcap=30.0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_a_layer_on_cuda_returns_the_bits_of_the_cpu(make_model, name):
    model = make_model(name)
    hccs.nn.attach(model, calibrated(model, name), backend="integer")
    layer = layer_of(model)
    inputs, expected = watched(model, layer, batch_for(name))
    tensors = {name: getattr(inputs, name).cuda() for name in ("query", "key", "value", "valid")}
    with torch.no_grad():
        got, _ = layer.cuda().attend(dataclasses.replace(inputs, **tensors))
    assert torch.equal(got.cpu(), expected)
