import numpy as np
import pytest

torch = pytest.importorskip("torch")

import hccs
from hccs.nn.functional import hccs_softmax, quantise, surrogate
from hccs.reference.softmax import softmax as reference_softmax

THETA = hccs.HeadParams(B=[444, 300], S=[11, 4], D=[40, 60])
SCALE = torch.tensor([0.1, 0.05])
MODES = list(hccs.Mode)


def logits(seed: int, *shape: int, spread: float = 4.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * spread


def masks(seed: int, k: int) -> dict[str, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, k + 1, (3, 1, 1, 1), generator=generator)
    return {
        "none": None,
        "padding": torch.arange(k) < lengths,
        "holes": torch.rand(3, 1, 5, k, generator=generator) > 0.4,
        "empty": torch.zeros(3, 1, 1, k, dtype=torch.bool),
    }


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mask", ["none", "padding", "holes", "empty"])
@pytest.mark.parametrize("k", [1, 2, 17, 64])
def test_forward_bits_equal_the_reference(mode, mask, k):
    z = logits(k, 3, 2, 5, k)
    valid = masks(k, k)[mask]
    p = hccs_softmax(z, THETA, SCALE, mode, valid)
    expected = reference_softmax(
        quantise(z, SCALE).numpy(), THETA, mode, None if valid is None else valid.numpy()
    )
    assert torch.equal(p, torch.from_numpy(expected).float() / mode.T)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_round_only_the_result(dtype):
    z = logits(1, 3, 2, 5, 33).to(dtype)
    expected = hccs.softmax(quantise(z, SCALE), THETA, "u8_clb")
    p = hccs_softmax(z, THETA, SCALE, "u8_clb")
    assert p.dtype == dtype
    assert torch.equal(p, (expected.double() / 255).to(dtype))


def test_quantise_rounds_half_to_even_and_saturates():
    assert quantise(torch.tensor([[0.5, 1.5, -2.5, 300.0, -300.0]]), 1.0).tolist() == [[0, 2, -2, 127, -128]]


def straight_through(z, theta, scale, valid):
    real = z / scale[:, None, None]
    x = (real + (real.round() - real).detach()).clamp(-128, 127)
    return surrogate(x, theta, valid)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("mask", ["none", "padding", "holes"])
def test_gradient_equals_autograd_of_the_surrogate(mask, dtype):
    # On the quantiser's grid, and with some logits beyond its range, so that both slopes are exercised.
    scale = torch.tensor([0.125, 0.0625], dtype=dtype)
    z = ((logits(2, 3, 2, 5, 19, spread=6.0) / 0.125).round() * 0.125).to(dtype)
    valid = masks(2, 19)[mask]
    if valid is not None:
        valid = valid | (torch.arange(19) == 0)
    theta = torch.tensor(THETA.packed).to(dtype)
    g = logits(3, 3, 2, 5, 19).to(dtype)

    ours = [t.clone().requires_grad_() for t in (z, theta, scale)]
    hccs_softmax(*ours, "i16_div", valid).backward(g)
    exact = [t.clone().double().requires_grad_() for t in (z, theta, scale)]
    straight_through(*exact, valid).backward(g.double())
    for got, expected in zip(ours, exact, strict=True):
        torch.testing.assert_close(
            got.grad.double(),
            expected.grad,
            rtol=2e-4 if dtype == torch.float32 else 1e-9,
            atol=1e-5 if dtype == torch.float32 else 1e-12,
        )


def test_surrogate_passes_gradcheck_away_from_kinks():
    generator = torch.Generator().manual_seed(4)
    # Distances stay half a step from 0 (ties) and from D = 40, 60 (the clip).
    x = (
        torch.stack([torch.randperm(90, generator=generator)[:12] for _ in range(12)]).reshape(3, 2, 2, 12)
        + 0.0
    ).double()
    x[..., 0] += 0.25
    theta = torch.tensor(THETA.packed).double() + torch.tensor([0.0, 0.0, 0.5]).double()
    assert torch.autograd.gradcheck(
        lambda x, t: surrogate(x, t), (x.requires_grad_(), theta.requires_grad_()), eps=1e-3
    )


def test_gradient_does_not_depend_on_a_shift_of_the_row():
    z = (logits(5, 3, 2, 5, 9) / 0.1).round().mul(0.1).requires_grad_()
    hccs_softmax(z, THETA, torch.tensor([0.1, 0.1])).square().sum().backward()
    assert z.grad.sum(-1).abs().max() < 1e-5


def test_autocast_and_compile_and_export_keep_the_bits():
    z = logits(6, 2, 2, 4, 16)
    theta = torch.tensor(THETA.packed)
    expected = hccs_softmax(z, theta, SCALE)

    compiled = torch.compile(lambda z: hccs_softmax(z, theta, SCALE) * 2, backend="aot_eager", fullgraph=True)
    leaf = z.clone().requires_grad_()
    result = compiled(leaf)
    assert torch.equal(result, expected * 2)
    result.square().sum().backward()
    eager = z.clone().requires_grad_()
    (hccs_softmax(eager, theta, SCALE) * 2).square().sum().backward()
    torch.testing.assert_close(leaf.grad, eager.grad)

    class Net(torch.nn.Module):
        def forward(self, z):
            return hccs_softmax(z, theta, SCALE)

    program = torch.export.export(Net(), (z,))
    assert any("hccs.softmax_logits" in str(node.target) for node in program.graph.nodes)
    assert torch.equal(program.module()(z), expected)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = torch.randn(2, 2, 4, 8, requires_grad=True)
        p = hccs_softmax(q @ q.transpose(-1, -2), theta, SCALE)
        assert p.dtype == torch.bfloat16
        p.float().square().sum().backward()
    assert torch.isfinite(q.grad).all()


def test_operator_passes_opcheck():
    z = logits(7, 2, 2, 4, 16).requires_grad_()
    theta = torch.tensor(THETA.packed)
    torch.library.opcheck(torch.ops.hccs.softmax_logits, (z, theta, SCALE, None, "u8_div"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda z: hccs_softmax(z.to(torch.int8), THETA, SCALE), hccs.errors.DtypeError, "hccs.softmax"),
        (lambda z: hccs_softmax(z[0, 0], THETA, SCALE), hccs.errors.ShapeError, r"shape \[heads\]"),
        (lambda z: hccs_softmax(z, THETA, SCALE, "i8"), hccs.errors.ModeError, "i16_div"),
        (lambda z: hccs_softmax(z, THETA, SCALE, valid=z), hccs.errors.DtypeError, "booleans or"),
        (lambda z: hccs_softmax(z * torch.nan, THETA, SCALE), hccs.errors.DataError, "NaN"),
        (
            lambda z: hccs_softmax(torch.zeros(2, 2, 1, 99), THETA, SCALE),
            hccs.errors.ParameterError,
            "99 columns",
        ),
        (
            lambda z: hccs_softmax(torch.zeros(2, 2, 1, 99), torch.tensor(THETA.packed), SCALE),
            hccs.errors.ParameterError,
            "n = 99",
        ),
        (lambda z: hccs_softmax(torch.tensor(1.0), THETA, 1.0), hccs.errors.ShapeError, "scalar"),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call(logits(8, 2, 2, 3, 16))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("theta", "scale", "says"),
    [
        (torch.tensor([300, 5, 1000]), 0.1, "1 <= D <= 127; got B = 300, S = 5, D = 1000"),
        (torch.tensor([300.0, 5.0, 1000.0]), 0.1, "1 <= D <= 127"),
        (torch.tensor([30, 5, 10]), 0.1, "B >= S"),
        (torch.tensor([300.0, torch.nan, 10.0]), 0.1, "finite B, S and D"),
        (torch.tensor([3000, 5, 10]), 0.1, "at most 10 columns"),
        (THETA, 0.0, "scale > 0"),
        (THETA, -1.0, "scale > 0"),
        (THETA, torch.tensor([0.1, 0.0]), "scale > 0"),
        (THETA, torch.tensor([0.1, torch.inf]), "scale > 0"),
        (THETA, torch.tensor(torch.nan), "scale > 0"),
    ],
)
def test_parameters_that_no_integers_could_run_are_refused(theta, scale, says, dtype):
    z = logits(8, 2, 2, 3, 16).to(dtype)
    with pytest.raises(hccs.errors.ParameterError, match=says):
        hccs_softmax(z, theta, scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lengths_stand_for_the_mask_of_so_many_columns(dtype):
    z, lengths = logits(8, 3, 2, 5, 16).to(dtype), torch.tensor([16, 3, 0]).reshape(3, 1, 1)
    mask = torch.arange(16) < lengths[..., None]
    leaves = [z.clone().requires_grad_() for _ in range(2)]
    by_length = hccs_softmax(leaves[0], THETA, SCALE, valid=lengths)
    by_mask = hccs_softmax(leaves[1], THETA, SCALE, valid=mask)
    assert torch.equal(by_length, by_mask)
    for p in (by_length, by_mask):
        p.square().sum().backward()
    assert torch.equal(leaves[0].grad, leaves[1].grad)


@pytest.mark.parametrize("isa", hccs.backends.cpu.info().available)
def test_every_instruction_set_returns_the_same_bits(isa):
    from hccs.backends.cpu.instruction_sets import select

    z, valid = logits(9, 3, 2, 5, 37), masks(9, 37)["holes"]
    expected = reference_softmax(quantise(z, SCALE).numpy(), THETA, "i16_clb", valid.numpy())
    before = hccs.backends.cpu.info().isa
    try:
        select(isa)
        p = hccs_softmax(z, THETA, SCALE, "i16_clb", valid)
    finally:
        select(before)
    assert np.array_equal((p * 32767).round().int().numpy(), expected)
