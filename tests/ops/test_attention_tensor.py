import numpy as np
import pytest

torch = pytest.importorskip("torch")

import hccs
from hccs.errors import DtypeError, HccsError
from hccs.reference.attention import attention as reference_attention

THETA = hccs.HeadParams(B=[444, 300], S=[11, 4], D=[40, 60])
REQUANT = hccs.Requant.from_scales(
    q_scale=0.02, k_scale=[0.02, 0.03], v_scale=0.01, logit_scale=0.1, scaling=0.25, out_scale=0.01
)


def heads(seed: int, tokens: int) -> torch.Tensor:
    """[batch, heads, tokens, d] as a view into a projection [batch, tokens, heads, d]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, (3, tokens, 2, 20), generator=generator).to(torch.int8).transpose(1, 2)


@pytest.mark.parametrize("mode", [None, "u8_div", "u8_clb"])
@pytest.mark.parametrize("out", ["pair", "float32", "int8"])
def test_tensors_equal_the_reference(mode, out):
    q, k, v = heads(1, 9), heads(2, 37), heads(3, 37)
    generator = torch.Generator().manual_seed(4)
    for options in (
        {},
        {"causal": True},
        {"valid": torch.rand(3, 1, 1, 37, generator=generator) > 0.4},
        {"valid": torch.randint(0, 38, (3, 1, 9), generator=generator)},
    ):
        arrays = {name: value.numpy() if torch.is_tensor(value) else value for name, value in options.items()}
        expected = reference_attention(
            q.numpy(), k.numpy(), v.numpy(), THETA, REQUANT, mode=mode, out=out, **arrays
        )
        found = hccs.attention(q, k, v, THETA, REQUANT, mode=mode, out=out, **options)
        for a, b in zip(*(x if out == "pair" else (x,) for x in (found, expected)), strict=True):
            assert torch.is_tensor(a)
            assert np.array_equal(a.numpy(), b)


@pytest.mark.parametrize("out", ["float16", "bfloat16"])
def test_half_precision_is_the_float32_result_rounded_once(out):
    q, k, v = heads(5, 4), heads(6, 21), heads(7, 21)
    found = hccs.attention(q, k, v, THETA, REQUANT, out=out)
    assert found.dtype == getattr(torch, out)
    assert torch.equal(found, hccs.attention(q, k, v, THETA, REQUANT).to(found.dtype))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"q": heads(1, 4).float()}, "q of dtype int8; got dtype torch.float32"),
        ({"k": heads(1, 4).short()}, "k of dtype int8"),
        ({"v": heads(1, 4).numpy()}, "v to be a torch tensor like q; got ndarray"),
        ({"v": heads(1, 4).to("meta")}, "v on q's device cpu; got device meta"),
        ({name: heads(1, 4).to("meta") for name in "qkv"}, "on the CPU or on CUDA; got device meta"),
        ({"valid": torch.ones(4)}, "booleans or integer lengths"),
        ({"causal": torch.tensor(True)}, "causal to be True or False"),
    ],
)
def test_refusals(change, says):
    arguments = {"q": heads(1, 4), "k": heads(1, 4), "v": heads(1, 4), **change}
    with pytest.raises(DtypeError, match=says) as caught:
        hccs.attention(*(arguments.pop(name) for name in "qkv"), THETA, REQUANT, **arguments)
    assert isinstance(caught.value, HccsError)


def test_an_array_among_tensors_is_refused():
    with pytest.raises(DtypeError, match="k to be a NumPy array like q"):
        hccs.attention(heads(1, 4).numpy(), heads(1, 4), heads(1, 4), THETA, REQUANT)
