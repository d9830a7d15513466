"""Int8 caches that are copied, rolled back, handed over and taken elsewhere: right, or refused."""

import copy
from dataclasses import replace

import pytest
import torch
import transformers

import hccs
import hccs.nn
from hccs.errors import ModelError
from hccs.nn.cache import Int8CacheLayer
from hccs.nn.interface import SLOT, attention_layers
from tests.nn.conftest import VOCABULARY, sentences
from tests.nn.test_generation import SETTINGS, in_integers, prompt


def slot_of(model):
    return getattr(next(iter(attention_layers(model).values())), SLOT)


def test_a_copied_prefix_serves_several_prompts(make_model):
    model = in_integers(make_model("llama"))
    with torch.no_grad():
        prefix = model(prompt()).past_key_values
    for seed in (1, 2):
        ids = torch.cat([prompt(), sentences(seed=seed)["input_ids"][:1, :4]], 1)
        continued = model.generate(ids, past_key_values=copy.deepcopy(prefix), **SETTINGS)
        assert torch.equal(continued, model.generate(ids, use_cache=False, **SETTINGS))


def test_bare_integers_in_a_new_cache_are_refused(make_model):
    """torch.cat would append floats to them."""
    model = in_integers(make_model("llama"))
    with torch.no_grad():
        made = model(prompt()).past_key_values
        bare = transformers.DynamicCache(ddp_cache_data=[(k, v) for k, v, _ in made])
        with pytest.raises(ModelError, match=r"copy\.deepcopy"):
            model(prompt()[:, :1], past_key_values=bare)


def test_a_cache_of_other_scales_is_refused(make_model):
    model = in_integers(make_model("gpt2"))
    table = hccs.nn.current_table(model)
    with torch.no_grad():
        made = model(prompt()).past_key_values
        hccs.nn.attach(model, replace(table, B=table.B - 1), backend="integer")
        model(prompt()[:, :1], past_key_values=made)
        hccs.nn.attach(model, replace(table, qkv_scale=2 * table.qkv_scale), backend="integer")
        with pytest.raises(ModelError, match="other scales"):
            model(prompt()[:, :1], past_key_values=made)


def test_what_was_handed_out_stays_when_a_cache_goes_another_way(make_model):
    cache, states = Int8CacheLayer(slot_of(in_integers(make_model("gpt2")))), torch.randn(1, 4, 12, 8)
    cache.update(states[:, :, :8], states[:, :, :8])
    before, held = cache.keys, cache.keys.clone()
    branch = copy.copy(cache)
    cache.crop(-3)
    cache.update(states[:, :, 8:], states[:, :, 8:])
    assert torch.equal(before, held)
    ours = cache.keys.clone()
    branch.update(states[:, :, :1], states[:, :, :1])
    other = copy.copy(branch)
    branch.update(states[:, :, 1:2], states[:, :, 1:2])
    one_way = branch.keys.clone()
    other.update(states[:, :, 2:3], states[:, :, 2:3])
    assert torch.equal(cache.keys, ours) and torch.equal(branch.keys, one_way)
    assert torch.equal(other.keys[:, :, :9], one_way[:, :, :9])


def test_a_cache_of_inference_mode_goes_on_outside(make_model):
    model = in_integers(make_model("llama"))
    with torch.inference_mode():
        cache = model(prompt()[:, :5]).past_key_values
    with torch.no_grad():
        continued = model(prompt()[:, 5:], past_key_values=cache).logits
        torch.testing.assert_close(continued, model(prompt()).logits[:, 5:], rtol=1e-4, atol=1e-5)


def test_layers_that_share_keys_with_later_ones_keep_floats():
    config = transformers.Gemma3nTextConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, head_dim=8,
        num_key_value_heads=2, intermediate_size=37, max_position_embeddings=64, sliding_window=4,
        layer_types=["sliding_attention", "full_attention"] * 2, num_kv_shared_layers=2,
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCABULARY, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = in_integers(transformers.Gemma3nForCausalLM(config).eval())
    cached, anew = (model.generate(prompt(), use_cache=c, **SETTINGS) for c in (True, False))
    assert torch.equal(cached, anew)


def test_heads_that_share_keys_need_one_scale(make_model):
    model = in_integers(make_model("llama"))
    table = hccs.nn.current_table(model)
    uneven = table.qkv_scale.copy()
    uneven[:, 1, 1:] *= 1.5
    hccs.nn.attach(model, replace(table, qkv_scale=uneven), backend="integer")
    with torch.no_grad(), pytest.raises(ModelError, match="every 2 query heads"):
        model(prompt())
    uneven[:, 0, 1:] *= 1.5
    hccs.nn.attach(model, replace(table, qkv_scale=uneven), backend="integer")
    with torch.no_grad():
        model(prompt())


@pytest.mark.parametrize("padded", [False, True])
def test_prompts_without_padding_are_known_to_be_causal(make_model, padded):
    model, seen = in_integers(make_model("llama")), []
    slot = slot_of(model)
    attend = slot.attend

    def noted(inputs):
        seen.append((inputs.query.shape[-2], inputs.causal))
        if inputs.causal:
            by_mask, _ = attend(replace(inputs, causal=False))
            assert torch.equal(attend(inputs)[0], by_mask)
        return attend(inputs)

    slot.attend = noted
    mask = torch.ones_like(prompt())
    mask[:, 0] = 0 if padded else 1
    model.generate(prompt(), attention_mask=mask, **{**SETTINGS, "max_new_tokens": 2})
    assert seen == [(7, not padded), (1, False)]
    seen.clear()
    with torch.no_grad():
        model(prompt()[:, 3:], past_key_values=model(prompt()[:, :3]).past_key_values)
    model.generate(prompt(), cache_implementation="static", **{**SETTINGS, "max_new_tokens": 2})
    assert seen[:3] == [(3, True), (4, False), (7, False)]


def test_a_causal_mask_that_was_written_into_is_taken_as_it_is(make_model):
    """As models do whose first tokens see each other."""
    model, seen = in_integers(make_model("llama")), []
    slot = slot_of(model)
    attend = slot.attend
    slot.attend = lambda inputs: (seen.append((inputs.causal, bool(inputs.valid.all()))), attend(inputs))[1]

    def shows_all(layer, args, kwargs):
        kwargs["attention_mask"].fill_(True)

    with torch.no_grad():
        model(prompt())
        model.model.layers[0].self_attn.register_forward_pre_hook(shows_all, with_kwargs=True)
        model(prompt())
    with torch.inference_mode():  # tensors do not tell there whether they were written into
        model(prompt())
    assert seen == [(True, False), (False, True), (False, True)]
