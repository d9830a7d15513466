import numpy as np
import pytest

torch = pytest.importorskip("torch")

import hccs
from hccs.errors import DtypeError, MaskError, ShapeError
from hccs.reference.softmax import softmax as reference_softmax

THETA = hccs.HeadParams(B=[444, 300], S=[11, 4], D=[40, 60])
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(seed)).to(torch.int8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", list(hccs.Mode))
@pytest.mark.parametrize("k", [1, 17, 64, 73])
def test_tensors_equal_the_reference(device, mode, k):
    x = rows(k, 3, 2, 5, k)
    generator = torch.Generator().manual_seed(k)
    for valid in (
        None,
        torch.rand(3, 1, 1, k, generator=generator) > 0.4,
        torch.randint(0, k + 1, (3, 1, 5), generator=generator),
    ):
        expected = reference_softmax(x.numpy(), THETA, mode, None if valid is None else valid.numpy())
        got = hccs.softmax(x.to(device), THETA, mode, None if valid is None else valid.to(device))
        assert got.device.type == device
        assert np.array_equal(got.cpu().numpy(), expected)


@pytest.mark.parametrize("k", [pytest.param(k, marks=GPU) for k in (512, 1000, 4096, 32767)])
def test_long_rows_on_cuda(k):
    theta = hccs.HeadParams(B=32767 // k, S=0 if k > 4000 else 1, D=7 if k > 1000 else 30)
    x = rows(k, 4, 3, k)
    for mode in hccs.Mode:
        assert np.array_equal(
            hccs.softmax(x.cuda(), theta, mode).cpu().numpy(), reference_softmax(x.numpy(), theta, mode)
        )


def test_cpu_tensors_share_memory():
    x = rows(1, 2, 3, 16)
    out = torch.full(x.shape, 7, dtype=torch.int16)
    result = hccs.softmax(x, hccs.HeadParams(444, 11, 40), out=out)
    assert result is out
    assert torch.equal(out, hccs.softmax(x, hccs.HeadParams(444, 11, 40)))
    strided = rows(2, 3, 16, 4).transpose(1, 2)
    assert np.array_equal(
        hccs.softmax(strided, hccs.HeadParams(444, 11, 40)).numpy(),
        reference_softmax(strided.numpy(), hccs.HeadParams(444, 11, 40)),
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"x": torch.zeros(2, 3)}, DtypeError),
        ({"theta": (444, 11, 40)}, DtypeError),
        ({"theta": hccs.HeadParams(B=[444] * 3, S=1, D=4)}, ShapeError),
        ({"valid": torch.ones(5, dtype=torch.bool)}, MaskError),
        ({"valid": torch.full((3, 2, 5), 99)}, MaskError),
        ({"valid": torch.ones(17)}, DtypeError),
        ({"out": np.zeros(3)}, DtypeError),
        ({"out": torch.zeros(3, 2, 5, 17, dtype=torch.uint8)}, DtypeError),
        ({"out": torch.zeros(3, 2, 5, 16, dtype=torch.int16)}, ShapeError),
    ],
)
def test_refusals(device, change, error):
    arguments = {"x": rows(3, 3, 2, 5, 17), "theta": THETA, **change}
    moved = {k: v.to(device) if torch.is_tensor(v) else v for k, v in arguments.items()}
    with pytest.raises(error):
        hccs.softmax(moved.pop("x"), moved.pop("theta"), **moved)
        hccs.ops.synchronise()  # what only the device can see is told later


@pytest.mark.parametrize("device", DEVICES)
def test_memory_shared_with_the_input_is_refused(device):
    x = rows(4, 2, 4, 17).to(device)
    with pytest.raises(ShapeError, match="memory shared with x"):
        hccs.softmax(x, hccs.HeadParams(444, 11, 40), "u8_div", out=x.view(torch.uint8))


@pytest.mark.parametrize("length", [pytest.param(n, marks=GPU) for n in (-1, 18, 2**32 + 3)])
def test_lengths_beyond_the_row_are_told_without_waiting_on_cuda(length):
    x, theta = rows(5, 2, 4, 17).cuda(), hccs.HeadParams(444, 11, 40)
    hccs.softmax(x, theta, valid=torch.tensor([length], device="cuda"))
    with pytest.raises(MaskError, match="row lengths between 0 and"):
        hccs.ops.synchronise()
    hccs.softmax(x, theta)


@pytest.mark.parametrize(("given", "says"), [pytest.param(*case, marks=GPU) for case in (
    ({"z": torch.full((2, 1, 8), torch.nan)}, "finite logits"),
    ({"theta": torch.tensor([300, 5, 1000])}, "theta that integers can run"),
    ({"scale": torch.tensor(0.0)}, "scale > 0"),
)])  # fmt: skip
def test_float_logits_without_an_answer_are_told_and_nan_on_cuda(given, says):
    from hccs.nn.functional import hccs_softmax

    good = {"z": torch.zeros(2, 1, 8), "theta": torch.tensor([300, 5, 40]), "scale": torch.tensor(0.1)}
    good = {name: value.cuda() for name, value in good.items()}
    p = hccs_softmax(**{**good, **{name: value.cuda() for name, value in given.items()}})
    assert p.isnan().all()
    torch.cuda.synchronize()
    with pytest.raises(hccs.HccsError, match=says):
        hccs_softmax(**good)
    assert not hccs_softmax(**good).isnan().any()


def test_other_devices_are_refused():
    with pytest.raises(DtypeError, match="meta"):
        hccs.softmax(torch.empty(2, 4, dtype=torch.int8, device="meta"), hccs.HeadParams(444, 11, 40))
