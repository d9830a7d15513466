"""Generation over an int8 cache on a GPU that is not there: known steps have the bits of the CPU."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hccs
import hccs.nn
from hccs.backends.triton import quantise
from hccs.backends.triton.attention import cached_step
from hccs.nn.cache import Int8CacheLayer
from hccs.nn.integer import IntegerAttention
from hccs.nn.slots import AttentionInputs
from tests.backends.triton_interpreter.memory import Memory
from tests.backends.triton_interpreter.test_known_calls import Started, known
from tests.backends.without_gpu import pretended

__all__ = ["known"]  # a fixture
HEADS, KV_HEADS, D = 4, 2, 32
PROMPT, STEPS = 60, 15  # beyond the room for 64 tokens, and the class of as many


@pytest.fixture
def steps(known, monkeypatch):
    """Steps that were known, one after the other, on a GPU that `with` pretends."""
    found = []

    def noted(*given):
        result = cached_step.step_again(*given)
        found.append(result is not None)
        return result

    monkeypatch.setattr(quantise, "INTERPRETED", False)
    monkeypatch.setattr(quantise, "_by_factors", Started(quantise._by_factors))
    monkeypatch.setattr(quantise, "_known", {})
    monkeypatch.setattr(cached_step, "_known", {})
    monkeypatch.setattr("hccs.backends.triton.attention.step_again", noted)
    monkeypatch.setattr(Memory, "require", lambda *_: None)  # addresses are those of views
    return found


def slot(step):
    """An attention layer whose q, k and v have their own steps."""
    ones = np.ones((1, HEADS), np.int64)
    table = hccs.ParamTable(
        B=60 * ones, S=ones, D=40 * ones, scale=0.1 * ones, n=512,
        qkv_scale=np.full((1, HEADS, 3), step),
    )  # fmt: skip
    return IntegerAttention(table, 0, hccs.Mode.I16_DIV).eval()


def padding(cache):
    """A mask that hides the first keys."""
    tokens = cache.get_seq_length() + 1
    return (torch.arange(tokens) >= 3).expand(2, 1, 1, tokens)


def back(cache):
    cache.crop(-5)


def swap(cache):
    cache.reorder_cache(torch.tensor([1, 0]))


def copied(cache):
    cache.keys, cache.values = cache.keys.clone(), cache.values.clone()


def outputs(dtype, changes):
    """Of two layers in turns, and what their caches hold at the end."""
    generator = torch.Generator().manual_seed(0)
    slots = slot(0.02), slot(0.03)
    caches, found = [Int8CacheLayer(own) for own in slots], []
    with torch.no_grad():
        for i in range(STEPS):
            tokens = PROMPT if i == 0 else 1
            for own, cache in zip(slots, caches, strict=True):
                q, k, v = (
                    torch.randn(2, tokens, heads, D, generator=generator).to(dtype).transpose(1, 2)
                    for heads in (HEADS, KV_HEADS, KV_HEADS)
                )
                mask = changes.get(i, lambda _: None)(cache)
                keys, values = cache.update(k, v)
                out, _ = own.attend(AttentionInputs(q, keys, values, mask, scaling=0.1))
                found.append(out.clone())
    return [*found, *(x.clone() for cache in caches for x in (cache.keys, cache.values))]


# The interpreter cuts bfloat16 off instead of rounding it.
@pytest.mark.parametrize(
    ("dtype", "changes"),
    [
        (torch.float16, {}),
        (torch.float32, {7: padding}),
        (torch.float16, {9: back, 11: swap, 13: copied}),
    ],
    ids=["halves", "padding", "other caches"],
)
def test_steps_have_the_bits_of_the_cpu(dtype, changes, steps, monkeypatch):
    expected = outputs(dtype, changes)
    assert not steps
    with pretended(monkeypatch):
        found = outputs(dtype, changes)
        hccs.ops.synchronise()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert sum(steps) >= 2 * (STEPS - 5 - 2 * len(changes)), steps


def test_float_caches_are_quantised_whole(monkeypatch):
    """Static caches and those with windows hold floats, and more keys than a step has queries."""
    own, generator = slot(0.02), torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, tokens, D, generator=generator)
        for heads, tokens in ((HEADS, 1), (KV_HEADS, 70), (KV_HEADS, 70))
    )

    def output():
        with torch.no_grad():
            return own.attend(AttentionInputs(q, k, v, None, scaling=0.1))[0]

    with monkeypatch.context() as only, pretended(only):
        found = output()
    assert torch.equal(found, output())  # now: memory that was left as it was must not hold the answer
