"""Work on a model that is interrupted, or fails, leaves the model as it was."""

import copy

import pytest
import torch

import hccs
import hccs.nn
from hccs.nn.interface import SLOT
from tests.nn.conftest import batch_for

BATCHES = [batch_for("bert", seed=s) for s in range(3)]


def refine(model, table):
    return hccs.nn.refine(model, table, BATCHES, steps=6)


def collect(model, table):
    return hccs.nn.collect(model, BATCHES, n=64)


def operands(model, table):
    return hccs.nn.calibrate_operands(model, table, BATCHES)


def state(model):
    """All that work may disturb."""
    layers = hccs.nn.attention_layers(model)
    return {
        "slots": {name: id(getattr(layer, SLOT, None)) for name, layer in layers.items()},
        "attention": model.config._attn_implementation,
        "configuration": copy.deepcopy(model.config.to_dict()),
        "training": {name: module.training for name, module in model.named_modules()},
        "learning": {name: p.requires_grad for name, p in model.named_parameters()},
        "weights": {name: p.detach().clone() for name, p in model.named_parameters()},
    }


def same(before, after):
    weights = [before.pop("weights"), after.pop("weights")]
    assert before == after
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@pytest.fixture
def unusual(make_model):
    """Neither all in training nor all in evaluation, and not all weights trainable."""
    model = make_model("bert")
    table = hccs.calibrate(hccs.nn.collect(model, BATCHES[:1], n=64), n=64)
    model.train()
    model.bert.embeddings.eval()
    model.bert.embeddings.requires_grad_(False)
    return model, table


class CountDown:
    """Raises when the model's classifier is called for the nth time."""

    def __init__(self, model, calls, error):
        self.left, self.error = calls, error
        self.hook = model.classifier.register_forward_pre_hook(self.call)

    def call(self, *_):
        self.left -= 1
        if self.left == 0:
            raise self.error("in the middle")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("calls", [1, 2, 5])
@pytest.mark.parametrize("work", [refine, collect, operands])
def test_an_interrupted_work_leaves_the_model_as_it_was(unusual, work, calls, error):
    model, table = unusual
    hccs.nn.attach(model, table, "u8_clb")
    before = state(model)
    stop = CountDown(model, calls if work is not operands else min(calls, 2), error)
    with pytest.raises(error, match="in the middle"):
        work(model, table)
    stop.hook.remove()
    same(before, state(model))
    assert model.config._attn_implementation == "hccs"


@pytest.mark.parametrize(
    ("work", "attached"),
    [
        (refine, False),
        (refine, True),
        (collect, False),
        (collect, True),
        (operands, True),
    ],
)
def test_finished_work_leaves_the_model_as_it_was(unusual, work, attached):
    model, table = unusual
    if attached:
        hccs.nn.attach(model, table, "u8_clb")
    before = state(model)
    work(model, table)
    same(before, state(model))


def test_a_table_waiting_in_the_configuration_is_not_lost(unusual):
    model, table = unusual
    hccs.nn.attach(model, table)
    waiting = copy.deepcopy(model.config.hccs)
    hccs.nn.detach(model)
    model.config.hccs = waiting  # as an older version's model is loaded
    collect(model, table)
    assert model.config.hccs == waiting
    assert hccs.nn.current_table(hccs.nn.restore(model)).B.tolist() == table.B.tolist()


def test_the_table_need_not_fit_for_the_model_to_survive(unusual):
    model, _ = unusual
    before = state(model)
    other = hccs.ParamTable([[444] * 4] * 3, [[1] * 4] * 3, [[9] * 4] * 3, [[0.1] * 4] * 3, 64)
    with pytest.raises(hccs.errors.ModelError):
        refine(model, other)
    same(before, state(model))
