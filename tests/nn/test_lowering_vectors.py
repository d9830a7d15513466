"""Encoders that end in unit vectors: close to the float model, with the bits that training computes."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import hccs.nn
from hccs.calibration import search
from hccs.errors import ModelError, ParameterError
from hccs.nn.lowering import IntegerPlan
from hccs.program import IntegerModel
from hccs.program import operators as op
from hccs.reference.pooling import pool, unit
from tests.nn.conftest import VOCABULARY, sentences

SHAPE = dict(
    vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
    initializer_range=0.15, max_position_embeddings=64,
)  # fmt: skip


def made(seed=0, **options):
    torch.manual_seed(seed)
    model = transformers.BertModel(
        transformers.BertConfig(**SHAPE, **options), add_pooling_layer=False
    ).eval()
    batches = sentences(count=24)
    batches = batches if isinstance(batches, list) else [batches]
    table = search(hccs.nn.collect(model, batches, n=32), 32, lines=2).table
    return model, table, batches


def hidden(model, batch):
    with torch.no_grad():
        return model(**batch).last_hidden_state.double().numpy()


def lengths_of(batch):
    return batch["attention_mask"].sum(1).tolist()


def pooled(h, lengths, pooling):
    rows = [row[:length] for row, length in zip(h, lengths, strict=True)]
    return [{"mean": r.mean(0), "first": r[0], "last": r[-1], "max": r.max(0)}[pooling] for r in rows]


@pytest.mark.parametrize("pooling", ["mean", "first", "last", "max"])
@pytest.mark.parametrize("activation", ["gelu", "silu"])
def test_vectors_are_close_to_the_float_models(pooling, activation):
    model, table, batches = made(hidden_act=activation)
    whole = hccs.nn.lower(model, table, batches, vector=hccs.nn.VectorHead(pooling))
    batch = batches[0]
    answers = whole(batch["input_ids"], batch["attention_mask"]).scores
    assert answers.dtype == np.int16 and whole._engine is not None
    wanted = np.array(pooled(hidden(model, batch), lengths_of(batch), pooling))
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    cosine = (answers / 32767 * wanted).sum(1)
    assert cosine.min() > 0.98
    assert abs(np.linalg.norm(answers / 32767.0, axis=1) - 1).max() < 1e-3


def test_row_exponents_are_closer_than_static_steps():
    model, table, batches = made(3)
    wanted = np.concatenate([np.array(pooled(hidden(model, b), lengths_of(b), "mean")) for b in batches])
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    distance = {}
    for rows in (False, True):
        whole = hccs.nn.lower(model, table, batches, vector=hccs.nn.VectorHead("mean"), row_exponents=rows)
        found = np.concatenate([whole(b["input_ids"], b["attention_mask"]).scores for b in batches])
        distance[rows] = 1 - (found / 32767 * wanted).sum(1).mean()
        assert any(isinstance(step, op.NarrowRows) for step in whole.program.operators) == rows
    assert distance[True] < distance[False]


def test_training_computes_the_programs_integers():
    model, table, batches = made(1)
    plan = IntegerPlan.measured(model, table, batches, vector=hccs.nn.VectorHead("mean"))
    whole, batch = plan.lower(), batches[0]
    with plan.training():
        h = hidden(model, batch)
    step = plan.scales.step("x2")
    rows = zip(h, lengths_of(batch), strict=True)
    wanted = [unit(pool(np.rint(row[:n] / step).astype(np.int16), "mean")) for row, n in rows]
    found = whole(batch["input_ids"], batch["attention_mask"]).scores
    np.testing.assert_array_equal(found, np.stack(wanted))


def test_dense_layers_after_pooling(tmp_path):
    model, table, batches = made(2)
    dense = torch.nn.Linear(32, 20)
    for activation in (torch.nn.Tanh(), torch.nn.Identity()):
        head = hccs.nn.VectorHead("mean", ((dense, activation),))
        whole = hccs.nn.lower(model, table, batches, vector=head)
        whole.save(tmp_path / "model.hccs")
        batch = batches[0]
        found = IntegerModel.load(tmp_path / "model.hccs")(batch["input_ids"], batch["attention_mask"])
        mean = torch.tensor(np.array(pooled(hidden(model, batch), lengths_of(batch), "mean"))).float()
        with torch.no_grad():
            wanted = torch.nn.functional.normalize(activation(dense(mean))).numpy()
        assert found.scores.shape == (len(mean), 20)
        assert (found.scores / 32767 * wanted).sum(1).min() > 0.98


def test_classifiers_may_have_row_exponents_too():
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(**SHAPE)).eval()
    batches = made()[2]
    table = search(hccs.nn.collect(model, batches, n=32), 32, lines=2).table
    whole = hccs.nn.lower(model, table, batches, row_exponents=True)
    found = whole(batches[0]["input_ids"], batches[0]["attention_mask"])
    with torch.no_grad():
        wanted = model(**batches[0]).logits.numpy()
    assert np.corrcoef(found.logits.ravel(), wanted.ravel())[0, 1] > 0.98
    reference = whole(batches[0]["input_ids"], batches[0]["attention_mask"], reference=True)
    np.testing.assert_array_equal(found.scores, reference.scores)


def test_what_has_no_vectors_is_refused():
    model, table, batches = made()
    with pytest.raises(ParameterError, match="row exponents"):
        hccs.nn.lower(model, table, batches, vector=hccs.nn.VectorHead(), split_outliers=True)
    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    with pytest.raises(ModelError, match="a model of texts for embeddings"):
        hccs.nn.lower(transformers.ViTModel(config), table, batches, vector=hccs.nn.VectorHead())
    with pytest.raises(ModelError, match="VectorHead"):
        hccs.nn.lower(model, table, batches)
