"""Channels far larger than the others: cut off, equal bits in training and program, and less noise."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import pytest
import torch

import hccs
import hccs.nn
from hccs.nn.lowering import scales_for, take_apart
from hccs.nn.lowering.assembling import assemble
from hccs.nn.lowering.points import Point, visiting
from hccs.nn.lowering.quantised import quantised
from hccs.nn.lowering.scales import outliers
from hccs.program import IntegerModel
from hccs.program import operators as op
from tests.nn.test_lowering import ids_of, made
from tests.nn.test_lowering_pre_norm import made as made_pre_norm


@pytest.fixture(scope="module", params=["bert", "gpt2"])
def outlying(request):
    """A model two of whose wide channels are ten times the others, as MiniLM has them."""
    model, table, batches = made("bert") if request.param == "bert" else made_pre_norm("gpt2")
    parts = take_apart(model)
    with torch.no_grad():
        for channel in (3, 20):
            wide, narrow = (m.weight for m in (parts.layers[1].wide, parts.layers[1].narrow))
            (wide[channel] if request.param == "bert" else wide[:, channel]).mul_(12)
            (narrow[:, channel] if request.param == "bert" else narrow[channel]).mul_(0.05)
    return model, parts, table, batches


@pytest.mark.parametrize("method", ["max-abs", "least-error"])
def test_the_training_model_computes_the_programs_integers(outlying, method):
    model, parts, table, batches = outlying
    scales = scales_for(model, parts, table, batches, method, split_outliers=True)
    assert scales.outliers[1].tolist() == [3, 20]
    whole = IntegerModel(assemble(parts, table, scales))
    assert sum(isinstance(step, op.Table) for step in whole.program.operators) >= 3
    real = batches[0]["attention_mask"].bool()
    with torch.no_grad(), quantised(model, parts, table, scales):
        trained = model(**batches[0]).logits
    exact = torch.tensor(whole(*ids_of(batches[0])).logits)
    if trained.ndim == 3:
        trained, exact = trained[real], exact[real]
    torch.testing.assert_close(trained, exact, rtol=1e-5, atol=1e-6)
    given = ids_of(batches[1])
    assert np.array_equal(whole(*given, reference=True).scores, whole(*given).scores)


def test_the_others_have_less_noise(outlying):
    model, parts, table, batches = outlying
    added, seen = Point("added", (parts.layers[1].narrow,)), []
    for split in (None, False, True):
        with torch.no_grad(), ExitStack() as stack:
            if split is not None:
                scales = scales_for(model, parts, table, batches, split_outliers=split)
                stack.enter_context(quantised(model, parts, table, scales))
            stack.enter_context(visiting([added], lambda _, value: seen.append(value)))
            model(**batches[0])
    whole, together, apart = seen
    errors = [float((value - whole).square().mean()) for value in (together, apart)]
    assert errors[1] < errors[0]
    assert scales.step("active1_few") > 4 * scales.step("active1")


def test_gradients_reach_both_parts(outlying):
    model, parts, table, batches = outlying
    scales = scales_for(model, parts, table, batches, split_outliers=True)
    model.zero_grad()
    with quantised(model, parts, table, scales):
        model(**batches[0]).logits.square().sum().backward()
    for module in (parts.layers[1].wide, parts.layers[1].narrow):
        assert torch.isfinite(module.weight.grad).all() and (module.weight.grad != 0).any(0).all()
    model.zero_grad()


def test_a_split_program_is_a_file(outlying, tmp_path):
    model, _, table, batches = outlying
    whole = hccs.nn.lower(model, table, batches, split_outliers=True)
    whole.save(tmp_path / "model.hccs")
    again = IntegerModel.load(tmp_path / "model.hccs")
    assert np.array_equal(again(*ids_of(batches[0])).scores, whole(*ids_of(batches[0])).scores)
    assert "active1_few" in repr(again)


def test_nothing_is_cut_where_channels_are_alike():
    rng = np.random.default_rng(0)
    alike = abs(rng.normal(0, 1, (1000, 1536))).max(0).astype(np.float32)
    assert outliers(alike) is None
    alike[[5, 700]] *= 6
    assert {5, 700} <= {*outliers(alike).tolist()}
