"""A call that is made again starts its kernels with what the first call started them with, but for addresses.

Kernels are stood in for: what they get is looked at, on machines without a GPU, where none can be started.
"""

import os
from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.tools.tensor_descriptor import TensorDescriptor

import hccs
from hccs.backends.triton.attention import launch, plans
from hccs.ops import arguments, copies
from tests.backends.known_calls import stood_in_for

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted")


class Recorded:
    """In a kernel's place: the arguments of its first start, and of those past Triton."""

    def __init__(self, kernel):
        self.arg_names, self.first, self.later = kernel.arg_names, None, None

    def __getitem__(self, grid):
        def start(*given, **options):
            self.grid = (*grid, *[1] * (3 - len(grid)))
            self.first = given, options
            return SimpleNamespace(run=self.run, function="function", packed_metadata="metadata")

        return start

    def run(self, x, y, z, stream, function, metadata, *rest):
        assert (x, y, z) == self.grid
        assert (stream, function, metadata, *rest[:3]) == (
            "stream 3",
            "function",
            "metadata",
            None,
            None,
            None,
        )
        self.later = rest[3:]


@pytest.fixture
def started(monkeypatch):
    """The kernels of the last plan and its tile, for a Hopper that is not there."""
    monkeypatch.setattr(plans, "capability", lambda _: (9, 0))
    monkeypatch.setattr(plans, "multiprocessors", lambda _: 2)
    return stood_in_for(monkeypatch, Recorded)


def plainly(argument):
    """Tensors as their addresses."""
    if isinstance(argument, TensorDescriptor):
        base = argument.base
        return [base.data_ptr(), base.dtype, argument.shape, argument.strides, argument.block_shape]
    return argument.data_ptr() if torch.is_tensor(argument) else argument


CASES = {
    "one block": (64, 64, None, {}),
    "a length": (128, 128, [[[5]], [[128]]], {}),
    "lengths": (300, 300, [[[5] * 300] * 4, [[300] * 300] * 4], {"causal": True}),
    "loaded ahead": (128, 128, None, {"out": "bfloat16"}),
    "streamed": (256, 1000, None, {"mode": hccs.Mode.U8_LIN}),
    "streamed, causal": (640, 900, None, {"causal": True, "out": "pair"}),
    "held": (512, 512, None, {}),
    "all held": (256, 256, None, {}),
    "held, causal": (256, 256, None, {"causal": True}),
    "pipelined": (1024, 640, None, {}),
    "pipelined, causal": (1024, 1024, None, {"causal": True}),
    "one query": (1, 4096, None, {"out": "pair"}),
    "one query, a length": (1, 600, [[[5]], [[600]]], {"out": "int8"}),
    "one query of many heads": (1, 600, None, {"filling": True}),
    "few queries": (3, 2100, [[[5]], [[2100]]], {"causal": True}),
}
KINDS = {
    "loaded ahead": lambda tile: tile.prefetched,
    "one query": lambda tile: tile.single and tile.split,
    "one query of many heads": lambda tile: tile.single and not tile.split,
    "few queries": lambda tile: tile.split and not tile.single,
}
if plans.attention_held is not None:
    KINDS |= dict.fromkeys(["held", "all held", "held, causal"], lambda tile: tile.held)
    KINDS |= dict.fromkeys(["pipelined", "pipelined, causal"], lambda tile: tile.pipelined)


@pytest.mark.parametrize("case", CASES)
def test_the_same_launch_again(case, started, monkeypatch):
    nq, nk, lengths, options = CASES[case]
    options = {"causal": False, "mode": None, "out": "float32", **options}
    filling = options.pop("filling", False)
    monkeypatch.setattr(plans, "_fill", lambda *_: filling)
    monkeypatch.setattr(launch, "_MANY_HEADS", 4 if case == "loaded ahead" else 1 << 20)
    theta, requant = hccs.HeadParams([min(32767 // nk, 2000)] * 4, 0, 1), hccs.Requant(hccs.FixedPoint(3, 9))
    q, k, v = (torch.zeros(2, 4, n, 64, dtype=torch.int8) for n in (nq, nk, nk))
    others = [x.clone() for x in (q, k, v)]  # laid out alike
    masking, valid = arguments.NO_MASK, None
    if lengths is not None:
        lengths = torch.tensor(lengths, dtype=torch.int32)
        masking, valid = arguments.LENGTHS, copies.copied(lengths, q.device, nk)
    first = launch.attention(q, k, v, theta, requant, masking, valid, **options)
    second = launch.again(*others, theta, requant, lengths, **options)
    *kernels, tile = started
    assert KINDS.get(case, lambda tile: True)(tile)
    pairs = [(q, others[0]), (k, others[1]), (v, others[2])]
    pairs += zip(*(x if options["out"] == "pair" else (x,) for x in (first, second)), strict=True)
    assert_alike(kernels, pairs)


@pytest.mark.parametrize("shape", [(2, 1, 80, 80), (2, 1, 1, 80), (80, 80), (4, 1, 1)])
def test_the_same_launch_again_with_another_mask(shape, started, monkeypatch):
    """Its bits are packed anew: those of the mask that is given."""
    packed = []

    def pack(mask, keys):
        packed.append((mask, torch.zeros((*mask.shape[:-1], 4), dtype=torch.int32)))
        return packed[-1][1]

    monkeypatch.setattr(launch, "packed", pack)
    theta, requant = hccs.HeadParams([300] * 4, 0, 1), hccs.Requant(hccs.FixedPoint(3, 9))
    q, k, v, *others = torch.zeros(6, 2, 4, 80, 64, dtype=torch.int8)
    masks = torch.rand(shape) < 0.5, torch.rand(shape) < 0.5
    for mask in masks:
        copies.copied(mask, q.device, 80)
    first = launch.attention(q, k, v, theta, requant, arguments.MASK, masks[0])
    again = partial(launch.again, *others, theta, requant, causal=False, mode=None, out="float32")
    assert again(masks[1][:1]) is None  # of another shape
    second = again(masks[1])
    assert torch.equal(packed[0][0], masks[0]) and torch.equal(packed[1][0], masks[1])
    *kernels, _ = started
    bits = packed[0][1], packed[1][1]
    assert_alike(kernels, [*zip((q, k, v), others, strict=True), (first, second), bits])


def assert_alike(kernels, pairs):
    """Both starts of every kernel, but for the addresses of pairs of tensors."""
    moved = {before.data_ptr(): after.data_ptr() for before, after in pairs}
    for kernel in kernels:
        given, fixed = kernel.first
        assert fixed["enable_fp_fusion"] is True  # not left to Triton's version
        expected = [*map(plainly, given), *(fixed[name] for name in kernel.arg_names[len(given) :])]
        for name, before, after in zip(kernel.arg_names, expected, map(plainly, kernel.later), strict=True):
            if isinstance(before, list):
                before[0] = moved[before[0]]
            elif name.endswith("_ptr"):
                before = moved.get(before, before)
            assert before == after or name == "scratch_ptr", name
