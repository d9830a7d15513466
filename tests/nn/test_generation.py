"""`generate()` with integer attention: an int8 cache, and the tokens of the same model without one."""

import pytest
import torch
import transformers

import hccs
import hccs.nn
from hccs.nn.cache import Int8CacheLayer
from hccs.nn.interface import SLOT, attention_layers
from hccs.nn.slots import AttentionInputs
from tests.nn.conftest import VOCABULARY, sentences

SETTINGS = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
FORMS = {"one line": {}, "wide sums": {"sum_bits": 24}, "two lines": {"lines": 2}}


def mistral():
    """Layers that see the last eight tokens only."""
    config = transformers.MistralConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=37, max_position_embeddings=64, initializer_range=0.15,
        sliding_window=8,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.MistralForCausalLM(config).eval()


_tables: dict[tuple[str, str], hccs.ParamTable] = {}


def in_integers(model, form="one line"):
    """With the table of its kind: models of one kind are the same in every test."""
    kind = (type(model).__name__, form)
    if kind not in _tables:
        stats = hccs.nn.collect(model, [sentences()], n=64)
        _tables[kind] = hccs.calibrate(stats, n=64, **FORMS[form])
    return hccs.nn.attach(model, _tables[kind], backend="integer")


def prompt():
    return sentences(count=2)["input_ids"][:1, :7]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_tokens_are_those_without_a_cache(make_model, name, form):
    model = in_integers(make_model(name), form)
    cached, anew = (model.generate(prompt(), use_cache=c, **SETTINGS) for c in (True, False))
    assert torch.equal(cached, anew) and cached.shape[1] == 13


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_cache_holds_int8_of_the_key_heads(make_model, name):
    model = in_integers(make_model(name))
    found = model.generate(prompt(), return_dict_in_generate=True, **SETTINGS)
    for layer in found.past_key_values.layers:
        assert isinstance(layer, Int8CacheLayer)
        assert layer.keys.dtype == layer.values.dtype == torch.int8
        assert layer.keys.shape == (1, 2 if name == "llama" else 4, 12, 8)
    whole = model(found.sequences[:, :-1]).past_key_values
    for layer, anew in zip(found.past_key_values.layers, whole.layers, strict=True):
        assert (layer.keys.int() - anew.keys.int()).abs().max() <= 1  # float products of other shapes before


def test_attention_over_a_cache_has_the_same_bits(make_model):
    model = in_integers(make_model("llama"), "two lines")
    slot = getattr(next(iter(attention_layers(model).values())), SLOT)
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, 4, 40, 8, generator=generator)
    k, v = torch.randn(2, 2, 2, 40, 8, generator=generator)
    causal = torch.ones(40, 40, dtype=torch.bool).tril()
    expected, _ = slot.attend(AttentionInputs(q, k, v, causal, scaling=0.3))
    cache = Int8CacheLayer(slot)
    for begin, end in ((0, 30), (30, 31), (31, 33), (33, 40)):
        keys, values = cache.update(k[:, :, begin:end], v[:, :, begin:end])
        part, _ = slot.attend(
            AttentionInputs(q[:, :, begin:end], keys, values, causal[begin:end, :end], scaling=0.3)
        )
        assert torch.equal(part, expected[:, :, begin:end])


def test_steps_without_padding_have_no_mask(make_model):
    model, seen = in_integers(make_model("llama")), []
    slot = getattr(next(iter(attention_layers(model).values())), SLOT)
    attend = slot.attend
    slot.attend = lambda inputs: (seen.append(inputs.valid), attend(inputs))[1]
    model.generate(prompt(), **SETTINGS)
    assert seen[0].shape == (1, 1, 7, 7) and not seen[0].all()
    assert seen[1:] == [None] * 5
    seen.clear()
    model.generate(prompt(), attention_mask=(torch.arange(7) > 1).long()[None], **SETTINGS)
    assert all(not valid[..., :2].any() for valid in seen)
    seen.clear()
    model.generate(prompt(), cache_implementation="static", **SETTINGS)
    assert all(valid is not None for valid in seen)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_left_padding_changes_nothing(make_model, name):
    model = in_integers(make_model(name))
    rows = [sentences(seed=seed)["input_ids"][0, :length] for seed, length in ((1, 9), (2, 5), (3, 2))]
    ids = torch.stack([torch.nn.functional.pad(row, (9 - len(row), 0)) for row in rows])
    mask = torch.stack([torch.arange(9) >= 9 - len(row) for row in rows]).long()
    together = model.generate(ids, attention_mask=mask, **SETTINGS)[:, 9:]
    alone = [model.generate(row[None], attention_mask=torch.ones_like(row[None]), **SETTINGS) for row in rows]
    for row, given, expected in zip(rows, together, alone, strict=True):
        assert torch.equal(given, expected[0, len(row) :])


def test_beams_take_their_cache_along(make_model):
    model = in_integers(make_model("llama"))
    options = {**SETTINGS, "num_beams": 3, "num_return_sequences": 2}
    cached, anew = (model.generate(prompt(), use_cache=c, **options) for c in (True, False))
    assert torch.equal(cached, anew)


def test_a_cropped_cache_goes_on_where_it_was_cut(make_model):
    model, ids = in_integers(make_model("gpt2")), sentences()["input_ids"][:1]
    with torch.no_grad():
        cache = model(ids[:, :10]).past_key_values
        model(torch.flip(ids[:, 10:14], (1,)), past_key_values=cache)
        cache.crop(-4)
        assert cache.get_seq_length() == 10
        again = model(ids[:, 10:14], past_key_values=cache).logits
        torch.testing.assert_close(again, model(ids[:, :14]).logits[:, 10:], rtol=1e-4, atol=1e-5)


def test_repeated_selected_and_forgotten(make_model):
    slot = getattr(next(iter(attention_layers(in_integers(make_model("gpt2"))).values())), SLOT)
    cache, states = Int8CacheLayer(slot), torch.randn(2, 4, 5, 8)
    cache.update(states, states)
    held = cache.keys.clone()
    cache.batch_repeat_interleave(3)
    cache.reorder_cache(torch.tensor([5, 0, 1, 2, 3, 4]))
    cache.batch_select_indices(torch.tensor([0, 1]))
    keys, _ = cache.update(states[:, :, :1], states[:, :, :1])
    assert torch.equal(keys[0, :, :5], held[1]) and torch.equal(keys[1, :, :5], held[0])
    cache.reset()
    assert cache.get_seq_length() == 0
    assert cache.update(states, states)[0].shape == (2, 4, 5, 8)


def test_many_tokens_find_room(make_model):
    slot = getattr(next(iter(attention_layers(in_integers(make_model("gpt2"))).values())), SLOT)
    cache, states = Int8CacheLayer(slot), torch.randn(1, 4, 300, 8)
    for token in range(300):
        keys, values = cache.update(states[:, :, token : token + 1], states[:, :, token : token + 1])
    _, k, v = slot.integers(states, states, states)
    assert torch.equal(keys, k) and torch.equal(values, v)


def test_sliding_windows_and_static_caches_give_the_same_tokens(make_model):
    model = in_integers(mistral())
    cached, anew = (model.generate(prompt(), use_cache=c, **SETTINGS) for c in (True, False))
    assert torch.equal(cached, anew)
    model = in_integers(make_model("llama"))
    static = model.generate(prompt(), cache_implementation="static", **SETTINGS)
    assert torch.equal(static, model.generate(prompt(), use_cache=False, **SETTINGS))


def test_float_backends_and_detached_models_keep_floats(make_model):
    model = in_integers(make_model("llama"))
    table = hccs.nn.current_table(model)
    for change in (lambda: hccs.nn.attach(model, table, backend="float"), lambda: hccs.nn.detach(model)):
        change()
        layer = model(prompt()).past_key_values.layers[0]
        assert layer.keys.is_floating_point()
        assert not any(module._forward_pre_hooks for module in attention_layers(model).values())
