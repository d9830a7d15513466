import numpy as np
import pytest
import torch

import hccs
import hccs.nn
from hccs.calibration import HeadStatistics
from hccs.errors import DataError, ParameterError
from tests.nn.conftest import batch_for, sentences


def test_statistics_are_those_of_the_models_logits(make_model):
    model = make_model("bert")
    batch = sentences(count=4)
    stats = hccs.nn.collect(model, [batch], n=32)
    assert stats.shape == (2, 4)
    assert stats.layers == tuple(f"bert.encoder.layer.{i}.attention.self" for i in (0, 1))
    # One row per real token, padding queries left out.
    assert (stats.rows == int(batch["attention_mask"].sum())).all()

    caught = []
    attention = model.bert.encoder.layer[0].attention.self

    def keep(module, args, kwargs):
        states = args[0]
        q, k = (f(states).view(4, 20, 4, 8).transpose(1, 2) for f in (module.query, module.key))
        caught.append(q @ k.transpose(-1, -2) * 8**-0.5)

    attention.register_forward_pre_hook(keep, with_kwargs=True)
    with torch.no_grad():
        model(**batch)
    mask = batch["attention_mask"].bool()
    valid = (mask[:, None, None, :] & mask[:, None, :, None]).expand(4, 4, 20, 20)
    by_hand = HeadStatistics((1, 4), 32, stats.scale[:1])
    by_hand.update(
        hccs.nn.functional.quantise(caught[0], torch.tensor(stats.scale[0], dtype=torch.float32)).numpy(),
        valid.numpy(),
        layer=0,
    )
    assert hccs.calibrate(by_hand).layer(0) == hccs.calibrate(stats).layer(0)


def test_the_scale_of_rows_reaches_every_maximum_and_ten_below_the_lowest(make_model):
    model = make_model("bert")
    with torch.no_grad():  # logits far below every maximum become what is largest
        for layer in model.bert.encoder.layer:
            layer.attention.self.query.weight *= 40
    batch = sentences(count=4)
    usual, rows = (hccs.nn.collect(model, [batch], n=32, scale=scale) for scale in (None, "rows"))
    assert (rows.scale <= usual.scale).all() and (rows.scale < 0.9 * usual.scale).any()
    inner = model.bert.encoder.layer[0].attention.self
    caught = []
    inner.register_forward_pre_hook(lambda module, args: caught.append(args[0]))
    with torch.no_grad():
        model(**batch)
        q, k = (f(caught[0]).view(4, 20, 4, 8).transpose(1, 2) for f in (inner.query, inner.key))
    mask = batch["attention_mask"].bool()
    z = (q @ k.transpose(-1, -2) * 8**-0.5).masked_fill(~mask[:, None, None], -torch.inf)
    tops = z.amax(-1).transpose(0, 1)[:, mask]
    reach = torch.maximum(tops.amax(1), 10 - tops.amin(1)).double().numpy()
    np.testing.assert_allclose(rows.scale[0] * 127, np.minimum(reach, usual.scale[0] * 127), rtol=1e-5)
    with pytest.raises(ParameterError, match="'rows'"):
        hccs.nn.collect(model, [batch], scale="columns")


def test_batches_stream_in_any_form(make_model):
    model = make_model("bert")
    parts = [sentences(seed=s, count=3) for s in range(5)]
    listed = hccs.nn.collect(model, parts, n=32)
    assert hccs.nn.collect(model, iter(parts), n=32) == listed
    assert hccs.nn.collect(model, ({**p, "labels": torch.zeros(3)} for p in parts), n=32) == listed
    assert hccs.nn.collect(model, [tuple(p.values()) for p in parts], n=32) == listed
    assert not hasattr(model.config, "hccs")
    assert model.config._attn_implementation != "hccs"


def test_collecting_behind_hccs_sees_other_logits(make_model):
    model = make_model("bert")
    stats = hccs.nn.collect(model, [batch_for("bert")], n=64)
    hccs.nn.attach(model, hccs.calibrate(stats))
    behind = hccs.nn.collect(model, [batch_for("bert")], n=64)
    assert np.allclose(behind.scale[0], stats.scale[0])
    assert not np.allclose(behind.scale[1], stats.scale[1], rtol=1e-6)
    assert model.config._attn_implementation == "hccs"


def test_refusals(make_model):
    model = make_model("bert")
    with pytest.raises(DataError, match="at least one batch"):
        hccs.nn.collect(model, [])
    with pytest.raises(hccs.errors.ShapeError, match="at most n = 8"):
        hccs.nn.collect(model, [batch_for("bert")], n=8)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[7] = torch.nan
    batch = batch_for("bert")
    batch["input_ids"][0, 0] = 7
    with pytest.raises(hccs.errors.HccsError):
        hccs.nn.collect(model, [batch], n=64)


@pytest.mark.parametrize(
    ("batches", "complaint"),
    [
        (["a sentence of text"], "a batch of tensors; got the text 'a sentence of text'"),
        ("a sentence of text", "batches: a list, an iterator or a DataLoader; got the text"),
        (sentences(), "got a single mapping of input_ids, attention_mask"),
        (sentences()["input_ids"], "got an object of type Tensor"),
        (7, "got an object of type int"),
        (None, "got an object of type NoneType"),
        ([["a", "b"]], "a batch of tensors; got the text 'a'"),
        ([[]], "a batch of tensors; got an object of type list"),
        ([{"input_ids": [[3, 4, 5]]}], "input_ids as a tensor; got an object of type list"),
        ([{"text": "a sentence"}], "a batch with tensors; got one of text"),
        ([{}], "a batch with tensors; got one of nothing"),
        ([None], "a batch of tensors; got an object of type NoneType"),
        ([], "at least one batch"),
    ],
    ids=str,
)
def test_batches_of_other_kinds_are_explained(make_model, batches, complaint):
    model = make_model("bert")
    table = hccs.ParamTable([[444] * 4] * 2, [[1] * 4] * 2, [[9] * 4] * 2, [[0.1] * 4] * 2, 64)
    with pytest.raises(DataError) as refusal:
        hccs.nn.collect(model, batches)
    assert complaint in str(refusal.value)
    if batches != []:
        assert "return_tensors='pt'" in str(refusal.value)
    for work in (hccs.nn.calibrate_operands, hccs.nn.refine):
        with pytest.raises(DataError):
            work(model, table, batches)


def test_columns_that_the_model_does_not_know_are_left_out(make_model):
    model, batch = make_model("bert"), sentences()
    extended = {**batch, "text": ["a"] * 6, "labels": torch.zeros(6), "token_type_ids": None}
    assert hccs.nn.collect(model, [extended], n=32) == hccs.nn.collect(model, [batch], n=32)


TWO_PROCESSES = """
import os, sys, torch, torch.distributed as dist, transformers.models.bert.modeling_bert
import hccs.nn
from tests.nn.conftest import bert, sentences
other = os.fork()  # what takes seconds is imported once; nothing has begun a thread
rank = int(other == 0)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
torch.manual_seed(0)
model = bert().eval()
stats = hccs.nn.collect(model, [sentences(seed=2 * i + rank, count=3) for i in range(2)], n=32)
stats.save(sys.argv[2] + str(rank))
dist.destroy_process_group()
if other:
    sys.exit(os.waitpid(other, 0)[1])
"""


def test_two_processes_gather_what_one_would(make_model, tmp_path):
    import subprocess
    import sys

    command = [sys.executable, "-c", TWO_PROCESSES, str(tmp_path / "meeting"), str(tmp_path / "stats")]
    subprocess.run(command, check=True)
    alone = hccs.nn.collect(make_model("bert"), [sentences(seed=s, count=3) for s in range(4)], n=32)
    for rank in (0, 1):
        assert HeadStatistics.load(tmp_path / f"stats{rank}") == alone
