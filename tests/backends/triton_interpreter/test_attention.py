"""Attention's kernels against the reference: every path, case by case."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import hccs
from hccs.backends.triton.attention.launch import attention
from hccs.backends.triton.attention.tuning import Kernel, Seen, Shape, Tuning, tuning_for
from hccs.errors import MaskError
from hccs.ops import arguments
from hccs.reference.attention import attention as reference_attention

# The interpreter computes with NumPy, which warns of values that kernels leave out afterwards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

REQUANT = hccs.Requant(hccs.FixedPoint([3, 9 << 19], [9, 35]), [0.037, 0.5], hccs.FixedPoint(12345678, 24))


def tiles(rows, keys, **settings):
    return Tuning(Kernel.TILES, rows, keys, **settings)


SPLIT = Tuning(Kernel.SPLIT_KEYS, 16, 32, split=64)


def one_query(ahead):
    return Tuning(Kernel.ONE_QUERY, 1, 32, stages=ahead)


# Tails everywhere; keys kept in one block and in two; programs that go from head to head; keys in two passes;
# a head in chunks.
SHAPES = {
    "tails": (5, 7, 3, None),
    "one of each": (1, 1, 1, None),
    "no keys": (2, 0, 4, None),
    "no keys, one query": (1, 0, 4, None),
    "persistent programs": (20, 32, 32, tiles(16, 32, repeat=2, persistent=1)),
    "two blocks kept": (17, 40, 32, tiles(16, 32, blocks=2, repeat=2)),
    "two blocks kept, aligned": (64, 64, 32, tiles(16, 32, blocks=2, repeat=4)),
    "room for a block that is not there": (5, 100, 8, tiles(16, 128, blocks=2, repeat=2)),
    "two passes": (16, 40, 8, tiles(16, 32)),
    "head in chunks": (3, 33, 130, tiles(16, 32)),
    "two long passes": (3, 100, 8, tiles(16, 32)),
    "two passes, aligned": (32, 64, 8, tiles(16, 32)),
    "split keys": (3, 70, 20, SPLIT),
    "split keys, full blocks": (2, 64, 32, SPLIT),
    "split keys, one query": (1, 70, 32, SPLIT),
    "one query": (1, 70, 32, one_query(3)),
    "one query, full blocks": (1, 64, 64, one_query(1)),
    "one query, one block": (1, 20, 32, one_query(4)),
}
KINDS = {
    "all": (None, False, None, "pair"),
    "probabilities": (None, False, "u8_div", "float32"),
    "mask": ("mask", False, None, "float32"),
    "common mask, causal": ("common", True, None, "pair"),
    "lengths, causal": ("lengths", True, None, "int8"),
    "causal": (None, True, None, "float32"),
    "common lengths": ("common lengths", False, "u8_clb", "pair"),
}


def selected(rng, kind, nq, nk):
    if kind in ("mask", "common"):
        return rng.random((2, 1, nq if kind == "mask" else 1, nk)) < 0.6
    return None if kind is None else rng.integers(0, nk + 1, (2, 2, nq) if kind == "lengths" else (2, 1, 1))


def run(q, k, v, theta, requant, valid=None, **options):
    tensors = [torch.tensor(x) for x in (q, k, v)]
    masking, valid = arguments.NO_MASK, None if valid is None else torch.tensor(valid)
    if valid is not None:
        masking = arguments.kind_of(valid)
    found = attention(*tensors, theta, requant, masking, valid, **options)
    hccs.ops.synchronise()
    return found


def require_reference(q, k, v, theta, tuning, out, mode=None, **chosen):
    expected = reference_attention(q, k, v, theta, REQUANT, mode=mode, out=out, **chosen)
    mode = None if mode is None else hccs.Mode(mode)
    found = run(q, k, v, theta, REQUANT, mode=mode, out=out, tuning=tuning, **chosen)
    for a, b in zip(*(x if out == "pair" else (x,) for x in (found, expected)), strict=True):
        assert (a.numpy() == b).all(), (chosen.keys(), mode, out)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_equal_the_reference(shape, kind):
    case, (nq, nk, d, tuning) = list(SHAPES).index(shape), SHAPES[shape]
    rng = np.random.default_rng(case)
    B = 32767 // max(nk, 1)
    parts = np.array([[B, min(127, B // 40), 40], [B // 2, min(127, B // 250), 100]])
    by_batch = case % 4 in (2, 3)
    theta = hccs.HeadParams(*(part[:, None] if by_batch else part for part in parts.T))
    limits = [-128, 127] if case % 2 else range(-128, 128)
    q, k, v = (rng.choice(limits, (2, 2, n, d)).astype(np.int8) for n in (nq, nk, nk))
    what, causal, mode, out = KINDS[kind]
    if tuning is not None and tuning.kernel is not Kernel.TILES and (mode or what in ("mask", "common")):
        pytest.skip("other kernels take masks and probabilities")
    valid, causal = selected(rng, what, nq, nk), causal and nq <= nk
    require_reference(q, k, v, theta, tuning, out, mode, valid=valid, causal=causal)


BEYOND = {**KINDS, "common mask": ("common", False, None, "pair")}


@pytest.mark.parametrize("kind", BEYOND)
@pytest.mark.parametrize("nk", [65, 129, 257, 385, 513])
def test_tunings_of_hopper_beyond_their_edges(nk, kind):
    """The blocks that the table of a GPU names, with one key in the last block."""
    nq, rng, (what, causal, mode, out) = 65, np.random.default_rng(nk), BEYOND[kind]
    q, k, v = (rng.integers(-128, 128, (1, 2, n, 32)).astype(np.int8) for n in (nq, nk, nk))
    theta = hccs.HeadParams(32767 // nk, 1, min(32767 // nk, 127))
    valid = selected(rng, what, nq, nk)
    valid = None if valid is None else valid[:1]
    seen = Seen.SOME if what else Seen.ALL
    seen = Seen.ROW_MASK if what == "mask" else Seen.CAUSAL if causal else seen
    tuning = tuning_for(Shape(nq, nk, 32, seen), (9, 0))
    require_reference(q, k, v, theta, tuning, out, mode, valid=valid, causal=causal)


WIDE = {
    "two lines": hccs.HeadParams([1023, 940], [4, 3], [50, 73], [41, 23], [20, 31]),
    "bytes": hccs.HeadParams([1023, 940], [4, 3], [50, 73], [41, 23], [20, 31], [2, 3]),
    "a head of bytes": hccs.HeadParams([1023, 5000], [4, 0], [50, 127], [41, 127], [20, 31], [2, 0]),
    "one line, large": hccs.HeadParams([32767, 20000], [127, 100], [127, 90], wide=True),
}
# Keys in two blocks of a program, in two passes, split, of one query; sums in and beyond what float32 holds.
WIDE_SHAPES = {
    "two blocks kept": (5, 40, 8, tiles(16, 32, blocks=2)),
    "two passes": (5, 70, 8, tiles(16, 32)),
    "split keys": (2, 70, 8, SPLIT),
    "split keys, one query": (1, 70, 32, SPLIT),
    "one query": (1, 70, 32, one_query(2)),
}


@pytest.mark.parametrize("chosen", [{}, {"causal": True}, {"valid": np.array([[[600], [599]]])}], ids=str)
def test_long_rows_of_uint8_scores_leave_float32_by_the_block(chosen):
    """Even rows, whose sums do; and, in the second head, rows of a few keys, whose sums stay there."""
    rng, theta = np.random.default_rng(3), WIDE["bytes"]
    q, k = (rng.integers(-128, 128, (1, 2, n, 8)).astype(np.int8) for n in (3, 600))
    k[:, 0] = 3
    v = rng.integers(120, 128, (1, 2, 600, 8)).astype(np.int8)
    require_reference(q, k, v, theta, tiles(16, 128), "pair", **chosen)


# Every form of the scores on one way through, the two extremes on all.
@pytest.mark.parametrize(
    ("shape", "theta"),
    [("two blocks kept", theta) for theta in WIDE]
    + [(shape, theta) for shape in list(WIDE_SHAPES)[1:] for theta in ("bytes", "one line, large")],
)
def test_two_lines_and_wide_sums_equal_the_reference(shape, theta):
    nq, nk, d, tuning = WIDE_SHAPES[shape]
    rng = np.random.default_rng(nk)
    q, k, v = (rng.integers(-128, 128, (2, 2, n, d)).astype(np.int8) for n in (nq, nk, nk))
    v[0] = np.abs(v[0] | 64)  # sums that nothing cancels
    cases = [({}, None, "pair"), ({"valid": rng.integers(0, nk + 1, (2, 1, nq))}, None, "int8")]
    cases.append(({"causal": nq <= nk}, None, "float32"))
    cases += [({}, hccs.Mode(mode), "pair") for mode in ("u8_div", "u8_lin") if tuning.kernel is Kernel.TILES]
    for chosen, mode, out in cases:
        require_reference(q, k, v, WIDE[theta], tuning, out, mode, **chosen)


@pytest.mark.parametrize("tuning", [None, tiles(16, 32), SPLIT], ids=str)
def test_heads_that_share_keys(tuning):
    rng, nk = np.random.default_rng(5), 30 if tuning is None else 70
    q = rng.integers(-128, 128, (2, 4, 3, 32)).astype(np.int8)
    k, v = rng.integers(-128, 128, (2, 2, 2, nk, 32)).astype(np.int8)
    theta = hccs.HeadParams(B=[400, 300, 200, 100], S=[7, 5, 3, 1], D=[40, 50, 60, 70])
    requant, lengths = hccs.Requant(hccs.FixedPoint([3, 4, 5, 6], 9)), rng.integers(0, nk + 1, (2, 4, 3))
    repeated = [np.repeat(x, 2, axis=1) for x in (k, v)]
    expected = reference_attention(q, *repeated, theta, requant, valid=lengths)
    assert (run(q, k, v, theta, requant, lengths, tuning=tuning).numpy() == expected).all()


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 2)], ids=str)
@pytest.mark.parametrize("kind", ["mask", "common", "lengths"])
def test_fewer_and_more_leading_dimensions_than_batch_and_heads(lead, kind):
    rng = np.random.default_rng(len(lead))
    q, k, v = (rng.integers(-128, 128, (*lead, n, 8)).astype(np.int8) for n in (5, 7, 7))
    theta, requant = hccs.HeadParams(B=600, S=14, D=40), hccs.Requant(hccs.FixedPoint(3, 9))
    valid = {
        "mask": rng.random((5, 7)) < 0.6,
        "common": rng.random((*lead, 1, 7)) < 0.6,
        "lengths": rng.integers(0, 8, (*lead, 5)),
    }[kind]
    expected = reference_attention(q, k, v, theta, requant, valid=valid)
    assert (run(q, k, v, theta, requant, valid).numpy() == expected).all()


@pytest.mark.parametrize("tuning", [None, tiles(16, 32)], ids=str)
@pytest.mark.parametrize("length", [-1, -(2**40), 71, 2**32], ids=str)
def test_lengths_beyond_the_keys_are_reported(length, tuning):
    nk = 70
    x = np.zeros((1, 1, nk, 32), np.int8)
    with pytest.raises(MaskError, match="row lengths between 0 and"):
        run(
            x,
            x,
            x,
            hccs.HeadParams(9, 1, 4),
            hccs.Requant(hccs.FixedPoint(3, 9)),
            np.array([length]),
            tuning=tuning,
        )
    hccs.ops.synchronise()
