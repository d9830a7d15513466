"""Two lines in networks: exact integers forward, the gradient through both lines, attached and saved."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import hccs
import hccs.nn
from hccs.backends.cpu import float_logits as cpu_logits
from hccs.nn import plain_logits
from hccs.nn.functional import hccs_softmax, surrogate
from hccs.nn.slots import LearnableHeadSoftmax
from hccs.ops.arguments import as_mask
from hccs.reference.softmax import softmax as reference_softmax
from tests.nn.conftest import ALL, batch_for

THETA = hccs.HeadParams([1023, 900, 800], [4, 0, 3], [50, 90, 127], [41, 20, 3], [20, 45, 127], [2, 0, 0])
SCALE = torch.tensor([0.1, 0.03, 0.05])


def logits(rng, shape, dtype=torch.float32):
    return torch.tensor(rng.normal(0, 2, shape), dtype=dtype)


@pytest.mark.parametrize("mode", list(hccs.Mode), ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_forward_is_the_references(mode, dtype):
    rng = np.random.default_rng(0)
    z = logits(rng, (2, 3, 5, 40), dtype)
    for valid in (None, torch.tensor(rng.random((2, 1, 5, 40)) < 0.6), torch.tensor([[[7]], [[40]]])):
        p = hccs_softmax(z, THETA, SCALE, mode, valid)
        steps = SCALE[:, None, None].to(dtype)
        x = (z / steps).round().clamp(-128, 127).to(torch.int8).numpy()
        expected = reference_softmax(x, THETA, mode, None if valid is None else valid.numpy())
        np.testing.assert_array_equal((p * mode.T).round().numpy(), expected)


@pytest.mark.parametrize("mode", list(hccs.Mode), ids=str)
def test_what_gpus_run_has_the_same_bits_and_gradients(mode):
    """`forward_wide`, which serves GPUs, on the CPU against the native kernels; masks, lengths and NaN."""
    rng = np.random.default_rng(2)
    z, packed = logits(rng, (2, 3, 5, 300)), torch.tensor(THETA.packed)
    g = logits(rng, z.shape)
    mask = torch.tensor(rng.random((2, 1, 5, 300)) < 0.6)
    mask[0, 0, 0] = False
    for valid in (None, mask, torch.tensor([[[7]], [[300]]])):
        p, x = plain_logits.forward_wide(z, packed, SCALE, valid, mode)
        expected, expected_x = cpu_logits.forward(z, packed, SCALE, valid, mode)
        taking_part = torch.as_tensor(as_mask(valid, tuple(z.shape)))
        assert torch.equal(p, expected) and torch.equal(x[taking_part], expected_x[taking_part])
        for one, other in zip(
            plain_logits.backward(g, x, packed, SCALE, valid, True),
            cpu_logits.backward(g, x, packed, SCALE, valid, True),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-4)
    z[0, 1, 2, 3] = torch.nan
    p, _ = plain_logits.forward_wide(z, packed, SCALE, None, mode)
    assert p[0, 1, 2].isnan().all() and p.isnan().sum() == 300


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_gradients_are_those_of_the_surrogate(dtype):
    """Of the logits, of all parameters and of the scale, against autograd of the real-valued function."""
    rng = np.random.default_rng(1)
    valid = torch.tensor(rng.random((2, 1, 5, 24)) < 0.7)
    valid[..., 0] = True
    steps = torch.tensor(rng.integers(-100, 60, (2, 3, 5, 24)), dtype=dtype)
    packed = torch.tensor(THETA.packed, dtype=dtype)
    g = logits(rng, (2, 3, 5, 24), dtype)

    z = (steps * SCALE[:, None, None].to(dtype)).requires_grad_()
    theta, scale = packed.clone().requires_grad_(), SCALE.clone().requires_grad_()
    hccs_softmax(z, theta, scale, "i16_div", valid).backward(g)

    real_z = z.detach().clone().requires_grad_()
    real_theta, real_scale = packed.clone().requires_grad_(), SCALE.to(dtype, copy=True).requires_grad_()
    x = real_z / real_scale[:, None, None]
    x = x + (x.detach().round() - x.detach())
    surrogate(x, real_theta, valid).backward(g)

    tolerance = {"rtol": 2e-3, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(z.grad, real_z.grad, **tolerance)
    torch.testing.assert_close(theta.grad, real_theta.grad, **tolerance)


def table_for(model, name, **options):
    stats = hccs.nn.collect(model, [batch_for(name)], n=64)
    return hccs.calibrate(stats, n=64, **options)


@pytest.mark.parametrize("scores", ["int16", "uint8"])
def test_attached_saved_and_loaded(scores, tmp_path):
    torch.manual_seed(0)
    model, batch = ALL["bert"]().eval(), batch_for("bert")
    table = table_for(model, "bert", lines=2, scores=scores)
    expected = hccs.nn.attach(model, table)(**batch).logits
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    for held in (hccs.nn.current_table(model), hccs.nn.current_table(again)):
        assert held.lines == 2 and [held.layer(i) for i in range(2)] == [table.layer(i) for i in range(2)]
    torch.testing.assert_close(again(**batch).logits, expected, rtol=0, atol=0)


def test_integer_attention_runs_two_lines():
    torch.manual_seed(0)
    model, batch = ALL["bert"]().eval(), batch_for("bert")
    plain = model(**batch).logits
    table = table_for(model, "bert", lines=2)
    with torch.no_grad():
        integer = hccs.nn.attach(model, table, backend="integer")(**batch).logits
    assert hccs.nn.current_table(model) == table
    assert (integer - plain).abs().max() < 0.1


def test_learnt_parameters_stay_admissible():
    table = hccs.ParamTable(
        B=[[1023, 2047]], S=[[4, 5]], D=[[50, 60]], S2=[[40, 70]], D2=[[20, 24]], f=[[2, 0]],
        scale=[[0.1, 0.1]], n=64,
    )  # fmt: skip
    slot = LearnableHeadSoftmax(table, 0, hccs.Mode.I16_DIV)
    rng = np.random.default_rng(2)
    region = hccs.Region(64, 24)
    for _ in range(50):
        with torch.no_grad():
            slot.log_ratio.copy_(torch.tensor(rng.normal(0, 1, slot.log_ratio.shape)))
        for row in slot.theta_and_scale():
            assert tuple(int(v) for v in row[:6]) in region, row
    with torch.no_grad():
        slot.log_ratio.zero_()
    assert [row[:6].astype(int).tolist() for row in slot.theta_and_scale()] == table.layer(0).packed.tolist()
