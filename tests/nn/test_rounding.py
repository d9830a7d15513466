"""Weights that are rounded one column after the other."""

from __future__ import annotations

import copy

import pytest
import torch

import hccs
import hccs.nn
from hccs.nn.lowering import IntegerPlan
from hccs.nn.lowering.parts import VectorHead
from hccs.nn.lowering.quantised import integers_of
from hccs.nn.rounding import _rounded

transformers = pytest.importorskip("transformers")


def test_columns_make_up_for_each_other() -> None:
    """The outputs of correlated inputs come closer than by rounding to the nearest, and the largest stays."""
    torch.manual_seed(0)
    c = torch.randn(400, 6, dtype=torch.float64) @ torch.randn(6, 40, dtype=torch.float64)
    c += 0.1 * torch.randn(400, 40, dtype=torch.float64)
    w = torch.randn(16, 40, dtype=torch.float64)
    w *= 127 / w.abs().amax(1, keepdim=True) * torch.linspace(0.02, 1, 16, dtype=torch.float64)[:, None]
    found = _rounded(w, c.T @ c / len(c))
    assert torch.equal(found, found.round()) and found.abs().amax() <= 127
    errors = [((w - q) @ c.T).square().sum() for q in (found, w.round())]
    assert errors[0] < 0.5 * errors[1]
    largest = w.abs().argmax(1, keepdim=True)
    assert torch.equal(found.gather(1, largest), w.round().gather(1, largest))


def test_lowering_keeps_what_was_rounded() -> None:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48
    )
    teacher = transformers.BertModel(config, add_pooling_layer=False).eval()
    batches = [{"input_ids": torch.randint(60, (24, 12))} for _ in range(2)]
    table = hccs.calibrate(hccs.nn.collect(teacher, batches), n=12)
    model = copy.deepcopy(teacher)
    plan = IntegerPlan.measured(model, table, batches, vector=VectorHead())
    with plan.training(), torch.no_grad():
        hccs.nn.reconstruct(model, batches, teacher=teacher, compensate=True)
        for layer in model.encoder.layer:
            for module in (
                layer.attention.self.query,
                layer.attention.self.value,
                layer.attention.output.dense,
                layer.intermediate.dense,
                layer.output.dense,
            ):
                whole = integers_of(module)()
                real = whole.weight * whole.weight_step[:, None] / whole.columns
                assert torch.allclose(module.weight.double(), real, rtol=2e-6, atol=0)
        wanted = model(**batches[0]).last_hidden_state.sum(1)
    found = torch.tensor(plan.lower()(batches[0]["input_ids"].numpy()).scores / 32767)
    assert torch.nn.functional.cosine_similarity(wanted.double(), found.double()).min() > 0.9999
