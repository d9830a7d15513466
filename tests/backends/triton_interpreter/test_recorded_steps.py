"""Generation by recorded steps on a GPU that is not there: the tokens and scores of steps that are not."""

import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hccs
import hccs.nn
from hccs.errors import ModelError
from tests.backends.triton_interpreter.memory import Memory
from tests.backends.without_gpu import Graph, pretended
from tests.nn.conftest import VOCABULARY, sentences

SETTINGS = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, "return_dict_in_generate": True}
SHAPE = dict(
    vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    intermediate_size=48, max_position_embeddings=256, initializer_range=0.15,
)  # fmt: skip


def in_integers(model):
    table = hccs.calibrate(hccs.nn.collect(model, [sentences()], n=256), n=256, lines=2)
    return hccs.nn.attach(model.eval(), table, backend="integer")


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    return in_integers(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)))


@pytest.fixture
def replays(monkeypatch):
    """The graphs that a GPU replays which is not there. No recording on it may be the last one and fail."""
    monkeypatch.setattr(Memory, "require", lambda *_: None)  # addresses are those of views
    found = []
    replay = Graph.replay
    monkeypatch.setattr(Graph, "replay", lambda self: (found.append(self), replay(self))[1])
    with pretended(monkeypatch) as host:
        yield found
        assert not host.failed


def prompts(tokens, texts=2):
    return torch.randint(1, VOCABULARY, (texts, tokens), generator=torch.Generator().manual_seed(tokens))


def generated(model, ids, mask=None, new=7, **options):
    mask = torch.ones_like(ids) if mask is None else mask
    asked = {"attention_mask": mask, "max_new_tokens": new, "output_logits": True, **SETTINGS, **options}
    return model.generate(ids, **asked)


def require_same(found, expected):
    assert torch.equal(found.sequences, expected.sequences)
    assert all(torch.equal(a, b) for a, b in zip(found.logits, expected.logits, strict=True))
    for a, b in zip(found.past_key_values.layers, expected.past_key_values.layers, strict=True):
        assert torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)


@pytest.mark.parametrize("padded", [False, True])
def test_tokens_scores_and_caches_are_those_of_ordinary_steps(llama, replays, padded):
    ids = prompts(61)
    mask = torch.ones_like(ids)
    mask[1, :9] = 0 if padded else 1
    with torch.inference_mode(padded):
        expected = generated(llama, ids, mask)
        assert not replays
        with hccs.nn.recorded_steps(llama):
            found = generated(llama, ids, mask)
    require_same(found, expected)
    # Of six steps one makes the second room. A recording is tried at once, on the step that it is made of.
    assert len(replays) == 6 - 1
    hccs.ops.synchronise()


def test_windows_that_only_the_mask_knows_stay(replays):
    """A cache that is given by the caller keeps all keys; the model's mask hides those before the window."""
    torch.manual_seed(1)
    model = in_integers(
        transformers.MistralForCausalLM(transformers.MistralConfig(**SHAPE, sliding_window=8))
    )
    ids = prompts(20)
    expected = generated(model, ids, new=5, past_key_values=transformers.DynamicCache())
    with hccs.nn.recorded_steps(model):
        found = generated(model, ids, new=5, past_key_values=transformers.DynamicCache())
    require_same(found, expected)
    assert len(replays) == 4


def by_length(given):
    """A graph would repeat what Python did for one length."""
    int(given["past_key_values"].get_seq_length())


def by_shape(given):
    """A recording's mask is as wide as all of the cache's memory."""
    given["position_ids"] = given["position_ids"] + given["attention_mask"].shape[1]


@pytest.mark.parametrize(
    ("looks", "warning"), [(by_length, "stream is capturing"), (by_shape, "another answer")]
)
def test_models_that_no_graph_can_follow_run_as_before(looks, warning, llama, replays, monkeypatch):
    kind = transformers.models.llama.modeling_llama.LlamaModel
    forward = kind.forward

    def looking(self, **given):
        looks(given)
        return forward(self, **given)

    monkeypatch.setattr(kind, "forward", looking)
    ids = prompts(12)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    expected = generated(llama, ids, mask, new=4)
    with hccs.nn.recorded_steps(llama), pytest.warns(UserWarning, match=warning):
        found = generated(llama, ids, mask, new=4)
    require_same(found, expected)
    assert not replays


def test_other_calls_inside_run_as_before(llama, replays):
    ids = prompts(10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({"num_beams": 2}, {"use_cache": False}, {"cache_implementation": "static"}):
            asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 3, **SETTINGS, **options}
            expected = llama.generate(ids, **asked).sequences
            with hccs.nn.recorded_steps(llama):
                assert torch.equal(llama.generate(ids, **asked).sequences, expected)
    assert not replays


def test_weights_that_have_moved_are_noticed(llama, replays):
    """A graph reads them where they were. Here every step is right by itself, too."""
    ids = prompts(12)
    with torch.no_grad(), hccs.nn.recorded_steps(llama):
        cache = llama(ids, attention_mask=torch.ones_like(ids), use_cache=True).past_key_values
        for step in range(4):  # recorded, replayed, recorded once more, replayed
            mask = torch.ones(2, 13 + step, dtype=torch.long)
            given = {"input_ids": ids[:, step : step + 1], "attention_mask": mask, "past_key_values": cache}
            if step == 2:
                llama.lm_head.weight.data = -llama.lm_head.weight.data
            scores = llama(**given, use_cache=True).logits
            whole = torch.cat([ids, ids[:, : step + 1]], 1)
            expected = llama(whole, attention_mask=mask, use_cache=False).logits[:, -1:]
            torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)
    assert len(replays) == 4 and len({*replays}) == 2


def test_models_in_floats_are_refused(llama):
    table = hccs.nn.current_table(llama)
    model = hccs.nn.attach(transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)), table)
    with pytest.raises(ModelError, match="integer"), hccs.nn.recorded_steps(model):
        pass
    assert "forward" not in vars(model)
