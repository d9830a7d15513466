"""`generate()` with integer attention on a GPU: the cache, the attention and the tokens of the CPU.

Heads of 64 and 32 columns and prompts of hundreds of tokens, so that steps take the kernels of one query and
of few queries.
"""

import copy
import functools
import warnings

import pytest
import torch
import transformers

import hccs
import hccs.nn
from hccs.nn.cache import Int8CacheLayer
from hccs.nn.interface import SLOT, attention_layers
from hccs.nn.slots import AttentionInputs
from tests.nn.conftest import VOCABULARY, sentences

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
SETTINGS = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
FORMS = {"wide sums": {"sum_bits": 24}, "two lines": {"lines": 2}}
# Of a logit's lead over the next token's: less may be decided by the order of float sums before attention.
NEAR = 0.02


def gpt2():
    """Heads of 64 columns, each with keys of its own."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=1024, n_embd=128, n_layer=2, n_head=2, initializer_range=0.15
    )
    return transformers.GPT2LMHeadModel(config)


def llama():
    """Four query heads of 32 columns share two key heads."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=96, max_position_embeddings=1024, initializer_range=0.15,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@functools.cache
def made(make, form):
    """A model, and its table."""
    torch.manual_seed(0)
    model = make().eval()
    return model, hccs.calibrate(hccs.nn.collect(model, [sentences()], n=64), n=64, **FORMS[form])


def in_integers(make, form):
    """On the CPU and on the GPU."""
    model, table = made(make, form)
    model = hccs.nn.attach(copy.deepcopy(model), table, backend="integer")
    return model, copy.deepcopy(model).cuda()


@pytest.mark.parametrize(
    ("form", "dtype"),
    [("wide sums", torch.float32), ("two lines", torch.float32), ("two lines", torch.bfloat16)],
    ids=str,
)
@pytest.mark.parametrize("make", [gpt2, llama])
def test_cache_and_attention_have_the_bits_of_the_cpu(make, form, dtype):
    models = in_integers(make, form)
    slots = [getattr(next(iter(attention_layers(model).values())), SLOT) for model in models]
    heads, key_heads, d = (2, 2, 64) if make is gpt2 else (4, 2, 32)
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(3, heads, 604, d, generator=generator).to(dtype)
    k, v = torch.randn(2, 3, key_heads, 604, d, generator=generator).to(dtype)
    causal = torch.ones(604, 604, dtype=torch.bool).tril()[None, None].repeat(3, 1, 1, 1)
    padded = causal.clone()
    padded[0, :, :, :20] = False
    caches = [Int8CacheLayer(slot) for slot in slots]
    for begin, end, mask in [(0, 600, causal), (600, 601, None), (601, 602, padded), (602, 604, causal)]:
        found = []
        for slot, cache in zip(slots, caches, strict=True):
            where = slot.factor_bits.device
            part = [x[:, :, begin:end].to(where) for x in (q, k, v)]
            keys, values = cache.update(*part[1:])
            assert keys.device == values.device == where
            valid = None if mask is None else mask[:, :, begin:end, :end].to(where)
            out, _ = slot.attend(AttentionInputs(part[0], keys, values, valid, scaling=0.1))
            assert out.dtype == dtype and out.device == where
            found.append([x.cpu() for x in (keys, values, out)])
        for on_cpu, on_gpu in zip(*found, strict=True):
            assert torch.equal(on_cpu, on_gpu), (begin, end)
    hccs.ops.synchronise()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", [gpt2, llama])
def test_tokens_are_those_of_the_cpu(make, form):
    models = in_integers(make, form)
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1, VOCABULARY, (2, 530), generator=generator)
    padded = torch.ones_like(ids)
    padded[1, :9] = 0  # one sequence, on the left
    compared = 0
    for mask in (torch.ones_like(ids), padded):
        cpu, gpu = (
            model.generate(
                ids.to(model.device), attention_mask=mask.to(model.device), return_dict_in_generate=True,
                output_logits=True, **SETTINGS,
            )
            for model in models
        )  # fmt: skip
        for layer in gpu.past_key_values.layers:
            assert isinstance(layer, Int8CacheLayer)
            assert layer.keys.is_cuda and layer.keys.dtype == torch.int8 and layer.keys.shape[1] == 2
        for row in range(2):
            for step, logits in enumerate(cpu.logits):
                torch.testing.assert_close(gpu.logits[step][row].cpu(), logits[row], rtol=0.05, atol=0.05)
                lead = logits[row].topk(2).values
                if lead[0] - lead[1] < NEAR:
                    break  # from here on they may go apart
                assert gpu.sequences[row, 530 + step] == cpu.sequences[row, 530 + step], (row, step)
                compared += 1
    assert compared >= 8
    hccs.ops.synchronise()


def test_a_model_in_halves_generates():
    _, model = in_integers(llama, "two lines")
    model = model.to(torch.bfloat16)
    ids = torch.randint(1, VOCABULARY, (2, 300), device="cuda")
    cached, anew = (model.generate(ids, use_cache=cache, **SETTINGS) for cache in (True, False))
    assert cached.shape == anew.shape == (2, 306)
    hccs.ops.synchronise()


def require_close(found, expected):
    """Tokens are the same until two are almost equally likely; scores differ by the order of float sums."""
    first = expected.sequences.shape[1] - len(expected.logits)
    for place, (ours, logits) in enumerate(zip(found.logits, expected.logits, strict=True), first):
        torch.testing.assert_close(ours, logits, rtol=0.05, atol=0.05)
        best, second = logits.topk(2).values.unbind(-1)
        if (best - second).min() < NEAR:
            return
        assert torch.equal(found.sequences[:, : place + 1], expected.sequences[:, : place + 1])


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("padded", [False, True])
def test_recorded_steps_are_those_of_ordinary_generation(make, padded):
    _, model = in_integers(make, "two lines")
    generator = torch.Generator().manual_seed(3)
    for tokens in (61, 250):  # the room of the cache ends within the steps, and does not
        ids = torch.randint(1, VOCABULARY, (3, tokens), generator=generator).cuda()
        mask = torch.ones_like(ids)
        mask[1, :9] = 0 if padded else 1
        asked = {"attention_mask": mask, "return_dict_in_generate": True, "output_logits": True, **SETTINGS}
        expected = model.generate(ids, **asked)
        with warnings.catch_warnings(), hccs.nn.recorded_steps(model):
            warnings.simplefilter("error")
            found = [model.generate(ids, **asked) for _ in range(2)]
            drawn = model.generate(ids, **{**asked, "do_sample": True})
        for again in found:
            require_close(again, expected)
        assert drawn.sequences.shape == expected.sequences.shape
    hccs.ops.synchronise()


def test_a_step_that_cannot_be_recorded_runs_as_before(monkeypatch):
    _, model = in_integers(llama, "two lines")
    ids = torch.randint(1, VOCABULARY, (2, 20), device="cuda")
    asked = {"return_dict_in_generate": True, "output_logits": True, **SETTINGS}
    expected = model.generate(ids, **asked)
    forward = type(model.model).forward

    def looks(self, *args, past_key_values=None, **given):
        int(past_key_values.get_seq_length())  # waits for the GPU
        return forward(self, *args, past_key_values=past_key_values, **given)

    monkeypatch.setattr(type(model.model), "forward", looks)
    with hccs.nn.recorded_steps(model), pytest.warns(UserWarning, match="does not record"):
        found = model.generate(ids, **asked)
        drawn = model.generate(ids, **{**asked, "do_sample": True})
    require_close(found, expected)
    assert drawn.sequences.shape == expected.sequences.shape
    hccs.ops.synchronise()


def test_static_caches_have_the_scores_of_growing_ones():
    _, model = in_integers(llama, "two lines")
    ids = torch.randint(1, VOCABULARY, (2, 40), device="cuda")
    asked = {"return_dict_in_generate": True, "output_logits": True, "disable_compile": True, **SETTINGS}
    expected = model.generate(ids, **asked)
    require_close(model.generate(ids, cache_implementation="static", **asked), expected)
    hccs.ops.synchronise()
