"""Which modules are attention layers, and what their masks mean."""

import functools
import inspect

import pytest
import torch
import transformers
from torch import nn
from transformers import AttentionInterface, modeling_utils
from transformers.models.bert.modeling_bert import BertSelfAttention

import hccs
import hccs.nn
from hccs.errors import ModelError
from hccs.nn.attaching import fill
from hccs.nn.interface import attention, attention_layers, boolean_mask, uses_interface
from hccs.nn.slots import FloatSoftmax
from tests.nn.conftest import ALL, VOCABULARY, batch_for

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
}


def albert():
    config = transformers.AlbertConfig(embedding_size=16, initializer_range=0.15, **SMALL)
    return transformers.AlbertForSequenceClassification(config)


def electra():
    config = transformers.ElectraConfig(embedding_size=16, initializer_range=0.15, **SMALL)
    return transformers.ElectraForSequenceClassification(config)


@pytest.mark.parametrize("name", [*ALL, "llama"])
def test_layers_of_every_architecture_are_found(make_model, name):
    assert len(attention_layers(make_model(name))) == 2


@pytest.mark.parametrize("make", [albert, electra])
def test_more_architectures_run_close_to_their_float_selves(make):
    torch.manual_seed(0)
    model, batch = make().eval(), batch_for("bert")
    with torch.no_grad():
        expected = model(**batch).logits
        table = hccs.calibrate(hccs.nn.collect(model, [batch], n=64), n=64)
        got = hccs.nn.attach(model, table)(**batch).logits
    assert not torch.equal(got, expected)
    assert (got - expected).norm() < 0.3 * expected.norm()
    # ALBERT's layers share one set of weights, and so one layer of the table.
    assert table.shape == (1 if make is albert else 2, 4)


@pytest.fixture
def without_source(monkeypatch):
    """As where only compiled files are installed."""

    def refuse(*_):
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", refuse)
    for kind in (transformers.BertPreTrainedModel, transformers.BertModel):
        monkeypatch.delattr(kind, "_can_set_attn_implementation_cached_value", raising=False)
    monkeypatch.setattr(
        transformers.BertForSequenceClassification,
        "_can_set_attn_implementation_cached_value",
        None,
        raising=False,
    )


def test_no_source_is_needed(make_model, without_source):
    model, batch = make_model("bert"), batch_for("bert")
    with torch.no_grad():
        expected = model(**batch).logits
        table = hccs.calibrate(hccs.nn.collect(model, [batch], n=64), n=64)
        got = hccs.nn.attach(model, table)(**batch).logits
        assert not torch.equal(got, expected)
        assert torch.equal(hccs.nn.detach(model)(**batch).logits, expected)


def decorated(function):
    @functools.wraps(function)
    def inner(*arguments, **options):
        return function(*arguments, **options)

    return inner


def decorated_without_trace(function):
    def inner(*arguments, **options):
        return function(*arguments, **options)

    return inner


class Inherits(BertSelfAttention):
    pass


class Continues(BertSelfAttention):
    def forward(self, *arguments, **options):
        return super().forward(*arguments, **options)


class Decorated(BertSelfAttention):
    forward = decorated(BertSelfAttention.forward)


class DecoratedWithoutTrace(BertSelfAttention):
    forward = decorated_without_trace(BertSelfAttention.forward)


class Replaces(BertSelfAttention):
    def forward(self, hidden_states, **options):
        return hidden_states, None


class Mentions(nn.Module):
    def forward(self, x):
        """ALL_ATTENTION_FUNCTIONS is spoken of here, and no more."""
        ALL_ATTENTION_FUNCTIONS = "ALL_ATTENTION_FUNCTIONS"
        return x, ALL_ATTENTION_FUNCTIONS


class ByModule(nn.Module):
    def forward(self, x):
        return modeling_utils.ALL_ATTENTION_FUNCTIONS.get_interface("eager", None)(x)


OTHER_NAME = AttentionInterface()


class ByAnotherName(nn.Module):
    def forward(self, x):
        return [OTHER_NAME["sdpa"](part) for part in x]


@pytest.mark.parametrize(
    "kind", [Inherits, Continues, Decorated, DecoratedWithoutTrace, ByModule, ByAnotherName]
)
def test_types_that_use_the_interface(kind):
    assert uses_interface(kind)


@pytest.mark.parametrize("kind", [Replaces, Mentions, nn.Module, nn.Linear, transformers.BertModel])
def test_types_that_do_not(kind):
    assert not uses_interface(kind)


# --- masks --------------------------------------------------------------------------------------------------

_tables = []


def _table(model, batch):
    """The table of the fixture's BERT, which is the same in every test."""
    if not _tables:
        _tables.append(hccs.calibrate(hccs.nn.collect(model, [batch], n=64), n=64))
    return _tables[0]


DTYPES = [torch.float32, torch.float16, torch.bfloat16]
HIDING = [-1e3, -1e4, -1e9, -1e30, "smallest", -torch.inf]


def additive(keep, hiding, dtype):
    value = torch.finfo(dtype).min if hiding == "smallest" else hiding
    # As people build them: the number rounded into the mask's dtype.
    return torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, torch.tensor(value).to(dtype).item())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hiding", HIDING)
def test_additive_masks_hide_what_they_hide_in_the_float_model(make_model, hiding, dtype):
    model, batch = make_model("bert"), batch_for("bert")
    ids, keys = batch["input_ids"], batch["attention_mask"].bool()
    keep = keys[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
    table = _table(model, batch)
    model.to(dtype)
    mask = additive(keep, hiding, dtype)
    other = torch.where(keys, ids, 7)
    with torch.no_grad():
        # What stands in hidden places changes nothing, in the float model as in ours.
        floating = [model(tokens, attention_mask=mask).logits for tokens in (ids, other)]
        assert torch.equal(*floating)
        hccs.nn.attach(model, table)
        expected = model(**batch).logits
        assert torch.equal(model(ids, attention_mask=mask).logits, expected)
        assert torch.equal(model(other, attention_mask=mask).logits, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [-0.5, 0.5, -30.0, -900.0, 1e4, torch.nan, torch.inf])
def test_biases_are_refused(make_model, bias, dtype):
    model, batch = make_model("bert"), batch_for("bert")
    hccs.nn.attach(model, _table(model, batch))
    model.to(dtype)
    mask = torch.zeros(6, 1, 20, 20, dtype=dtype)
    mask[2, 0, 3, 1] = bias
    with pytest.raises(ModelError, match=r"takes no bias on logits"), torch.no_grad():
        model(batch["input_ids"], attention_mask=mask)


def test_masks_of_other_kinds():
    keep = torch.tensor([[True, False, True]])
    assert boolean_mask(None, 2) is None
    assert boolean_mask(keep, 2).tolist() == [[True, False]]
    assert boolean_mask(torch.tensor([[-0.0, -1e4, 3.0]]), 2).tolist() == [[True, False]]  # 3 lies beyond
    with pytest.raises(ModelError, match=r"dtype torch\.int64"):
        boolean_mask(keep.long(), 3)


def test_compiled_models_keep_the_bits_and_the_refusal(make_model):
    model, batch = make_model("bert"), batch_for("bert")
    hccs.nn.attach(model, _table(model, batch))
    keep = batch["attention_mask"].bool()[:, None, None, :].expand(-1, 1, 20, -1)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        expected = model(**batch).logits
        assert torch.equal(compiled(**batch).logits, expected)
        mask = additive(keep, -1e4, torch.float32)
        assert torch.equal(compiled(batch["input_ids"], attention_mask=mask).logits, expected)
        with pytest.raises(RuntimeError, match="at most -1000"):
            compiled(batch["input_ids"], attention_mask=mask * 1e-4)
    torch._dynamo.reset()


@pytest.mark.parametrize("said", ["in the layer", "in the call"])
def test_layers_without_a_mask_hide_the_future_where_they_say_so(make_model, said):
    model = make_model("llama")
    fill({name: FloatSoftmax() for name in attention_layers(model)}, model)
    layer = model.model.layers[0].self_attn
    q, k, v = torch.randn(3, 1, 4, 5, 8)
    options = {} if said == "in the layer" else {"is_causal": True}
    layer.is_causal = said == "in the layer"
    got, _ = attention(layer, q, k, v, None, **options)
    expected, _ = attention(layer, q, k, v, torch.ones(5, 5, dtype=torch.bool).tril())
    assert torch.equal(got, expected)
    whole, _ = attention(layer, q, k, v, None, is_causal=False)
    assert not torch.equal(got, whole)


def test_keys_that_an_indexer_chose_are_refused(make_model):
    """Sparse attention hands them over beside a mask that shows all; eager attention puts them into it."""
    config = transformers.DeepseekV32Config(
        num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8,
        v_head_dim=16, first_k_dense_replace=2, index_topk=4, index_n_heads=2, index_head_dim=16, **SMALL,
    )  # fmt: skip
    model = transformers.DeepseekV32ForCausalLM(config).eval()
    fill({name: FloatSoftmax() for name in attention_layers(model)}, model)
    with torch.no_grad(), pytest.raises(ModelError, match="indices in DeepseekV32Attention"):
        model(torch.arange(5, 15)[None])
