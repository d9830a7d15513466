"""The kernel of many keys on Hopper: its bits on one, and what its compiler makes of it anywhere."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pipelined = pytest.importorskip(
    "hccs.backends.triton.attention.pipelined", reason="a Triton without its Gluon"
)

import hccs
from hccs.backends.triton import codes
from hccs.backends.triton.attention import plans
from hccs.backends.triton.attention.plans import Request
from hccs.backends.triton.attention.tuning import Kernel, Seen, Shape, tuning_for
from hccs.reference.attention import attention as reference_attention

HOPPER_AT_HAND = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
GPU = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER_AT_HAND, reason="no Hopper GPU")]

REQUANT = hccs.Requant(hccs.FixedPoint.nearest([0.0005, 0.01]), [0.037, 0.5], hccs.FixedPoint.nearest(0.9))
ONE_LINE = hccs.HeadParams([15, 12], [1, 0], [14, 127])
OTHERS = {
    "beyond the room that float32 leaves": hccs.HeadParams([1000, 900], [7, 3], [127, 90], wide=True),
    "two lines": hccs.HeadParams([1023, 940], [4, 3], [50, 73], [41, 23], [20, 31]),
    "two small lines": hccs.HeadParams([20, 12], [1, 0], [10, 9], [1, 1], [5, 9]),
    "uint8 scores": hccs.HeadParams([1023, 940], [4, 3], [50, 73], [41, 23], [20, 31], [2, 3]),
}


def scores_up_to(largest):
    """Of one line; the second head's reach farther."""
    return hccs.HeadParams([largest, largest - 1], [largest // 14, largest // 31], [14, 31], wide=True)


def rows(nq, nk):
    """q of two heads in two batches, k and v of one; the first batch has sums that nothing cancels."""
    rng = np.random.default_rng(nq + nk)
    q = rng.integers(-128, 128, (2, 2, nq, 64)).astype(np.int8)
    q[1] = rng.choice([-128, 127], q[1].shape)
    k, v = rng.integers(-128, 128, (2, 2, 1, nk, 64)).astype(np.int8)
    v[0] = 127 - rng.integers(0, 2, v[0].shape)
    v[1, ..., :3] = -128
    return q, k, v


def assert_reference(q, k, v, theta, *, causal=True, valid=None, outs=("float32",)):
    """On a GPU, twice: the second by what the first left known."""
    tensors = [torch.as_tensor(x, device="cuda") for x in (q, k, v)]
    host = [x.cpu().numpy() for x in tensors]
    given = None if valid is None else torch.tensor(valid, device="cuda")
    formats = {"bfloat16": "float32"}
    wanted = {formats.get(out, out) for out in outs}
    expected = {
        out: reference_attention(*host, theta, REQUANT, causal=causal, valid=valid, out=out) for out in wanted
    }
    for out in [*outs, *outs]:
        found = hccs.attention(*tensors, theta, REQUANT, causal=causal, valid=given, out=out)
        both = found, expected[formats.get(out, out)]
        for one, other in zip(*both, strict=True) if isinstance(found, tuple) else [both]:
            assert torch.equal(one.cpu(), torch.tensor(other).to(one.dtype)), out


def request(theta, nq, nk, causal, d=64, **asked):
    device = torch.device("cuda")
    return Request((2, 2, nq, d), 1, nk, (2, 2), theta, REQUANT, device, causal=causal, **asked)


SHAPES = [(640, 640), (128, 768), (896, 1024), (256, 2048)]


@pytest.mark.parametrize(("nq", "nk"), [pytest.param(*shape, marks=GPU) for shape in SHAPES])
def test_rows_equal_the_reference(nq, nk):
    for theta in (ONE_LINE, scores_up_to(2**16 // nk)):
        assert plans._can_pipeline(request(theta, nq, nk, True))  # or it would be another kernel's test
        assert_reference(*rows(nq, nk), theta, outs=("float32", "bfloat16"))


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=GPU) for kind in [*OTHERS, "one more"]])
def test_scores_it_does_not_take_equal_the_reference(kind):
    assert_reference(*rows(640, 640), OTHERS.get(kind) or scores_up_to(2**16 // 640 + 1))


@pytest.mark.parametrize("layout", [pytest.param(kind, marks=GPU) for kind in ("by token", "at odd bytes")])
def test_layouts_equal_the_reference(layout):
    """Heads side by side, as projections leave them; and rows that no copy of 16 bytes can take."""
    q, k, v = rows(640, 768)
    room = torch.empty(2, 2, 1, 768, 65, dtype=torch.int8, device="cuda")
    if layout == "by token":
        room = torch.empty(2, 768, 2, 1, 64, dtype=torch.int8, device="cuda").permute(0, 2, 3, 1, 4)
    both = room[..., :64]
    both[:, 0].copy_(torch.tensor(k))
    both[:, 1].copy_(torch.tensor(v))
    assert_reference(q, both[:, 0], both[:, 1], ONE_LINE)


ASKED = [{"outs": ("pair", "int8")}, {"valid": np.array([700, 300])[:, None, None]}]


@pytest.mark.parametrize("asked", [pytest.param(asked, marks=GPU, id=str(*asked)) for asked in ASKED])
def test_calls_it_does_not_take_equal_the_reference(asked):
    assert_reference(*rows(640, 768), ONE_LINE, **asked)


def test_it_is_chosen_where_it_can_run(monkeypatch):
    monkeypatch.setattr(plans, "heads_and_factors_on", lambda *_: torch.zeros(1, 11, dtype=torch.int32))
    monkeypatch.setattr(plans, "multiprocessors", lambda _: 1)

    def is_chosen(
        able=(9, 0), nq=1024, nk=1024, d=64, theta=ONE_LINE, masking=0, causal=True, mode=None,
        dtype=torch.bfloat16, aligned=True,
    ):  # fmt: skip
        monkeypatch.setattr(plans, "capability", lambda _: able)
        asked = request(theta, nq, nk, causal, d, masking=masking, mode=mode, dtype=dtype, aligned=aligned)
        plan = plans.plan_for.__wrapped__(asked)
        chosen = plan.tuning.kernel is Kernel.PIPELINED
        assert chosen == (plan.launches[0].kernel is plans.attention_pipelined)
        return chosen

    assert is_chosen() and is_chosen(dtype=torch.float32) and is_chosen(nq=128) and is_chosen(nk=1152)
    assert is_chosen(nq=2048, nk=2048) and is_chosen(theta=scores_up_to(64))
    for changed in [
        {"able": (8, 6)}, {"able": (10, 0)}, {"nq": 1000}, {"nk": 1088}, {"nq": 1152}, {"d": 32},
        {"nq": 512, "nk": 512}, {"masking": 1}, {"causal": False}, {"mode": hccs.Mode.U8_DIV},
        {"dtype": torch.int8}, {"dtype": torch.int32}, {"aligned": False}, {"theta": scores_up_to(65)},
        *({"theta": theta} for theta in OTHERS.values()),
    ]:  # fmt: skip
        assert not is_chosen(**changed), changed


def test_its_tuning_is_what_it_takes():
    able = frozenset({Kernel.PIPELINED})
    tuning = tuning_for(Shape(1024, 1024, 64, Seen.CAUSAL, able), (9, 0))
    assert (tuning.rows, tuning.keys, tuning.warps) == (128, 128, 8) and tuning.kernel is Kernel.PIPELINED
    # The largest scores are added two to a word; a thread holds an eighth of a row's.
    assert plans._how_scores_are_added(2**16 // 640, 640, tuning.keys) == codes.PACKED.value


@pytest.mark.parametrize("out", ["*bf16", "*fp32"])
def test_every_product_survives_the_compiler(out, tmp_path, monkeypatch):
    """ptxas has taken two products into the same registers for one, and left one out."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # which the latest asks for
    kernel = pipelined.attention_pipelined
    fixed = dict(BLOCK_D=64, ROWS=128, KEYS=128)
    fixed |= dict(valid_ptr=None, fault_ptr=None, sum_ptr=None)
    types = dict(q_ptr="*i8", k_ptr="*i8", v_ptr="*i8", table_ptr="*i32", out_ptr=out)
    names = kernel.arg_names
    signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in names}
    whole = [name for name in names if name in types or re.fullmatch("[qkv][012]|n[qk]", name)]
    source = pytest.importorskip("triton.experimental.gluon._runtime").GluonASTSource(
        kernel, signature, {(names.index(name),): value for name, value in fixed.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in whole},
    )  # fmt: skip
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    binaries = Path(triton.__file__).parent / "backends/nvidia/bin"
    if not all((binaries / name).exists() for name in ("ptxas", "nvdisasm")):
        pytest.skip("this Triton comes without NVIDIA's assembler")
    compiled = triton.compile(source, target=target, options={"num_warps": 8, "maxnreg": 128})
    assert compiled.metadata.shared <= 113 << 10  # two programs on a multiprocessor
    (tmp_path / "kernel.cubin").write_bytes(compiled.asm["cubin"])
    code = subprocess.run(
        [binaries / "nvdisasm", "-c", tmp_path / "kernel.cubin"], capture_output=True, text=True, check=True
    ).stdout
    # Two loops, and what follows each for the last block: 64 columns in steps of 32, and 128 keys in
    # steps of 16, by instructions of 64 or 32 keys and of 64 columns.
    asked = [
        len(re.findall(rf"wgmma\.mma_async\S*\.m64n{n}k{k}\b", compiled.asm["ptx"])) for n, k in PRODUCTS
    ]
    left = [len(re.findall(rf"[IH]GMMA\.64x{n}x{k}\b", code)) for n, k in PRODUCTS]
    assert left == asked == [2 * 2 * 2, 2 * 4 * 2, 2 * 8]
    assert code.count("I2FP.F32.S32") >= 2 * 64  # and so do the logits


PRODUCTS = [(64, 32), (32, 32), (64, 16)]
