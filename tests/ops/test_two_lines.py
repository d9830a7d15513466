"""Two lines and wide sums: every kernel against an oracle written here, from docs/spec.md alone."""

from __future__ import annotations

import numpy as np
import pytest

import hccs
from hccs import errors
from hccs.reference.softmax import softmax as slow_reference
from tests.conftest import recalled

reference_softmax = recalled(slow_reference)

MODES = ["i16_div", "i16_clb", "u8_div", "u8_clb"]


def oracle(x, six, mode, valid):
    """One row in Python's integers; `valid` is a list of booleans."""
    B, S, D, S2, D2, f = six
    taken = [int(v) for v, on in zip(x, valid, strict=True) if on]
    if not taken:
        return [0] * len(x)
    top = max(taken)
    scores = [(B - S * min(top - int(v), D) - S2 * min(top - int(v), D2)) // 2**f for v in x]
    Z = sum(s for s, on in zip(scores, valid, strict=True) if on)
    T, spare = (255, 7) if mode.startswith("u8") else (32767, 0)
    k = 0
    while 2 ** (k + 1) <= Z:
        k += 1
    if mode.endswith("clb"):
        rho = T * 2**spare
    else:
        unit = 2 ** max(k - 15, 0)
        rho = (T * 2 ** (k + spare)) // (unit * -(-Z // unit))
    return [min(s * rho // 2 ** (k + spare), T) if on else 0 for s, on in zip(scores, valid, strict=True)]


def drawn_theta(rng, columns, heads=()):
    """Parameters of every kind that rows of so many columns can run: shifted or not, small and large."""
    found = []
    for _ in range(int(np.prod(heads, dtype=int))):
        D = int(rng.integers(1, 128))
        D2 = int(rng.integers(1, D + 1))
        S, S2 = (int(rng.integers(0, top)) for top in rng.choice([2, 12, 128], 2))
        f = int(rng.choice([0, 0, 1, 2, 5, 7]))
        most = min(32767, (2**24 - 1) // columns, (256 << f) - 1 if f else 32767)
        while most < S * D + S2 * D2:
            S, S2 = S // 2, S2 // 2
        B = int(rng.integers(max(S * D + S2 * D2, 1 << f), most + 1))
        if rng.random() < 0.3:
            B = most
        found.append((B, S, D, S2, D2, f))
    return hccs.HeadParams.from_packed(np.array(found).reshape(*heads, 6))


def drawn_logits(rng, shape):
    spread = rng.choice([0, 3, 20, 90], (*shape[:-1], 1))
    x = np.clip(np.rint(rng.normal(0, 1, shape) * spread), -128, 127)
    extremes = rng.choice([-128, 127], shape)
    return np.where(rng.random((*shape[:-1], 1)) < 0.1, extremes, x).astype(np.int8)


def selections(rng, shape):
    yield None
    yield rng.integers(0, shape[-1] + 1, shape[:-1])
    yield rng.integers(0, shape[-1] + 1, (*shape[:-2], 1))
    yield rng.random(shape) < rng.choice([0.05, 0.5, 0.95])


def as_mask(valid, shape):
    if valid is None:
        return np.ones(shape, bool)
    return (
        valid if valid.dtype == bool else np.arange(shape[-1]) < np.broadcast_to(valid, shape[:-1])[..., None]
    )


@pytest.mark.parametrize("mode", MODES)
def test_reference_is_the_oracle(mode):
    rng = np.random.default_rng(5)
    for columns in (1, 2, 31, 64, 300):
        theta, x = drawn_theta(rng, columns, (3,)), drawn_logits(rng, (3, 4, columns))
        for valid in selections(rng, x.shape):
            mask = as_mask(valid, x.shape)
            expected = [
                [oracle(x[h, r], theta.packed[h].tolist(), mode, mask[h, r]) for r in range(4)]
                for h in range(3)
            ]
            np.testing.assert_array_equal(reference_softmax(x, theta, mode, valid), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("columns", [1, 17, 32, 33, 64, 100, 128, 256, 512, 700])
def test_softmax_is_the_references(columns, mode, instruction_set):
    rng = np.random.default_rng(columns)
    for heads in ((), (3,)):
        theta = drawn_theta(rng, columns, heads)
        x = drawn_logits(rng, (2, 3, 19, columns))[
            :, : 3 if columns < 200 else 1, : 19 if columns < 200 else 17
        ]
        theta = theta if heads == () or x.shape[1] == 3 else drawn_theta(rng, columns, (1,))
        for valid in selections(rng, x.shape):
            expected = reference_softmax(x, theta, mode, valid)
            np.testing.assert_array_equal(hccs.softmax(x, theta, mode, valid), expected)


@pytest.mark.parametrize("mode", MODES)
def test_every_row_sum_has_the_exact_reciprocal(mode):
    """Z from 1 to 2^24 - 1, near powers of two above all, as rows of one score."""
    rng = np.random.default_rng(0)
    near = {2**k + d for k in range(24) for d in (-2, -1, 0, 1, 2)}
    for Z in sorted({z for z in near if 1 <= z < 2**24} | set(rng.integers(1, 2**24, 300).tolist())):
        columns = next((c for c in range(max(1, -(-Z // 32767)), 600) if Z % c == 0), None)
        if columns is None:
            continue
        theta = hccs.HeadParams(Z // columns, 0, 1, wide=True)
        got = hccs.softmax(np.zeros((1, columns), np.int8), theta, mode)
        assert got[0, 0] == oracle([0] * columns, theta.packed.tolist(), mode, [True] * columns)[0], Z
        assert (got == got[0, 0]).all()


def test_the_scaled_reciprocal_keeps_its_bits():
    """rho / 2^j lies below T / Z by less than 2^-13 of it; the paper's int16 one may lose half."""
    from hccs.numbers.modes import Mode
    from hccs.reference.softmax import wide_reciprocal

    rng = np.random.default_rng(1)
    for mode in (Mode.I16_DIV, Mode.U8_DIV):
        for Z in [*range(1, 3000), *rng.integers(1, 2**24, 3000).tolist(), 2**24 - 1]:
            rho, j = wide_reciprocal(Z, mode)
            assert 2**14 - 64 <= rho < 2**15
            assert mode.T * (1 - 2**-13) * 2**j < rho * Z <= mode.T * 2**j


def test_division_never_hands_out_more_than_one_and_little_less():
    rng = np.random.default_rng(2)
    theta = hccs.HeadParams(1023, 4, 50, 41, 20)
    x = drawn_logits(rng, (200, 64))
    p = hccs.softmax(x, theta).astype(int)
    assert (p.sum(-1) <= 32767).all() and (p.sum(-1) >= 32767 * (1 - 2**-13) - 64).all()


def test_the_papers_form_is_unchanged_and_plain_second_lines_are_it():
    assert hccs.HeadParams(444, 11, 40, S2=0, D2=7, f=0) == hccs.HeadParams(444, 11, 40)
    assert hccs.HeadParams(444, 11, 40).packed.tolist() == [444, 11, 40]
    assert not hccs.HeadParams(444, 11, 40).wide
    assert hccs.HeadParams(444, 11, 40, wide=True) != hccs.HeadParams(444, 11, 40)
    assert hccs.HeadParams(444, 11, 40, wide=True).packed.tolist() == [444, 11, 40, 0, 1, 0]


def test_u8_clb_has_the_papers_bits_in_either_form():
    rng = np.random.default_rng(3)
    x = drawn_logits(rng, (50, 64))
    for valid in (None, rng.integers(0, 65, 50)):
        narrow, wide = (
            hccs.softmax(x, hccs.HeadParams(444, 11, 40, wide=w), "u8_clb", valid) for w in (False, True)
        )
        np.testing.assert_array_equal(narrow, wide)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((1023, 4, 50, 41, 51), "1 <= D2 <= D = 50"),
        ((1023, 4, 50, 41, 0), "1 <= D2 <= D = 50"),
        ((1023, 4, 50, 128, 20), "0 <= S2 <= 127"),
        ((1023, 4, 50, 42, 20), r"B >= S\*D \+ S2\*D2 = 1040"),
        ((1024, 4, 50, 40, 20, 2), "a shift makes scores uint8"),
        ((1023, 4, 50, 40, 20, 8), "0 <= f <= 7"),
        ((3, 0, 1, 0, 1, 2), "a shift makes scores uint8"),
    ],
)
def test_what_no_datapath_could_run_is_refused(arguments, says):
    with pytest.raises(errors.ParameterError, match=says):
        hccs.HeadParams(*arguments)


def test_rows_too_long_for_their_sums_are_refused():
    theta = hccs.HeadParams(32767, 0, 1, wide=True)
    hccs.softmax(np.zeros((1, 512), np.int8), theta)
    with pytest.raises(errors.ParameterError, match="below 2\\^24"):
        hccs.softmax(np.zeros((1, 513), np.int8), theta)
    with pytest.raises(errors.ParameterError, match="wide sums for a second line"):
        hccs.HeadParams(1023, 4, 50, 41, 20, wide=False)


def test_names_and_shapes():
    theta = hccs.HeadParams(B=[1023, 900], S=4, D=50, S2=[41, 0], D2=20)
    assert theta.shape == (2,) and theta.packed.shape == (2, 6) and theta.wide
    assert theta.packed[1].tolist() == [900, 4, 50, 0, 20, 0]
    assert (
        repr(hccs.HeadParams(9, 1, 2, wide=True)) == "HeadParams(B=9, S=1, D=2, S2=0, D2=1, f=0, wide=True)"
    )
    assert hash(theta) == hash(
        hccs.HeadParams.from_packed(theta.packed)
    ) and theta == hccs.HeadParams.from_packed(theta.packed)
    with pytest.raises(errors.ShapeError, match="the six"):
        hccs.HeadParams.from_packed(np.ones((2, 4), int))


def test_ai_engines_say_what_they_want_of_two_lines():
    from hccs_aie import emulator
    from hccs_aie.export import plan

    theta = hccs.HeadParams(1023, 4, 50, 41, 20)
    table = hccs.ParamTable([[1023]], [[4]], [[50]], [[0.1]], 64, S2=[[41]], D2=[[20]])
    for refused in (
        lambda: emulator.softmax(np.zeros((1, 64), np.int8), theta),
        lambda: emulator.trace("blocked", "u8_clb", 64, theta),
        lambda: plan(table),
    ):
        with pytest.raises(errors.ParameterError, match="sum_bits=15"):
            refused()


def test_gpu_kernels_that_know_one_line_say_so():
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from hccs.backends.triton.float_logits import forward

    theta = torch.tensor(hccs.HeadParams(1023, 4, 50, 41, 20).packed)
    with pytest.raises(errors.ParameterError, match="on a GPU"):
        forward(torch.zeros(1, 4, 16), theta, torch.ones(()), None, hccs.Mode.U8_DIV)
