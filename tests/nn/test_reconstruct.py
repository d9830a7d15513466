"""Weights mended in closed form: against NumPy, on sentences that chose nothing, in parts, and refused."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import hccs
import hccs.nn
from hccs.calibration import search
from hccs.errors import DataError, ModelError, ParameterError
from hccs.nn.lowering.families import known_layers
from hccs.nn.lowering.parts import bias_of, weight_of
from hccs.nn.ridge import RIDGES, RidgeSums, choose
from tests.nn.conftest import ALL, batch_for

N = 24


def batches_for(name, count=3, seed=0):
    if name == "vit":
        torch.manual_seed(seed)
        return [{"pixel_values": torch.randn(24, 3, 24, 24)} for _ in range(count)]
    return [batch_for(name, count=40, longest=N - i, seed=seed + i) for i in range(count)]


def converted(model, batches, lines=1):
    stats = hccs.nn.collect(model, batches)
    return hccs.nn.attach(model, search(stats, stats.n, "head", "i16_div", lines=lines).table)


def streams(model, layer, batches):
    """Of one layer, without padding: what its two matrices read, and the stream behind each of them.

    Written with hooks on whole runs of the model, in float64: independent of how `reconstruct` walks.
    """
    parts = known_layers(model)[layer].parts
    kept = {name: [] for name in ("c", "attended", "active", "summed")}
    real = None

    def keep(name):
        return lambda _, inputs: kept[name].append(inputs[0][real].double())

    def residual(name, matrix, reader):
        """The sum of what the matrix writes and of the stream that its layer's reader has read."""
        seen = []
        return (
            reader.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0][real].double())),
            matrix.register_forward_hook(
                lambda _, inputs, output: kept[name].append(output[real].double() + seen[-1])
            ),
        )

    post_norm = not parts.norm_first
    first = parts.qkv[0] if post_norm else parts.attention_norm
    second = parts.wide if post_norm else parts.wide_norm
    handles = [
        parts.attention_output.register_forward_pre_hook(keep("c")),
        parts.narrow.register_forward_pre_hook(keep("active")),
        *residual("attended", parts.attention_output, first),
        *residual("summed", parts.narrow, second),
    ]
    with torch.no_grad():
        for batch in batches:
            mask = batch.get("attention_mask")
            real = slice(None) if mask is None else mask.bool()
            model(**batch)
    for handle in handles:
        handle.remove()
    return {name: torch.cat([part.flatten(0, -2) for part in parts]).numpy() for name, parts in kept.items()}


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_closed_form_is_that_of_least_squares(name, make_model):
    """Both matrices of the second layer, which stand behind a mended one; GPT-2's lie the other way round."""
    model, batches = make_model(name), batches_for(name)
    teacher = copy.deepcopy(model)
    before = copy.deepcopy(converted(model, batches))
    mended = {(m.layer, m.matrix): m for m in hccs.nn.reconstruct(model, batches)}
    wanted, now = streams(teacher, 1, batches), streams(model, 1, batches)
    parts, old = (known_layers(each)[1].parts for each in (model, before))
    for c, total, matrix in (("c", "attended", "attention_output"), ("active", "summed", "narrow")):
        ridge = mended[1, matrix].ridge
        solved, start = getattr(parts, matrix), getattr(old, matrix)
        if ridge is None:
            assert torch.equal(solved.weight, start.weight)
            continue
        read, tokens = now[c], len(now[c])
        mine = [part.detach().double().numpy() for part in (weight_of(solved), bias_of(solved))]
        first = [part.detach().double().numpy() for part in (weight_of(start), bias_of(start))]
        stream = now[total] - read @ mine[0].T - mine[1]
        lacking = wanted[total] - stream - read @ first[0].T - first[1]
        size = np.sqrt(ridge * np.square(read - read.mean(0)).sum(0).mean())
        left = np.block(
            [[read, np.ones((tokens, 1))], [size * np.eye(read.shape[1]), np.zeros((read.shape[1], 1))]]
        )
        right = np.vstack([lacking, np.zeros((read.shape[1], lacking.shape[1]))])
        solution = np.linalg.lstsq(left, right, rcond=None)[0]
        np.testing.assert_allclose(mine[0] - first[0], solution[:-1].T, atol=2e-4)
        np.testing.assert_allclose(mine[1] - first[1], solution[-1], atol=2e-4)
    assert any(m.ridge is not None for m in mended.values())


@pytest.mark.parametrize(("name", "lines"), [*((name, 1) for name in sorted(ALL)), ("bert", 2)])
def test_streams_of_other_sentences_come_nearer(name, lines, make_model):
    model, batches, others = make_model(name), batches_for(name, 6), batches_for(name, 2, seed=50)
    teacher = copy.deepcopy(model)
    converted(model, batches, lines)
    errors = []
    for _ in range(2):
        wanted, now = (streams(each, 1, others) for each in (teacher, model))
        errors.append(np.square(wanted["summed"] - now["summed"]).mean())
        if len(errors) == 1:
            mended = hccs.nn.reconstruct(model, batches)
    assert [(m.layer, m.matrix) for m in mended] == [
        (layer, matrix) for layer in range(2) for matrix in ("attention_output", "narrow")
    ]
    assert all(m.after <= m.before for m in mended) and mended[0].after < mended[0].before
    assert errors[1] < (0.99 if lines == 1 else 1.01) * errors[0]


def test_the_same_batches_give_the_same_weights_and_padding_does_not_count(make_model):
    model = make_model("bert")
    batches = batches_for("bert")
    weights = []
    for garbage in (0, 0, 17):
        start = copy.deepcopy(model)
        given = [
            {**b, "input_ids": torch.where(b["attention_mask"].bool(), b["input_ids"], garbage)}
            for b in batches
        ]
        hccs.nn.reconstruct(converted(start, batches), given)
        weights.append(start.bert.encoder.layer[1].output.dense.weight.detach())
    assert torch.equal(weights[0], weights[1])
    torch.testing.assert_close(weights[0], weights[2], rtol=0, atol=1e-5)
    assert not torch.allclose(weights[0], model.bert.encoder.layer[1].output.dense.weight, atol=1e-4)


def test_only_the_two_matrices_of_every_layer_change_and_the_model_is_left_as_it_was(make_model):
    model, batches = make_model("gpt2"), batches_for("gpt2")
    converted(model, batches).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hccs.nn.reconstruct(model, batches)
    changed = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    assert changed and all(".c_proj." in name for name in changed)
    assert model.training and model.config.use_cache and model.config._attn_implementation == "hccs"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_sums_stream_merge_and_choose():
    rng = np.random.default_rng(0)
    c, noise = torch.tensor(rng.normal(1, 2, (600, 12))), torch.tensor(rng.normal(0, 0.5, (600, 5)))
    w = torch.tensor(rng.normal(size=(12, 5)))
    e = c @ w + 3 + noise
    whole = RidgeSums.of(c, e)
    parts = RidgeSums.empty(12, 5)
    for start in range(0, 600, 7):
        parts.add(c[start : start + 7], e[start : start + 7])
    merged = RidgeSums.of(c[:100], e[:100]) + RidgeSums.of(c[100:], e[100:])
    for other in (parts, merged):
        for mine, theirs in zip(whole.solve(0.01), other.solve(0.01), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    weight, bias = whole.solve(1e-12)
    torch.testing.assert_close(weight.T, w, atol=0.1, rtol=0)
    assert whole.error(weight, bias) == pytest.approx(
        float((e - c @ weight.T - bias).square().sum()), rel=1e-6
    )
    assert whole.error() == pytest.approx(float(e.square().sum()))
    chosen = choose(RidgeSums.of(c[:500], e[:500]), RidgeSums.of(c[500:], e[500:]))
    assert chosen.ridge in RIDGES[:4] and chosen.after < 0.1 * chosen.before
    # Where errors have nothing to do with activations the matrix stays, or hardly moves.
    noisy = choose(RidgeSums.of(c[:14], noise[:14] - noise[:14].mean(0)), RidgeSums.of(c[500:], noise[500:]))
    assert noisy.ridge in (None, RIDGES[-1])
    no_bias, zero = whole.solve(1e-9, bias=False)
    np.testing.assert_allclose(no_bias.T, np.linalg.lstsq(c.numpy(), e.numpy(), rcond=None)[0], atol=1e-5)
    assert not zero.any()


def test_the_rounding_of_a_whole_integer_model_is_mended_too(make_model):
    """Scales of values stay; weights are rounded anew, and the program's answers are the mended model's."""
    model, batches = make_model("bert"), batches_for("bert", 4)
    others = batches_for("bert", 1, seed=70)
    teacher = copy.deepcopy(model)
    stats = hccs.nn.collect(model, batches)
    table = hccs.calibrate(stats, n=N)
    with hccs.nn.quantised(model, table, batches) as plan:
        with pytest.raises(ModelError, match=r"deepcopy\(model\)"):
            hccs.nn.reconstruct(model, batches)
        before = streams(model, 1, others)["summed"]
        mended = hccs.nn.reconstruct(model, batches, teacher=teacher)
        after, wanted = streams(model, 1, others)["summed"], streams(teacher, 1, others)["summed"]
        with torch.no_grad():
            answers = model(**others[0]).logits
        whole = plan.lower()
    assert np.square(after - wanted).mean() < np.square(before - wanted).mean()
    assert all(m.after <= m.before for m in mended)
    scores = whole(others[0]["input_ids"].numpy(), others[0]["attention_mask"].numpy())
    np.testing.assert_allclose(scores.logits, answers.numpy(), atol=1e-5)


def test_what_cannot_be_mended_is_refused(make_model):
    batches = batches_for("bert")
    with pytest.raises(ModelError, match=r"whose layers are known.*llama"):
        hccs.nn.reconstruct(make_model("llama"), batches)
    model = make_model("bert")
    with pytest.raises(ModelError, match=r"hccs\.nn\.attach\(model, table\)"):
        hccs.nn.reconstruct(model, batches)
    other = make_model("bert")
    other.bert.encoder.layer = other.bert.encoder.layer[:1]
    with pytest.raises(ModelError, match="a teacher with the model's own layers"):
        hccs.nn.reconstruct(model, batches, teacher=other)
    converted(model, batches)
    with pytest.raises(ParameterError, match="held_back"):
        hccs.nn.reconstruct(model, batches, held_back=1)
    with pytest.raises(DataError, match="none held back"):
        hccs.nn.reconstruct(model, [batch_for("bert", count=3)])
    model.bert.embeddings.word_embeddings.weight.data[7] = torch.nan
    with pytest.raises(DataError, match="finite"):
        hccs.nn.reconstruct(model, batches)


@pytest.mark.parametrize("by_trainer", [False, True])
def test_products_in_full_precision_whichever_way_less_was_allowed(by_trainer: bool) -> None:
    from hccs.nn.training import float32_products

    matmul = torch.backends.cuda.matmul
    newer = hasattr(matmul, "fp32_precision")
    if by_trainer and not newer:
        pytest.skip("this torch knows the older switch alone")
    before = matmul.fp32_precision if newer else matmul.allow_tf32
    try:
        if by_trainer:
            matmul.fp32_precision = "tf32"
        else:
            matmul.allow_tf32 = True
        with float32_products(quick=False):
            if newer:
                assert matmul.fp32_precision == "ieee"
        if by_trainer:
            assert matmul.fp32_precision == "tf32"
    finally:
        if newer:
            matmul.fp32_precision = before
        else:
            matmul.allow_tf32 = before
