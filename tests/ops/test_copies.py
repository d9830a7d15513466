"""What the host holds, copied to a device once; a tensor without memory stands for one on a GPU."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import hccs
from hccs.ops import arguments, copies

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch):
    monkeypatch.setattr(copies, "_kept", {})


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor], ids=["array", "tensor"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, bool])
def test_content_decides(kind, dtype):
    valid = kind(np.array([[1], [0], [7]], dtype))
    assert copies.kept(valid, CPU, 8) is None
    first = copies.copied(valid, CPU, 8)
    assert copies.kept(valid, CPU, 8) is copies.kept(kind(np.array([[1], [0], [7]], dtype)), CPU, 8) is first
    valid[0] = 0
    assert copies.kept(valid, CPU, 8) is None
    assert first[0] != 0  # memory of its own
    valid[0] = 1
    assert copies.kept(valid, CPU, 8) is first


def test_other_shapes_dtypes_rows_and_devices_are_others():
    valid = np.array([1, 2])
    copies.copied(valid, CPU, 8)
    for other in (valid[:, None], valid.astype(np.int32), valid.astype(np.uint64), np.array([1, 2, 0])):
        assert copies.kept(other, CPU, 8) is None
    assert copies.kept(valid, CPU, 9) is None
    assert copies.kept(valid, torch.device("meta"), 8) is None


def test_what_is_kept_is_small_and_not_much():
    large = np.zeros(copies.MOST_BYTES // 8 + 1, np.int64)
    assert torch.equal(copies.copied(large, CPU, 8), torch.zeros(len(large), dtype=torch.int64))
    assert not copies._kept
    for length in range(3 * copies.MOST_KEPT):
        copies.copied(np.array([length]), CPU, 8)
        assert len(copies._kept) <= copies.MOST_KEPT
    assert copies.kept(np.array([length]), CPU, 8).item() == length


@pytest.mark.parametrize(
    "valid",
    [torch.tensor([1.5]), torch.tensor([1.5]).bfloat16(), torch.tensor([1]).to_sparse(), [1], 1],
    ids=str,
)
def test_what_is_no_plain_array_of_integers_is_not_looked_at(valid):
    assert copies.kept(valid, CPU, 8) is None


def test_a_view_backwards_and_one_that_nobody_may_write():
    backwards, fixed = np.arange(4)[::-1], np.arange(4)
    fixed.flags.writeable = False
    assert copies.copied(backwards, CPU, 8).tolist() == [3, 2, 1, 0]
    assert copies.copied(fixed, CPU, 8).tolist() == [0, 1, 2, 3]
    assert copies.kept(backwards.copy(), CPU, 8).tolist() == [3, 2, 1, 0]


def test_lengths_that_were_kept_are_still_refused_for_shorter_rows():
    x = torch.empty(2, 8, device="meta")
    lengths = np.array([8, 3])
    masking, first = arguments.read_valid(lengths, x, 8)
    assert (masking, first.device.type) == (arguments.LENGTHS, "meta")
    assert arguments.read_valid(lengths, x, 8)[1] is first
    with pytest.raises(hccs.errors.MaskError, match="between 0 and 7"):
        arguments.read_valid(lengths, x, 7)
