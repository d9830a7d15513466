"""The PyTorch forms: equal to NumPy, differentiable, and at home in a transformers model."""

import copy
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("entmax")

from lab.tests.surrogates.conftest import SCALES, calibrated, data

import hccs.nn
import hccs_lab.surrogates as surrogates
from hccs.errors import DataError, MissingExtraError
from hccs.nn import AttentionInputs, attention_layers, fill
from tests.nn.conftest import batch_for, bert


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """These tensors are small: a second thread only waits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


OPTIONS = [(name, {}) for name in surrogates.names() if name != "rela"] + [
    *(("hccs", {"mode": mode}) for mode in ("i16_clb", "u8_div", "u8_clb")),
    ("hccs_two_lines", {"mode": "u8_div"}),
    ("hccs_two_lines_uint8", {"mode": "u8_clb"}),
    *(("index_softmax", {"form": form}) for form in ("simulation", "kernel")),
    ("softmax_s8", {"output": "int16"}),
    *(("exaq", {"bits": bits}) for bits in (3, 4)),
    ("ita", {"form": "streaming"}),
    ("iron_bf16", {"engine": "aie_mlv2"}),
]


def tensors(dtype=torch.float32):
    x, valid = data()
    z = torch.tensor((x * SCALES[:, None, None]).astype(np.float32), dtype=dtype, requires_grad=True)
    return x, valid, z, torch.tensor(np.array(valid))


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_forward_equals_numpy(name, options):
    x, valid, z, mask = tensors()
    method, params = calibrated(name, x, SCALES, valid)
    expected = method(x, SCALES, valid, **params, **options)
    found = method.module(SCALES, {**params, **options}).eval()(z, mask).detach()
    assert found.dtype == z.dtype
    if expected.integers is None and name not in ("consmax", "vitis_bf16", "iron_bf16"):
        np.testing.assert_allclose(found.numpy(), expected.probabilities, atol=1e-6)
    else:
        np.testing.assert_array_equal(found.numpy(), expected.probabilities.astype(np.float32))
    assert (found[~mask] == 0).all()


def test_no_mask_is_a_full_mask(name):
    x, _, z, mask = tensors()
    method, params = calibrated(name, x, SCALES, None)
    module = method.module(SCALES, params).eval()
    assert torch.equal(module(z, None), module(z, torch.ones_like(mask)))


def test_half_precision_models(name):
    x, valid, z, mask = tensors()
    method, params = calibrated(name, x, SCALES, valid)
    module = method.module(SCALES, params).eval()
    wide = module(z, mask)
    found = module.to(torch.bfloat16)(z.to(torch.bfloat16), mask)
    assert found.dtype == torch.bfloat16
    # Rounding the logits to 8 bits moves them by at most 2^-8 of themselves, or one int8 step.
    assert (found.float() - wide).abs().mean() < 0.02 * wide.abs().mean() + 0.01


def test_gradients_are_finite_and_stay_off_the_mask(name):
    x, valid, z, mask = tensors()
    method, params = calibrated(name, x, SCALES, valid)
    for module in (method.module(SCALES, params).train(), method.module(SCALES, params).eval()):
        z.grad = None
        p = module(z, mask)
        (p * torch.linspace(-1, 1, p.shape[-1])).sum().backward()
        assert torch.isfinite(z.grad).all()
        assert (z.grad[~mask] == 0).all()
        assert z.grad.abs().sum() > 0.1


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax15", "entmax"])
def test_true_gradients(name):
    z = torch.tensor([[[[0.3, -0.2, 0.9, 0.1], [1.0, 0.4, 0.35, -0.6]]]], dtype=torch.float64)
    mask = torch.tensor([True, True, True, False])
    # softmax computes in float32 at most, whose steps are coarse.
    rough = {"eps": 1e-3, "atol": 1e-2} if name == "softmax" else {}
    module = surrogates.get(name).module(np.array([0.05])).eval()
    assert torch.autograd.gradcheck(lambda t: module(t, mask), (z.requires_grad_(),), **rough)


@pytest.mark.parametrize("name", ["consmax", "entmax"])
def test_learnt_parameters(name):
    x, valid, z, mask = tensors(torch.float64)
    method, params = calibrated(name, x, SCALES, valid)
    module = method.module(SCALES, params).train()
    assert set(module.learnt) == set(method.learnable) and len(list(module.parameters())) > 0

    def loss(*values):
        given = dict(zip(method.learnable, values, strict=True))
        shaped = {key: value[:, None, None] for key, value in given.items()}
        return (method.smooth(z.detach(), mask, **shaped) * torch.linspace(-1, 1, 40)).sum()

    values = [torch.tensor(params[key], requires_grad=True) for key in method.learnable]
    assert torch.autograd.gradcheck(loss, values, atol=1e-3, rtol=1e-3)

    for key, least in method.learnable.items():
        outside = method.module(SCALES, params)
        with torch.no_grad():
            outside.learnt[key].fill_(min(least, 1.0) - 0.5 if np.isfinite(least) else -20.0)
        for mode in (True, False):
            p = outside.train(mode)(z, mask)
            assert torch.isfinite(p).all()
            outside.zero_grad()
        if np.isfinite(least):
            np.testing.assert_allclose(outside.parameters_now()[key], least, rtol=1e-3)

    before = module.eval()(z, mask)
    optimiser = torch.optim.SGD(module.train().parameters(), lr=1e-3)
    (module(z, mask) * torch.linspace(-1, 1, 40)).sum().backward()
    optimiser.step()
    after, now = module.eval()(z, mask), module.parameters_now()
    assert not torch.equal(before, after)
    expected = method(x, SCALES, valid, **now).probabilities
    np.testing.assert_allclose(after.detach().numpy(), expected, atol=1e-6)


def test_straight_through_is_the_gradient_of_softmax_inside_the_range():
    z = torch.tensor([[[[0.31, -0.22, 0.9, 99.0]]]], requires_grad=True)
    module = surrogates.get("ibert").module(np.array([0.1]))
    weights = torch.tensor([0.3, -1.0, 2.0, 0.5])
    (module(z, None) * weights).sum().backward()
    quantised = torch.tensor([0.3, -0.2, 0.9, 12.7], requires_grad=True)
    (torch.softmax(quantised, -1) * weights).sum().backward()
    expected = quantised.grad.clone()
    expected[3] = 0  # clipped
    torch.testing.assert_close(z.grad[0, 0, 0], expected)


def test_nan_is_refused(name):
    params = {
        "hccs": {"B": 700, "S": 9, "D": 70},
        "hccs_two_lines": {"B": 1023, "S": 4, "D": 50, "S2": 41, "D2": 20, "f": 0},
        "hccs_two_lines_uint8": {"B": 1023, "S": 4, "D": 50, "S2": 41, "D2": 20, "f": 2},
        "consmax": {"beta": 1, "gamma": 1},
        "exaq": {"sigma": 1, "span": 1},
    }.get(name, {})
    module = surrogates.get(name).module(np.array([0.1]), params)
    with pytest.raises(DataError, match="finite logits"):
        module(torch.full((1, 1, 1, 4), torch.nan), None)


def test_without_torch_the_refusal_names_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "hccs_lab.surrogates.modules", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match="PyTorch for the module of a surrogate"):
        surrogates.get("ibert").module(0.1)


# --- in a model ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    """A model and the logit scales of its layers."""
    torch.manual_seed(0)
    model = bert().eval()
    return model, hccs.nn.collect(model, [batch_for("bert")]).scale


def test_every_method_runs_and_trains_in_a_model(trained, name):
    model, scales = copy.deepcopy(trained[0]), trained[1]
    method, x = surrogates.get(name), data()[0][:, [0, 1, 2, 0]]
    fill(
        {
            layer: method.module(scale, method.calibrate(x, scale))
            for layer, scale in zip(attention_layers(model), scales, strict=True)
        },
        model,
    )
    batch = batch_for("bert")
    with torch.no_grad():
        result = model(**batch, output_attentions=True)
    assert torch.isfinite(result.logits).all()
    keys = batch["attention_mask"].bool()[:, None, None, :]
    for layer in result.attentions:
        assert (layer.masked_select(~keys.expand_as(layer)) == 0).all()
    model.train()
    model(**batch).logits.square().sum().backward()
    gradients = [p.grad for n, p in model.named_parameters() if "query" in n or "learnt" in n or ".gain" in n]
    assert all(g is not None and torch.isfinite(g).all() for g in gradients)
    assert sum(float(g.abs().sum()) for g in gradients) > 0
    twin = copy.deepcopy(model).eval()
    with torch.no_grad():
        assert torch.equal(twin(**batch).logits, model.eval()(**batch).logits)
        original = trained[0](**batch).logits
        assert torch.equal(hccs.nn.detach(model)(**batch).logits, original)


def test_rela_attends_by_its_equations():
    torch.manual_seed(0)
    module = surrogates.get("rela").module(np.full(2, 0.1), {"width": 4})
    q, k, value = torch.randn(3, 2, 5, 4), torch.randn(3, 2, 6, 4), torch.randn(3, 2, 6, 4)
    valid = torch.arange(6) < torch.tensor([6, 4, 1])[:, None, None, None]
    with torch.no_grad():
        module.gain.copy_(torch.randn_like(module.gain))
        module.gate.copy_(torch.randn_like(module.gate))
        inputs = AttentionInputs(q, k, value, valid, scaling=0.5)
        output, scores = module.attend(inputs)
    z = q @ k.transpose(-1, -2) * 0.5
    assert torch.equal(scores, torch.where(valid, z, 0).clamp(min=0))
    for token in np.ndindex(3, 5):
        o = torch.cat([scores[token[0], h, token[1]] @ value[token[0], h] for h in range(2)])
        rms = o.square().mean().sqrt().clamp(min=1e-4)
        expected = module.gain.reshape(-1) * o / rms * torch.sigmoid(module.gate.reshape(-1) * o)
        torch.testing.assert_close(output[token[0], :, token[1]].reshape(-1), expected, rtol=1e-4, atol=1e-5)
