"""The kernel of many keys on Hopper: its bits on one, and what its compiler makes of it anywhere."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
pytest.importorskip("triton.experimental.gluon")

import hccs
from hccs.backends.triton.attention import plans
from hccs.backends.triton.attention.tiles import tile_for
from hccs.backends.triton.codes import BYTES, ONE_LINE, PACKED
from hccs.backends.triton.devices import HOPPER
from hccs.reference.attention import attention as reference_attention

HOPPER_AT_HAND = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
GPU = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER_AT_HAND, reason="no Hopper GPU")]

REQUANT = hccs.Requant(hccs.FixedPoint.nearest([0.0005, 0.01]), [0.037, 0.5])
THETAS = {
    "one line": hccs.HeadParams(B=[20, 12], S=[1, 0], D=[14, 127]),
    "large scores": hccs.HeadParams([1000, 900], [7, 3], [127, 90], wide=True),
    "two lines": hccs.HeadParams([1023, 940], [4, 3], [50, 73], [41, 23], [20, 31]),
    "uint8 scores": hccs.HeadParams([1023, 940], [4, 3], [50, 73], [41, 23], [20, 31], [2, 3]),
}


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize(
    ("nq", "nk"), [pytest.param(*shape, marks=GPU) for shape in [(640, 640), (128, 768), (1408, 1536)]]
)
def test_causal_rows_equal_the_reference(nq, nk, theta):
    rng = np.random.default_rng(nq + nk)
    q = rng.integers(-128, 128, (2, 2, nq, 64)).astype(np.int8)
    k, v = rng.integers(-128, 128, (2, 2, 1, nk, 64)).astype(np.int8)  # a head of keys for two of queries
    v[0] = np.abs(v[0] | 64)  # sums that nothing cancels
    tensors = [torch.tensor(x, device="cuda") for x in (q, k, v)]
    for out in ("float32", "bfloat16"):
        expected = reference_attention(
            q, k.repeat(2, 1), v.repeat(2, 1), THETAS[theta], REQUANT, causal=True, out="float32"
        )
        for _ in range(2):  # the second by what the first left known
            found = hccs.attention(*tensors, THETAS[theta], REQUANT, causal=True, out=out)
            assert torch.equal(found.cpu(), torch.tensor(expected).to(found.dtype))


def test_it_is_chosen_where_it_can_run():
    common = {"capability": HOPPER, "masked": True, "causal": True}
    assert tile_for(1024, 1024, 64, **common, pipelined=True).pipelined
    assert not tile_for(1024, 1024, 64, **common).pipelined
    assert not tile_for(1024, 1024, 64, capability=HOPPER, pipelined=True).pipelined
    for theta in THETAS.values():
        assert plans._is_pipelined(1024, 1024, 64, theta, HOPPER)
    large = hccs.HeadParams([14000], [100], [127], wide=True)
    mixed = hccs.HeadParams([1023, 1023], 4, 50, 41, 20, [2, 0])
    for changed in [
        {"nq": 1000}, {"nk": 1000}, {"nq": 2048}, {"d": 32}, {"theta": large}, {"theta": mixed},
        {"able": (8, 0)}, {"able": (10, 0)},
    ]:  # fmt: skip
        asked = {"nq": 1024, "nk": 1024, "d": 64, "theta": THETAS["one line"], "able": HOPPER, **changed}
        assert not plans._is_pipelined(**asked), changed


@pytest.mark.parametrize("lines", [1, 2])
def test_every_product_survives_the_compiler(lines, tmp_path, monkeypatch):
    """ptxas once took two products into the same registers for one, and left one out."""
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # which the latest asks for
    kernel = plans.pipelined.attention_pipelined
    constants = {
        "CAUSAL": True, "SCORES": (ONE_LINE if lines == 1 else BYTES).value, "SUMS": PACKED.value,
        "LONG": lines == 2, "RAISED": lines == 1, "FLUSH": 4, "BLOCK_D": 64, "ROWS": 128, "WARPS": 8,
        "valid_ptr": None, "fault_ptr": None, "sum_ptr": None,
    }  # fmt: skip
    pointers = {"q_ptr": "*i8", "k_ptr": "*i8", "v_ptr": "*i8", "table_ptr": "*i32", "out_ptr": "*bf16"}
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names}
    whole = [name for name in names if name in pointers or re.fullmatch("[qkv][012]|n[qk]", name)]
    source = pytest.importorskip("triton.experimental.gluon._runtime").GluonASTSource(
        kernel, signature, {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in whole},
    )  # fmt: skip
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": 8, "maxnreg": 128})
    assert compiled.metadata.shared <= 113 << 10  # two programs on a multiprocessor
    disassembler = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    if not disassembler.exists():
        pytest.skip("this Triton comes without nvdisasm")
    (tmp_path / "kernel.cubin").write_bytes(compiled.asm["cubin"])
    code = subprocess.run(
        [disassembler, "-c", tmp_path / "kernel.cubin"], capture_output=True, text=True, check=True
    ).stdout
    asked = len(re.findall(r"wgmma\.mma_async", compiled.asm["ptx"]))
    assert len(re.findall(r"[IH]GMMA\.64x64x", code)) == asked > 0
