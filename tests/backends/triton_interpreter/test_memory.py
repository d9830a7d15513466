"""That kernels which leave their tensors are found out, in every other test of this folder."""

import pytest

torch = pytest.importorskip("torch")

import triton
import triton.language as tl

from tests.backends.triton_interpreter.memory import extent


@triton.jit
def _copied(x_ptr, out_ptr, first, last, COUNT: tl.constexpr):
    place = first + tl.arange(0, COUNT)
    tl.store(out_ptr + place, tl.load(x_ptr + place, mask=place < last, other=0), mask=place < last)


@triton.jit
def _added(out_ptr, place):
    tl.atomic_add(out_ptr + place, 1)


@pytest.mark.parametrize(
    ("read", "written", "first", "last", "fits"),
    [
        (16, 16, 0, 16, True),
        (13, 13, 0, 13, True),
        (13, 16, 0, 14, False),  # a load, one past the end
        (16, 13, 0, 14, False),  # a store
        (16, 16, -1, 16, False),  # before the beginning
    ],
)
def test_loads_and_stores_outside_are_told(read, written, first, last, fits):
    # Views of larger tensors: what lies around them is there, and belongs to others.
    x, out = (torch.arange(48, dtype=torch.int16)[16 : 16 + count] for count in (read, written))
    launch = _copied[(1,)]
    if fits:
        launch(x, out, first, last, COUNT=16)
        assert torch.equal(out[:last], x[:last])
    else:
        with pytest.raises(Exception, match="outside every tensor of the launch"):
            launch(x, out, first, last, COUNT=16)


def test_sums_outside_are_told():
    out = torch.zeros(4, dtype=torch.int32)
    _added[(1,)](out, 3)
    assert out.tolist() == [0, 0, 0, 1]
    with pytest.raises(Exception, match="outside every tensor of the launch"):
        _added[(1,)](out, 4)


def test_an_extent_is_that_of_the_view():
    whole = torch.zeros(4, 6, dtype=torch.int16)
    begin, end = extent(whole[1:3, 2:5])
    assert (begin - whole.data_ptr(), end - whole.data_ptr()) == (2 * 8, 2 * (2 * 6 + 5))
