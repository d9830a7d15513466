"""Row kernels and training kernels against the reference; tests/ops/test_tensor.py runs them on a GPU."""

import pytest

torch = pytest.importorskip("torch")

import hccs
from hccs.backends.triton import faults, float_logits, quantise, softmax
from hccs.errors import DataError, MaskError, ParameterError
from hccs.nn import functional  # noqa: F401  registers the operators
from hccs.ops.arguments import LENGTHS, MASK, NO_MASK
from hccs.reference.softmax import softmax as reference_softmax

THETA = hccs.HeadParams(B=[444, 300], S=[11, 4], D=[40, 60])
PACKED, SCALE = torch.tensor(THETA.packed), torch.tensor([0.1, 0.05])
MODES = list(hccs.Mode)
# The interpreter computes with NumPy, which warns of values that kernels leave out afterwards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def rows(seed, *shape):
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(seed)).to(torch.int8)


def selected(kind, k):
    generator = torch.Generator().manual_seed(k)
    if kind == MASK:
        return torch.rand(3, 1, 4, k, generator=generator) > 0.3
    return torch.randint(0, k + 1, (3, 1, 4), generator=generator) if kind == LENGTHS else None


def run(x, theta, mode, masking=NO_MASK, valid=None):
    out = torch.full(x.shape, 77, dtype=torch.uint8 if mode.is_u8 else torch.int16)
    softmax.softmax(x, theta, mode, masking, valid, out, None)
    faults.synchronise()
    return out


@pytest.mark.parametrize("masking", [NO_MASK, LENGTHS, MASK], ids=["none", "lengths", "mask"])
@pytest.mark.parametrize("k", [5, 17])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_rows_equal_the_reference(mode, k, masking):
    x, valid = rows(k, 3, 2, 4, k), selected(masking, k)
    expected = reference_softmax(x.numpy(), THETA, mode, None if valid is None else valid.numpy())
    assert (run(x, THETA, mode, masking, valid).numpy() == expected).all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_lengths_of_any_integer_dtype(dtype):
    x, lengths = rows(1, 3, 2, 4, 17), selected(LENGTHS, 17)
    expected = reference_softmax(x.numpy(), THETA, "u8_div", lengths.numpy())
    assert (run(x, THETA, hccs.Mode.U8_DIV, LENGTHS, lengths.to(dtype)).numpy() == expected).all()


@pytest.mark.parametrize(
    "theta", [THETA, hccs.HeadParams(B=[9, 2], S=[1, 0], D=[8, 127])], ids=["wide", "low"]
)
@pytest.mark.parametrize("k", [16, 64])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_whole_rows_inside_one_head_four_logits_to_a_word(mode, k, theta):
    x = rows(k, 1, 2, 4096 // k, k)
    x[0, 0, :40] = rows(k + 1, 40, k) % 28 + 100
    assert (run(x, theta, mode).numpy() == reference_softmax(x.numpy(), theta, mode)).all()


def test_more_repetitions_of_heads_than_a_grid_takes(monkeypatch):
    monkeypatch.setattr(softmax, "_TILE", 64)
    x = rows(1, 5, 2, 2, 32)
    for most in (2, 1):  # by several launches; by the kernel for any rows, whose grid is one long row
        monkeypatch.setattr(softmax, "_MOST_PROGRAMS", most)
        for theta in (THETA, WIDE["two lines"]):
            expected = reference_softmax(x.numpy(), theta, "u8_div")
            assert (run(x, theta, hccs.Mode.U8_DIV).numpy() == expected).all()


WIDE = {
    "two lines": hccs.HeadParams([1023, 940], [4, 3], [50, 73], [41, 23], [20, 31]),
    "shifted": hccs.HeadParams([1023, 300], [4, 1], [50, 73], [41, 7], [20, 31], [2, 0]),
    "one line": hccs.HeadParams([32767, 2], [127, 0], 90, wide=True),
}


@pytest.mark.parametrize("theta", WIDE)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_two_lines_and_wide_sums_equal_the_reference(mode, theta):
    for masking in (LENGTHS, MASK):
        x, valid = rows(17, 3, 2, 4, 17), selected(masking, 17)
        expected = reference_softmax(x.numpy(), WIDE[theta], mode, None if valid is None else valid.numpy())
        assert (run(x, WIDE[theta], mode, masking, valid).numpy() == expected).all()
    x = rows(3, 1, 2, 4096 // 64, 64)  # whole rows, as words
    x[0, 0, :40] = rows(4, 40, 64) % 28 + 100
    assert (run(x, WIDE[theta], mode).numpy() == reference_softmax(x.numpy(), WIDE[theta], mode)).all()


@pytest.mark.parametrize("masking", [NO_MASK, LENGTHS, MASK], ids=["none", "lengths", "mask"])
@pytest.mark.parametrize("k", [5, 17])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_float_logits_equal_those_on_the_cpu(mode, k, masking):
    generator, valid = torch.Generator().manual_seed(k), selected(masking, k)
    z = torch.randn(3, 2, 4, k, generator=generator) * 6
    p, wide = float_logits.forward(z, PACKED, SCALE, valid, mode)
    expected_p, _ = torch.ops.hccs.softmax_logits(z, PACKED, SCALE, valid, mode.value)
    assert torch.equal(p, expected_p)
    g = torch.randn(z.shape, generator=generator)
    dz, learn = float_logits.backward(g, wide, PACKED.float(), SCALE, valid, True)
    expected_dz, expected_learn = torch.ops.hccs.softmax_logits_backward(
        g.double(), wide, PACKED, SCALE, valid, True
    )
    torch.testing.assert_close(dz.double(), expected_dz, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(learn.double(), expected_learn, rtol=1e-3, atol=1e-4)
    faults.synchronise()


def test_operands_are_quantised_as_on_the_cpu():
    generator = torch.Generator().manual_seed(0)
    halves = torch.randint(-300, 300, (2, 3, 5, 20), generator=generator) / 2
    factor = torch.tensor([1.0, 0.1, 1e9])
    for x in (
        halves,
        halves.transpose(1, 2).contiguous().transpose(1, 2),
        halves.bfloat16(),
        halves[..., ::2],
    ):
        expected = (x.float() * factor[:, None, None]).round().clamp(-128, 127).to(torch.int8)
        assert torch.equal(quantise.by_factor(x, factor), expected)
    faults.synchronise()


# --- what a kernel cannot take is told by the next call -----------------------------------------------------


def forward(z=None, theta=PACKED, scale=SCALE):
    z = torch.zeros(1, 2, 3, 16) if z is None else z
    return float_logits.forward(z, theta, scale, None, hccs.Mode.I16_DIV)[0]


NAN_ROW = torch.zeros(1, 2, 3, 16).index_put(tuple(torch.tensor([0, 1, 2, 5])), torch.tensor(torch.nan))


@pytest.mark.parametrize(
    ("arguments", "wrong_rows", "error", "says"),
    [
        ({"z": NAN_ROW}, (0, 1, 2), DataError, "finite logits; got NaN"),
        ({"theta": torch.tensor([[444, 11, 40], [300, 5, 1000]])}, (0, 1), ParameterError, "D <= 127"),
        ({"theta": torch.tensor([[444, 11, 40], [300.0, torch.nan, 9.0]])}, (0, 1), ParameterError, "theta"),
        (
            {"theta": torch.tensor([[3000, 1, 9], [9, 1, 2]])},
            (0, 0),
            ParameterError,
            "columns \\* B <= 32767",
        ),
        ({"scale": torch.tensor([0.1, 0.0])}, (0, 1), ParameterError, "scale > 0"),
        ({"scale": torch.tensor([-0.1, 0.1])}, (0, 0), ParameterError, "scale > 0"),
        ({"scale": torch.tensor([0.1, torch.inf])}, (0, 1), ParameterError, "scale > 0"),
    ],
)
def test_float_logits_that_have_no_answer_are_told_and_become_nan(arguments, wrong_rows, error, says):
    p = forward(**arguments)
    wrong = torch.zeros(p.shape, dtype=torch.bool)
    wrong[wrong_rows] = True
    assert torch.equal(p.isnan(), wrong)
    with pytest.raises(error, match=says):
        forward()
    assert not forward().isnan().any()  # told once


@pytest.mark.parametrize("lengths", [[-1], [18], [2**32 + 3]], ids=str)
def test_lengths_beyond_the_row_are_told(lengths):
    x, out = rows(1, 2, 4, 17), torch.empty(2, 4, 17, dtype=torch.int16)
    theta = hccs.HeadParams(444, 11, 40)
    softmax.softmax(x, theta, hccs.Mode.I16_DIV, LENGTHS, torch.tensor(lengths), out, None)
    with pytest.raises(MaskError, match="row lengths between 0 and"):
        hccs.ops.synchronise()
    hccs.ops.synchronise()


def test_operands_that_are_no_numbers_are_told():
    quantise.by_factor(torch.full((1, 1, 2, 20), torch.nan), torch.ones(1))
    with pytest.raises(DataError, match="finite q, k and v"):
        hccs.ops.synchronise()
