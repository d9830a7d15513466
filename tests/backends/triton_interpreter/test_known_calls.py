"""Calls that were made before, on other data: what the known launch computes equals the reference."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import hccs
from hccs.backends.triton.attention import launch
from hccs.ops import arguments, copies
from hccs.reference.attention import attention as reference_attention
from tests.backends.known_calls import stood_in_for

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

REQUANT = hccs.Requant(hccs.FixedPoint([3, 9 << 19], [9, 35]), [0.037, 0.5], hccs.FixedPoint(12345678, 24))


class Started:
    """An interpreted kernel in a compiled one's place, which takes addresses when it is known."""

    def __init__(self, kernel):
        self.kernel, self.arg_names, self.tensors = kernel, kernel.arg_names, []

    def __getitem__(self, grid):
        def start(*given, **options):
            self.tensors = given
            known = {name: option for name, option in options.items() if name in self.arg_names}
            self.kernel[grid](*given, **known)
            return SimpleNamespace(run=self.run, function=None, packed_metadata=None)

        return start

    def run(self, x, y, z, stream, function, metadata, enter, leave, hook, *given):
        like = [*self.tensors, *[None] * (len(given) - len(self.tensors))]
        self.kernel[x, y, z](*(at(a, b) for a, b in zip(given, like, strict=True)))


of_other_shapes = {}
"""By their addresses, tensors that are not laid out like those of the first call."""


def at(given, like):
    """The tensor at an address, laid out like the first where nothing else is told."""
    if not torch.is_tensor(like) or torch.is_tensor(given):
        return given
    like = of_other_shapes.get(given, like)
    steps = zip(like.shape, like.stride(), strict=True)
    count = 1 + sum((size - 1) * step for size, step in steps)
    room = (ctypes.c_char * (count * like.element_size())).from_address(given)
    return torch.frombuffer(room, dtype=like.dtype).as_strided(like.shape, like.stride())


@pytest.fixture
def known(monkeypatch):
    """Calls are remembered as on a GPU: those that were."""
    stood_in_for(monkeypatch, Started)
    monkeypatch.setattr(launch, "INTERPRETED", False)
    return launch._known


CASES = {
    "plain": (70, 70, None, {}),
    "causal": (20, 70, None, {"causal": True, "out": "pair"}),
    "probabilities": (20, 70, None, {"mode": hccs.Mode.U8_DIV}),
    "lengths": (20, 70, (2, 1, 1), {"out": "int8"}),
    "mask with rows of its own": (20, 70, (2, 1, 20, 70), {}),
    "mask of a batch, causal": (20, 70, (2, 1, 1, 70), {"causal": True}),
    "mask of everything": (20, 150, (20, 150), {"out": "pair"}),
    "mask per head": (20, 70, (2, 1, 1), {"mode": hccs.Mode.U8_CLB}),
    "one query": (1, 300, None, {}),
    "one query, a length": (1, 300, (2, 1, 1), {"out": "pair"}),
    "three queries": (3, 600, None, {"causal": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_calls_on_other_data_equal_the_reference(case, known):
    nq, nk, shape, options = CASES[case]
    options = {"causal": False, "mode": None, "out": "float32", **options}
    rng = np.random.default_rng(list(CASES).index(case))
    theta = hccs.HeadParams([32767 // nk, 40], [1, 0], [40, 127])
    masking, valids = arguments.NO_MASK, [None] * 3
    if shape is not None:
        masked = "mask" in case
        masking = arguments.MASK if masked else arguments.LENGTHS
        valids = [rng.random(shape) < 0.6 if masked else rng.integers(0, nk + 1, shape) for _ in range(3)]
    for turn, valid in enumerate(valids):
        arrays = [rng.integers(-128, 128, (2, 2, n, 32)).astype(np.int8) for n in (nq, nk, nk)]
        tensors = [torch.tensor(x) for x in arrays]
        copy = None if valid is None else copies.copied(valid, tensors[0].device, nk)
        if turn == 0:
            found = launch.attention(*tensors, theta, REQUANT, masking, copy, **options)
        else:
            found = launch.again(*tensors, theta, REQUANT, valid, **options)
        assert len(known) == 1
        expected = reference_attention(*arrays, theta, REQUANT, valid=valid, **options)
        for a, b in zip(*(x if options["out"] == "pair" else (x,) for x in (found, expected)), strict=True):
            assert (a.numpy() == b).all(), turn


# Short lengths, then lengths around the bounds of classes, and between them.
LENGTHS = sorted(
    {*range(1, 20), *range(20, 601, 37), 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 600}
)


@pytest.mark.parametrize("padded", [False, True])
def test_a_growing_cache_equals_the_reference(padded, known, monkeypatch):
    """Steps of generation on views of one cache: a class of lengths shares a plan, and nothing else.

    So do those beside a mask, of padding on the left.
    """
    rng = np.random.default_rng(0)
    theta = hccs.HeadParams([50, 40], [1, 0], [40, 127])
    cache = rng.integers(-128, 128, (2, 1, 2, 600, 32)).astype(np.int8)
    q = rng.integers(-128, 128, (600, 1, 2, 1, 32)).astype(np.int8)
    k, v = torch.tensor(cache)
    options = dict(causal=True, mode=None, out="pair")
    known_calls = 0
    for nk in LENGTHS:
        call = torch.tensor(q[nk - 1]), k[:, :, :nk], v[:, :, :nk], theta, REQUANT
        for tensor in call[1:3]:
            monkeypatch.setitem(of_other_shapes, tensor.data_ptr(), tensor)
        mask = (np.arange(nk) >= nk // 3).reshape(1, 1, 1, nk) if padded else None
        copy = None if mask is None else copies.copied(mask, call[0].device, nk)
        found = launch.again(*call, mask, **options)
        known_calls += found is not None
        if found is None:
            found = launch.attention(*call, arguments.MASK if padded else 0, copy, **options)
        expected = reference_attention(q[nk - 1], *cache[..., :nk, :], theta, REQUANT, valid=mask, **options)
        assert all((a.numpy() == b).all() for a, b in zip(found, expected, strict=True)), nk
    assert known_calls == len(LENGTHS) - 5 and len(known) == 5
