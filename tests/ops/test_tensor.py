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
        ({"out": torch.zeros(3, 2, 5, 16, dtype=torch.int16)}, ShapeError),
    ],
)
def test_refusals(device, change, error):
    arguments = {"x": rows(3, 3, 2, 5, 17), "theta": THETA, **change}
    moved = {k: v.to(device) if torch.is_tensor(v) else v for k, v in arguments.items()}
    with pytest.raises(error):
        hccs.softmax(moved.pop("x"), moved.pop("theta"), **moved)


def test_other_devices_are_refused():
    with pytest.raises(DtypeError, match="meta"):
        hccs.softmax(torch.empty(2, 4, dtype=torch.int8, device="meta"), hccs.HeadParams(444, 11, 40))
