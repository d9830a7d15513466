"""Heads of whole encoders: scores for every token, and one score for regression."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hccs
import hccs.nn
from tests.nn.conftest import TEXT_ENCODERS, batch_for


def token_classifier(name):
    torch.manual_seed(0)
    config = TEXT_ENCODERS[name]().config
    config.num_labels = 5
    return transformers.AutoModelForTokenClassification.from_config(config).eval()


def prepared(name, model):
    batches = [batch_for(name, seed=s, count=24) for s in range(3)]
    return hccs.calibrate(hccs.nn.collect(model, batches, n=32), n=32), batches


@pytest.mark.parametrize("name", TEXT_ENCODERS)
def test_every_token_has_the_scores_of_the_training_model(name):
    model = token_classifier(name)
    table, batches = prepared(name, model)
    whole = hccs.nn.lower(model, table, batches)
    assert whole.program.per_token and len(whole.labels) == 5
    fresh = batch_for(name, seed=8, count=16)
    answer = whole(fresh["input_ids"].numpy(), fresh["attention_mask"].numpy())
    real = fresh["attention_mask"].bool().numpy()
    assert answer.scores.shape == (16, 20, 5) and not answer.scores[~real].any()
    with torch.no_grad(), hccs.nn.quantised(model, table, batches):
        trained = model(**fresh).logits.numpy()
    np.testing.assert_allclose(answer.logits[real], trained[real], rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        own = model(**fresh).logits.numpy()[real]
    assert abs(answer.logits[real] - own).mean() < 0.15 * own.std()


def test_one_score_is_a_value():
    torch.manual_seed(0)
    model = TEXT_ENCODERS["bert"](num_labels=1).eval()
    table, batches = prepared("bert", model)
    whole = hccs.nn.lower(model, table, batches)
    fresh = batch_for("bert", seed=8, count=64)
    got = whole(fresh["input_ids"].numpy(), fresh["attention_mask"].numpy()).logits
    with torch.no_grad():
        expected = model(**fresh).logits.numpy()
    assert got.shape == (64, 1) and np.corrcoef(got[:, 0], expected[:, 0])[0, 1] > 0.95
