import numpy as np
import pytest
import torch

import hccs
import hccs.nn
from hccs.errors import ModelError
from hccs.nn.functional import quantise
from hccs.reference.softmax import softmax as reference_softmax
from tests.nn.conftest import ALL, TEXT_ENCODERS, batch_for, sentences


def converted(model, name, mode="i16_div"):
    table = hccs.calibrate(hccs.nn.collect(model, [batch_for(name)], n=64), n=64)
    return hccs.nn.attach(model, table, mode), table


@pytest.mark.parametrize("name", ALL)
def test_every_architecture_runs_close_to_its_float_self(make_model, name):
    model = make_model(name)
    batch = batch_for(name)
    with torch.no_grad():
        expected = model(**batch).logits
        converted(model, name)
        got = model(**batch).logits
        assert not torch.equal(got, expected)
        assert (got - expected).norm() < 0.3 * expected.norm()
        assert torch.equal(hccs.nn.detach(model)(**batch).logits, expected)


@pytest.mark.parametrize("name", [*TEXT_ENCODERS, "gpt2"])
@pytest.mark.parametrize("mode", ["i16_div", "u8_clb"])
def test_padding_receives_exactly_zero(make_model, name, mode):
    model, _ = converted(make_model(name), name, mode)
    batch = batch_for(name)
    with torch.no_grad():
        attentions = model(**batch, output_attentions=True).attentions
    keys = batch["attention_mask"].bool()[:, None, None, :]
    assert len(attentions) == 2
    for layer in attentions:
        assert (layer.masked_select(~keys.expand_as(layer)) == 0).all()
        assert (layer.sum(-1) > 0.5).all()


@pytest.mark.parametrize("name", TEXT_ENCODERS)
def test_outputs_do_not_depend_on_padding_length(make_model, name):
    model, _ = converted(make_model(name), name)
    with torch.no_grad():
        short, long = (model(**batch_for(name, padded_to=width)).logits for width in (20, 41))
    torch.testing.assert_close(short, long, rtol=1e-4, atol=1e-5)


def test_causal_rows_work_at_every_length(make_model):
    model, _ = converted(make_model("gpt2"), "gpt2")
    ids = sentences(count=2)["input_ids"][:1]
    with torch.no_grad():
        whole = model(ids, output_attentions=True)
        for length in range(1, ids.shape[1] + 1):
            part = model(ids[:, :length], output_attentions=True)
            torch.testing.assert_close(part.logits[:, -1], whole.logits[:, length - 1], rtol=1e-4, atol=1e-5)
            row = part.attentions[0][0, 0, -1]
            assert (row > 0).all()
    future = torch.triu(torch.ones(20, 20, dtype=torch.bool), 1)
    assert all((layer[..., future] == 0).all() for layer in whole.attentions)
    with torch.no_grad():
        generated = model.generate(ids[:, :5], max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert generated.shape[1] <= 9


@pytest.mark.parametrize("mode", list(hccs.Mode))
def test_output_attentions_are_the_reference_integers(make_model, mode):
    model, table = converted(make_model("bert"), "bert", mode)
    batch = batch_for("bert")
    caught = []
    layer = model.bert.encoder.layer[0].attention.self
    layer.hccs_softmax.register_forward_hook(lambda _, inputs, p: caught.append((*inputs, p)))
    with torch.no_grad():
        attentions = model(**batch, output_attentions=True).attentions
    z, valid, _ = caught[0]
    x = quantise(z, torch.tensor(table.scale[0], dtype=torch.float32))
    expected = reference_softmax(x.numpy(), table.layer(0), mode, valid.numpy())
    assert np.array_equal((attentions[0] * mode.T).round().int().numpy(), expected)


def test_parameters_survive_half_precision(make_model):
    model, _ = converted(make_model("bert"), "bert")
    before = hccs.nn.current_table(model)
    assert hccs.nn.current_table(model.half().float()) == before


def test_training_reaches_every_weight(make_model):
    model, _ = converted(make_model("bert"), "bert")
    model.train()
    model(**batch_for("bert"), labels=torch.zeros(6, dtype=torch.long)).loss.backward()
    query = model.bert.encoder.layer[0].attention.self.query.weight
    assert query.grad.abs().sum() > 0


def test_learnable_parameters_move_and_stay_admissible(make_model):
    model = make_model("bert")
    table = hccs.calibrate(hccs.nn.collect(model, [batch_for("bert")], n=64), n=64)
    hccs.nn.attach(model, table, learnable=True)
    learnt = [p for name, p in model.named_parameters() if name.endswith("log_ratio")]
    assert len(learnt) == 2
    optimiser = torch.optim.SGD(learnt, lr=30.0)
    for step in range(5):
        optimiser.zero_grad()
        model(**batch_for("bert", seed=step), labels=torch.zeros(6, dtype=torch.long)).loss.backward()
        optimiser.step()
    now = hccs.nn.current_table(model)  # refuses what the region does not hold
    assert now != table
    hccs.nn.attach(model, now)
    assert hccs.nn.current_table(model).B.tolist() == now.B.tolist()


def test_refine_answers_no_worse_than_its_start(make_model):
    model = make_model("bert")
    batches = [batch_for("bert", seed=s) for s in range(3)]
    table = hccs.ParamTable(
        B=[[511] * 4] * 2, S=[[3] * 4] * 2, D=[[100] * 4] * 2, scale=[[0.01] * 4] * 2, n=64
    )
    with torch.no_grad():
        target = [torch.log_softmax(model(**b).logits, -1) for b in batches]

        def distance(candidate):
            hccs.nn.attach(model, candidate)
            logs = [torch.log_softmax(model(**b).logits, -1) for b in batches]
            hccs.nn.detach(model)
            return sum((t.exp() * (t - p)).sum().item() for t, p in zip(target, logs, strict=True))

    refined = hccs.nn.refine(model, table, batches, steps=30, learning_rate=0.05)
    with torch.no_grad():
        assert distance(refined) < distance(table)


def test_layers_never_collected_are_refused_by_name(make_model):
    model = make_model("bert")
    table = hccs.ParamTable(
        [[444] * 4],
        [[1] * 4],
        [[9] * 4],
        [[0.1] * 4],
        64,
        layers=["bert.encoder.layer.0.attention.self"],
    )
    with pytest.raises(
        ModelError, match=r"bert\.encoder\.layer\.1\.attention\.self, whose logits were never collected"
    ):
        hccs.nn.attach(model, table)


def test_a_table_of_another_model_is_refused(make_model):
    bert, distilbert = make_model("bert"), make_model("distilbert")
    table = hccs.calibrate(hccs.nn.collect(bert, [batch_for("bert")], n=64))
    with pytest.raises(ModelError, match="another model"):
        hccs.nn.attach(distilbert, table)
    wider = hccs.ParamTable([[444] * 8] * 2, [[1] * 8] * 2, [[9] * 8] * 2, [[0.1] * 8] * 2, 64)
    with pytest.raises(ModelError, match="layers of 8 heads"):
        hccs.nn.attach(bert, wider)
    deeper = hccs.ParamTable([[444] * 4] * 3, [[1] * 4] * 3, [[9] * 4] * 3, [[0.1] * 4] * 3, 64)
    with pytest.raises(ModelError, match="3 layers"):
        hccs.nn.attach(bert, deeper)


def test_a_model_without_the_interface_is_refused():
    with pytest.raises(ModelError, match="attention interface"):
        hccs.nn.attach(torch.nn.Linear(3, 3), hccs.ParamTable([[444]], [[1]], [[9]], [[0.1]], 64))


def test_restoring_a_plain_model_is_refused(make_model):
    with pytest.raises(ModelError, match="saved with HCCS"):
        hccs.nn.restore(make_model("bert"))


def test_rows_longer_than_n_are_refused(make_model):
    model, _ = converted(make_model("bert"), "bert")
    hccs.nn.attach(
        model, hccs.ParamTable([[2000] * 4] * 2, [[1] * 4] * 2, [[9] * 4] * 2, [[0.1] * 4] * 2, 16)
    )
    with pytest.raises(hccs.errors.ParameterError, match="columns with B = 2000"):
        model(**batch_for("bert"))
