"""Wrapped, adapted, shared and empty models and batches: taken as meant, or refused by name."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hccs
import hccs.nn
from hccs.errors import DataError, ModelError
from hccs.nn.lowering.families import known_layers
from tests.nn.conftest import batch_for, bert

BATCHES = [batch_for("bert", count=24, seed=seed) for seed in range(2)]


def table_for(model):
    return hccs.calibrate(hccs.nn.collect(model, BATCHES, n=64), n=64)


class LoraLinear(torch.nn.Module):
    """An adapter with the attributes of peft's: the weight that it shows is the base layer's."""

    def __init__(self, base, rank=4):
        super().__init__()
        self.base_layer, self.merged, self.disable_adapters = base, False, False
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(rank, base.out_features, bias=False)})
        self.in_features, self.out_features = base.in_features, base.out_features

    @property
    def weight(self):
        return self.base_layer.weight

    @property
    def bias(self):
        return self.base_layer.bias

    def merge(self):
        a, b = self.lora_A["default"].weight, self.lora_B["default"].weight
        self.base_layer.weight.data += b @ a
        self.merged = True

    def forward(self, x):
        y = self.base_layer(x)
        off = self.merged or self.disable_adapters
        return y if off else y + self.lora_B["default"](self.lora_A["default"](x))


def correlation(model, whole):
    found = whole(BATCHES[0]["input_ids"].numpy(), BATCHES[0]["attention_mask"].numpy()).logits
    with torch.no_grad():
        expected = model(**BATCHES[0]).logits.numpy()
    return np.corrcoef(found.ravel(), expected.ravel())[0, 1]


def test_adapters_beside_weights_are_refused_until_they_are_merged(make_model):
    model = make_model("bert")
    for layer in model.bert.encoder.layer:
        layer.attention.self.query = LoraLinear(layer.attention.self.query)
        layer.output.dense = LoraLinear(layer.output.dense)
    adapters = [module for module in model.modules() if isinstance(module, LoraLinear)]
    table = table_for(model)
    for work in (
        lambda: hccs.nn.lower(model, table, BATCHES),
        lambda: hccs.nn.quantised(model, table, BATCHES).__enter__(),
        lambda: hccs.nn.reconstruct(hccs.nn.attach(model, table), BATCHES),
    ):
        with pytest.raises(ModelError, match=r"query with an adapter.*merge_and_unload"):
            work()
    hccs.nn.detach(model)
    for adapter in adapters:
        adapter.merge()
    assert correlation(model, hccs.nn.lower(model, table, BATCHES)) > 0.99
    for adapter in adapters:
        adapter.merged, adapter.disable_adapters = False, True
    assert correlation(model, hccs.nn.lower(model, table, BATCHES)) > 0.99


def test_adapters_of_peft_are_refused_until_they_are_merged(make_model):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["query", "value"], init_lora_weights=False)
    adapted = peft.get_peft_model(make_model("bert"), config).eval()
    inner = adapted.base_model.model
    table = table_for(inner)
    with pytest.raises(ModelError, match="adapter"):
        hccs.nn.lower(inner, table, BATCHES)
    merged = adapted.merge_and_unload()
    assert correlation(merged, hccs.nn.lower(merged, table, BATCHES)) > 0.99


def test_forward_hooks_are_refused_by_name(make_model):
    model = make_model("bert")
    table = table_for(model)

    def doubled(module, inputs, output):
        return 2 * output

    dense = model.bert.encoder.layer[1].intermediate.dense
    for register in (dense.register_forward_hook, dense.register_forward_pre_hook):
        handle = register(doubled)
        with pytest.raises(ModelError, match=r"doubled on bert\.encoder\.layer\.1\.intermediate\.dense"):
            hccs.nn.lower(model, table, BATCHES)
        handle.remove()
    model(**BATCHES[0], output_hidden_states=True)  # transformers leaves hooks of its own
    assert hccs.nn.lower(model, table, BATCHES)


def test_parametrised_weights_are_lowered_as_computed_and_not_written(make_model):
    model = make_model("bert")

    class Doubled(torch.nn.Module):
        def forward(self, weight):
            return 2 * weight

    torch.nn.utils.parametrize.register_parametrization(
        model.bert.encoder.layer[0].output.dense, "weight", Doubled()
    )
    table = table_for(model)
    assert correlation(model, hccs.nn.lower(model, table, BATCHES)) > 0.99
    with pytest.raises(ModelError, match="parametrization"):
        hccs.nn.reconstruct(hccs.nn.attach(model, table), BATCHES)


@pytest.mark.parametrize("part", ["model", "encoder"])
def test_compiled_models_are_those_they_wrap(part, make_model):
    model = make_model("bert")
    table = table_for(model)
    if part == "encoder":
        given = model
        model.bert.encoder = torch.compile(model.bert.encoder, backend="eager")
    else:
        given = torch.compile(model, backend="eager")
    assert hccs.nn.collect(given, BATCHES, n=64).layers == table.layers
    assert hccs.nn.attach(given, table) is given
    assert hccs.nn.current_table(given).layers == table.layers
    with torch.no_grad():
        now = given(**BATCHES[0]).logits
        expected = hccs.nn.attach(make_model("bert"), table)(**BATCHES[0]).logits
    torch.testing.assert_close(now, expected, rtol=1e-4, atol=1e-5)
    assert hccs.nn.detach(given) is given


def test_every_function_takes_a_compiled_model(make_model):
    model = make_model("bert")
    teacher = copy.deepcopy(model)
    given = torch.compile(model, backend="eager")
    table = table_for(given)
    assert hccs.nn.lower(given, table, BATCHES)
    assert hccs.nn.refine(given, table, BATCHES, steps=2).shape == table.shape
    with hccs.nn.quantised(given, table, BATCHES) as plan:
        assert hccs.nn.reconstruct(given, BATCHES, teacher=torch.compile(teacher, backend="eager"))
        assert plan.lower()
    assert len(known_layers(given)) == 2


def test_models_that_share_a_configuration_stay_apart():
    torch.manual_seed(0)
    first = bert().eval()
    config = first.config
    second = transformers.BertForSequenceClassification(config).eval()
    entries = copy.deepcopy(config.to_dict())
    table = table_for(first)
    hccs.nn.attach(first, table)
    assert config.to_dict() == entries and second.config is config
    third = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for model in (second, third):
            assert model(**BATCHES[0]).logits.isfinite().all()
    # A model built from the configuration of one with HCCS gets its own once HCCS is attached to it.
    fourth = transformers.BertForSequenceClassification(first.config).eval()
    hccs.nn.detach(hccs.nn.attach(fourth, table_for(second)))
    assert np.array_equal(hccs.nn.current_table(first).B, table.B)
    assert first.config._attn_implementation == "hccs"
    assert second.config._attn_implementation != "hccs"


def test_collecting_leaves_the_configuration_the_same_object(make_model):
    model = make_model("bert")
    config = model.config
    table_for(model)
    assert model.config is config and model.bert.config is config


def test_integers_inside_integers_are_refused_and_the_outer_block_goes_on(make_model):
    model = make_model("bert")
    table = table_for(model)
    with hccs.nn.quantised(model, table, BATCHES) as plan:
        with torch.no_grad():
            expected = model(**BATCHES[0]).logits
        for inner in (hccs.nn.quantised(model, table, BATCHES), plan.training()):
            with pytest.raises(ModelError, match="computes in integers already"), inner:
                pass
        with torch.no_grad():
            assert torch.equal(model(**BATCHES[0]).logits, expected)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_forward_that_a_module_had_before_is_put_back(make_model):
    """accelerate moves weights by giving modules a forward of their own."""
    model = make_model("bert")
    table = table_for(model)
    dense = model.bert.encoder.layer[0].output.dense
    own = dense.forward
    dense.forward = own
    with hccs.nn.quantised(model, table, BATCHES):
        pass
    assert vars(dense)["forward"] is own


def test_models_without_weights_are_refused(make_model):
    table = table_for(make_model("bert"))
    model = make_model("bert").to("meta")
    for work in (
        lambda: hccs.nn.collect(model, BATCHES),
        lambda: hccs.nn.attach(model, table),
        lambda: hccs.nn.lower(model, table, BATCHES),
        lambda: hccs.nn.refine(model, table, BATCHES),
    ):
        with pytest.raises(ModelError, match="meta device"):
            work()


@pytest.mark.parametrize("shape", [(0, 8), (2, 0)])
def test_batches_of_nothing_are_refused(shape, make_model):
    model = make_model("bert")
    table = table_for(model)
    nothing = torch.zeros(shape, dtype=torch.long)
    for batch in ({"input_ids": nothing}, (nothing,)):
        for work in (
            lambda b=batch: hccs.nn.collect(model, [b]),
            lambda b=batch: hccs.nn.lower(model, table, [b]),
        ):
            with pytest.raises(DataError, match="at least one example"):
                work()
    with pytest.raises(DataError, match="at least one example"):
        hccs.nn.refine(model, table, [{"input_ids": nothing}])


def test_batches_that_are_no_mappings_are_refused_where_names_matter(make_model):
    model = make_model("bert")
    table = table_for(model)
    unnamed = [(BATCHES[0]["input_ids"],)]
    assert hccs.nn.lower(model, table, unnamed)
    with pytest.raises(DataError, match="map names to tensors"):
        hccs.nn.refine(model, table, unnamed)


@pytest.mark.parametrize("then", ["float", "detached"])
def test_an_int8_cache_is_refused_where_attention_is_on_floats(then, make_model):
    model, batch = make_model("gpt2"), batch_for("gpt2")
    table = hccs.calibrate(hccs.nn.collect(model, [batch], n=64), n=64)
    hccs.nn.attach(model, table, backend="integer")
    with torch.no_grad():
        cache = model(batch["input_ids"], use_cache=True).past_key_values
        if then == "float":
            hccs.nn.attach(model, table)
        else:
            hccs.nn.detach(model)
        with pytest.raises(ModelError, match="int8 cache of integer attention"):
            model(batch["input_ids"][:, :1], past_key_values=cache)


def test_base_models_are_told_what_is_supported():
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=37
    )
    model = transformers.BertModel(config).eval()
    with pytest.raises(ModelError, match=r"BertModel.*TokenClassification.*embeddings"):
        hccs.nn.lower(model, table_for(model), BATCHES)


def test_near_duplicates_are_solved_or_left_alone():
    """60 sentences that differ in one token: activations lie far from zero and hardly vary."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=192,
        num_labels=1, max_position_embeddings=64, initializer_range=0.05,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for layer in model.bert.encoder.layer:
            layer.attention.self.value.bias += 300
    ids = torch.arange(5, 17).repeat(60, 1)
    ids[:, 6] = torch.arange(60) % 4 + 20
    batches = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}]
    teacher = copy.deepcopy(model)
    table = hccs.calibrate(hccs.nn.collect(model, batches, n=16), n=16)
    found = hccs.nn.reconstruct(hccs.nn.attach(model, table), batches, teacher=teacher)
    assert all(np.isfinite(matrix.after) and matrix.after <= matrix.before for matrix in found)
    assert all(p.isfinite().all() for p in model.parameters())
