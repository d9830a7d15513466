"""Triton kernels without a GPU: assembled for Hopper; what a device can do; tuning tables.

The folder triton_interpreter runs them, in plain spellings of the machine instructions; the assembler, which
needs no GPU either, sees the instructions themselves.
"""

import dataclasses
import itertools
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.backends.amd.compiler import HIPOptions
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

import hccs
from hccs.backends.triton import codes, devices, full_rows
from hccs.backends.triton.attention import few_queries, plans, tiles
from hccs.backends.triton.attention.plans import Request
from hccs.backends.triton.attention.tuning import Kernel, Seen, Shape, tuning_for
from hccs.ops import copies

# Fused or not, the kernels' sums are exact integers.
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
compiled = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted")
THETA, REQUANT = hccs.HeadParams(444, 11, 40), hccs.Requant(hccs.FixedPoint(3, 9))
HOPPER = GPUTarget("cuda", 90, 32)
MI300 = GPUTarget("hip", "gfx942", 64)


@compiled
@pytest.mark.parametrize("mode", [mode for mode in hccs.Mode if mode.is_u8], ids=str)
@pytest.mark.parametrize(
    "scores", [codes.ONE_LINE, codes.TWO_LINES, codes.BYTES], ids=lambda code: code.value
)
def test_row_kernels_on_words_assemble(scores, mode):
    kernel = full_rows.full_rows if scores is codes.ONE_LINE else full_rows.full_rows_wide
    fixed = dict(RECIPROCAL=mode.reciprocal, PARTS=2, BLOCK_ROWS=64, WORDS=16)
    if scores is not codes.ONE_LINE:
        fixed |= dict(SCORES=scores.value, SUMS=codes.BY_BLOCK.value, LARGE=scores is codes.TWO_LINES)
    given = dict(x_ptr="*i32", theta_ptr="*i32", out_ptr="*i32") | dict.fromkeys(fixed, "constexpr")
    compile(ASTSource(kernel, {name: given[name] for name in kernel.arg_names}, fixed), HOPPER)


PLAIN = dict(
    MASKING=codes.NO_MASK, CAUSAL=False, ALL=True, LAST=False, FULL=True, MODE=codes.DEFERRED,
    OUT=codes.FLOATS, SCORES=codes.ONE_LINE, SUMS=codes.PACKED, HIGH=False, LONG=False, IS_WIDE=False,
    HOPPER=True, CHUNKS=1, BLOCK_D=64, D=64, ROWS=64, KEYS=64, TILES=1, REPEAT=1, SHARED=True,
    ONE_LENGTH=False, STEPWISE=False, FLUSH=1, SPLIT=512, SPLITS=8,
    BLOCKS=4, AHEAD=2, DENSE=True,
)  # fmt: skip
LENGTHS = dict(MASKING=codes.LENGTHS, ALL=False)
BYTES = dict(SCORES=codes.BYTES, IS_WIDE=True)
LONG = dict(SUMS=codes.BY_BLOCK, LONG=True, FLUSH=4)
IN_ONE_PASS, IN_TWO_PASSES = tiles.attention_in_one_pass, tiles.attention_in_two_passes
ONE_QUERY = few_queries.attention_of_one_query
CASES = {
    "one pass, two lines": (IN_ONE_PASS, dict(TILES=2, REPEAT=4, **BYTES)),
    "one pass, causal": (
        IN_ONE_PASS, dict(TILES=2, REPEAT=4, CAUSAL=True, ALL=False, LAST=True, STEPWISE=True),
    ),
    "one pass, lengths, int8": (
        IN_ONE_PASS, dict(**LENGTHS, FULL=False, OUT=codes.INT8, HIGH=True, SUMS=codes.APART),
    ),
    "one pass, mask": (IN_ONE_PASS, dict(REPEAT=2, MASKING=codes.MASK, ALL=False)),
    "one pass, lengths, pair": (IN_ONE_PASS, dict(**LENGTHS, REPEAT=2, OUT=codes.PAIR)),
    "two passes, common mask, pair": (
        IN_TWO_PASSES,
        dict(
            MASKING=codes.COMMON_MASK, CAUSAL=True, ALL=False, FULL=False, MODE=codes.U8_CLB, OUT=codes.PAIR,
            CHUNKS=2,
        ),
    ),
    "two passes, lengths, long": (IN_TWO_PASSES, dict(**LENGTHS, **BYTES, **LONG, FULL=False)),
    "two passes, causal": (IN_TWO_PASSES, dict(CAUSAL=True, ALL=False)),
    "split keys, logits": (few_queries.logits_of_split, dict(ROWS=16, **LENGTHS)),
    "split keys, sums": (few_queries.sums_of_split, dict(ROWS=16, **BYTES)),
    "one query": (ONE_QUERY, BYTES),
    "one query, lengths": (
        ONE_QUERY, dict(**LENGTHS, D=128, DENSE=False, OUT=codes.INT8, SCORES=codes.SHIFTED),
    ),
}  # fmt: skip


@compiled
@pytest.mark.parametrize("case", CASES)
def test_attention_assembles(case):
    kernel, changes = CASES[case]
    options = {name: getattr(value, "value", value) for name, value in {**PLAIN, **changes}.items()}
    fixed = {name: value for name, value in options.items() if name in kernel.arg_names}
    output = {codes.FLOATS.value: "bf16", codes.INT8.value: "i8", codes.PAIR.value: "i32"}[options["OUT"]]
    types = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "fault_ptr"), "*i8")
    types |= dict.fromkeys(("table_ptr", "sum_ptr", "scratch_ptr"), "*i32")
    types |= {"out_ptr": f"*{output}", "valid_ptr": "*i64" if options["MASKING"] == 1 else "*i32"}
    if kernel is ONE_QUERY:
        types |= dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "*i32")
    signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in kernel.arg_names}
    compile(ASTSource(kernel, signature, fixed), HOPPER)


@compiled
@pytest.mark.skipif(plans.shared_memory is None, reason="a Triton without its Gluon")
@pytest.mark.parametrize("scores", ["one line", "bytes"])
@pytest.mark.parametrize("n", [256, 512])
@pytest.mark.parametrize("causal", [True, False])
def test_keys_in_shared_memory_assemble(n, causal, scores, monkeypatch):
    from triton.experimental.gluon._runtime import GluonASTSource

    plan = plan_on(
        monkeypatch, theta=THETAS_IN_GLUON[scores], nk=n, nq=n, causal=causal, dtype=torch.bfloat16
    )
    (own,), tuning = plan.launches, plan.tuning
    kernel = own.kernel
    assert tuning.kernel is Kernel.KEYS_IN_SHARED_MEMORY
    fixed = {name: value for name, value in own.options.items() if name.isupper()}
    fixed |= dict(valid_ptr=None, fault_ptr=None, sum_ptr=None)
    types = dict(q_ptr="*i32", k_ptr="*i8", v_ptr="*i8", table_ptr="*i32", out_ptr="*bf16")
    signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in kernel.arg_names}
    whole = [["tt.divisibility", 16]]
    attributes = {(i,): whole for i, name in enumerate(kernel.arg_names) if name in types or name[0] in "qkv"}
    options = {"num_warps": tuning.warps, "maxnreg": tuning.registers or 255}
    asm = compile(GluonASTSource(kernel, signature, fixed, attributes), HOPPER, options).asm
    # Blocks of keys whose logits a thread computes, in all loops of the program; the first pass over the keys
    # before a causal block has the products of two more. ptxas has confused the products of two blocks.
    blocks = tuning.rows // tuning.keys + 2 if causal else tuning.blocks
    products = blocks + 2 if causal else blocks
    assert asm["ptx"].count(".s32.s8.s8") == asm["sass"].count("IGMMA") == 2 * products
    assert asm["ptx"].count(".f32.f16.f16") == asm["sass"].count("HGMMA") == tuning.keys // 16 * blocks
    assert asm["sass"].count("I2FP.F32.S32") >= tuning.keys // 2 * blocks


@compiled
@pytest.mark.parametrize("end", [None, "*i32"], ids=["all", "before an end"])
def test_quantised_operands_assemble(end):
    from hccs.backends.triton.quantise import _by_factors

    types = dict(fault_ptr="*i8", end_ptr=end)
    for part in "abc":
        types |= {f"{part}_ptr": "*bf16", f"{part}_factor_ptr": "*fp32", f"{part}_out_ptr": "*i8"}
    fixed = dict(BLOCK_ROWS=16, BLOCK_D=64) | (dict(end_ptr=None) if end is None else {})
    signature = {
        name: "constexpr" if name in fixed else types.get(name, "i32") for name in _by_factors.arg_names
    }
    compile(ASTSource(_by_factors, signature, fixed), HOPPER)


@compiled
@pytest.mark.parametrize(
    "masking", [codes.NO_MASK, codes.LENGTHS, codes.MASK], ids=["none", "lengths", "mask"]
)
def test_float_logits_assemble(masking):
    from hccs.backends.triton.float_logits import _forward

    fixed = dict(
        MASKING=masking.value, FULL=False, ONE_GROUP=False, IS_U8=True, RECIPROCAL=0, BLOCK_ROWS=64,
        BLOCK_COLUMNS=64,
    )  # fmt: skip
    types = dict(
        z_ptr="*fp32", theta_ptr="*i32", scale_ptr="*fp32", fault_ptr="*i8", p_ptr="*fp32", x_ptr="*i16"
    )
    types["valid_ptr"] = "*i64" if masking is codes.LENGTHS else "*i1"
    signature = {
        name: "constexpr" if name in fixed else types.get(name, "i32") for name in _forward.arg_names
    }
    compile(ASTSource(_forward, signature, fixed), HOPPER)


@pytest.mark.parametrize("nk", [1, 20, 64, 65, 128, 200, 256, 384, 512, 513, 4096])
def test_tunings_hold_what_their_kernel_takes(nk):
    for nq, d, hopper, seen, words, fills_gpu in itertools.product(
        [1, 16, 17, 128, 4096], [32, 64, 128], [True, False], Seen, [True, False], [True, False]
    ):
        runnable = {Kernel.SPLIT_KEYS} if nq <= 16 else set()
        runnable |= {Kernel.ONE_QUERY} if nq == 1 and words else set()
        shape = Shape(nq, nk, d, seen, frozenset(runnable), fills_gpu)
        tuning = tuning_for(shape, (9, 0) if hopper else (8, 6))
        assert tuning.kernel in {Kernel.TILES, *runnable}
        # One program per head takes a query where those fill the GPU, and keys enough pay for it.
        one = tuning.kernel is Kernel.ONE_QUERY
        assert one == (Kernel.ONE_QUERY in runnable and hopper and fills_gpu and nk > 256)
        assert (tuning.kernel is Kernel.SPLIT_KEYS) == (nq <= 16 and nk > 512 and not one)
        assert {tuning.rows, tuning.keys} <= ({1, 256} if one else {16, 32, 64, 128})
        # Programs that go from head to head keep all their keys.
        assert not tuning.persistent or nk <= tuning.keys * tuning.blocks


@pytest.mark.parametrize("seen", [Seen.ALL, Seen.CAUSAL])
@pytest.mark.parametrize("n", [64, 128, 255, 256, 384, 512, 1024])
def test_keys_lie_in_shared_memory_where_that_pays(n, seen):
    def kernel(capability=(9, 0), able=(Kernel.KEYS_IN_SHARED_MEMORY,), fills_gpu=True):
        tuning = tuning_for(Shape(n, n, 64, seen, frozenset(able), fills_gpu), capability)
        assert tuning.kernel is Kernel.TILES or tuning.blocks * tuning.keys == n
        return tuning.kernel

    pays = n in (256, 512)
    assert kernel() is (Kernel.KEYS_IN_SHARED_MEMORY if pays else Kernel.TILES)
    # Others, whose layout or device does not suit; causal heads that leave much of the GPU idle.
    assert kernel(able=()) is kernel(capability=(8, 6)) is Kernel.TILES
    pays = pays and not (seen is Seen.CAUSAL and n == 512)
    assert kernel(fills_gpu=False) is (Kernel.KEYS_IN_SHARED_MEMORY if pays else Kernel.TILES)


THETAS_IN_GLUON = {"one line": hccs.HeadParams(256, 4, 50), "bytes": hccs.HeadParams(1023, 4, 50, 41, 20, 2)}


def plan_on(monkeypatch, able=(9, 0), theta=THETA, nq=256, nk=256, kv_heads=2, aligned=True, **asked):
    """The plan of a request on a device of this capability, for eight heads, which fill it."""
    monkeypatch.setattr(plans, "heads_and_factors_on", lambda *_: torch.zeros(1, 11, dtype=torch.int32))
    monkeypatch.setattr(plans, "multiprocessors", lambda _: 1)
    monkeypatch.setattr(plans, "capability", lambda _: able)
    return plans.plan_for.__wrapped__(
        Request(
            (2, 4, nq, 64), kv_heads, nk, (2, 4), theta, REQUANT, torch.device("cuda"), words=True,
            dense=True, aligned=aligned, **asked,
        )
    )  # fmt: skip


@pytest.mark.skipif(plans.shared_memory is None, reason="a Triton without its Gluon")
def test_only_hopper_and_what_its_kernel_knows_lies_in_shared_memory(monkeypatch):
    def holds(**asked):
        plan = plan_on(monkeypatch, causal=True, **asked)
        return plan.tuning.kernel is Kernel.KEYS_IN_SHARED_MEMORY

    assert holds() and holds(dtype=torch.bfloat16)
    assert holds(theta=hccs.HeadParams(512, 4, 50, wide=True))
    # Its instructions are Hopper's own, unlike those of the table's other kernels.
    assert not holds(able=(10, 0)) and not holds(able=(8, 6))
    assert not holds(masking=1) and not holds(mode=hccs.Mode.U8_DIV) and not holds(nk=512)
    assert not holds(aligned=False) and not holds(dtype=torch.int8) and not holds(dtype=torch.int32)
    assert holds(theta=hccs.HeadParams(1023, 4, 50, 41, 20, 2))
    # Sums beyond float32; two lines with int16 scores.
    assert not holds(theta=hccs.HeadParams(513, 4, 50, wide=True))
    assert not holds(theta=hccs.HeadParams(500, 4, 50, 2, 20))


@pytest.fixture
def gpu_of_capability_9(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 4))
    devices.capability.cache_clear()
    yield torch.device("cuda", 7)
    devices.capability.cache_clear()


def test_amd_gpus_are_sent_no_ptx(gpu_of_capability_9, monkeypatch):
    # ROCm builds of torch call their devices "cuda" and give MI300 the capability 9.4.
    assert devices.capability(gpu_of_capability_9) == (9, 4)
    devices.capability.cache_clear()
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert devices.capability(gpu_of_capability_9) == (0, 0)
    assert full_rows.can_run(gpu_of_capability_9) is devices.INTERPRETED
    for nq in (64, 3, 1):
        plan = plan_on(
            monkeypatch, devices.capability(gpu_of_capability_9), hccs.HeadParams(7, 0, 1), nq,
            64 if nq == 64 else 4096, 4, growing=nq == 1,
        )  # fmt: skip
        assert plan.tuning.kernel is (Kernel.SPLIT_KEYS if nq < 64 else Kernel.TILES)
        for own in plan.launches:
            assert own.options["HOPPER"] is False
            assemble_for_amd(own.kernel, own.options)


def assemble_for_amd(kernel, options):
    """With what a plan passes, all of which AMD's compiler must know."""
    if devices.INTERPRETED:
        return
    fixed = {name: value for name, value in options.items() if name.isupper()}
    types = {name: "*i8" for name in ("q_ptr", "k_ptr", "v_ptr", "fault_ptr")}
    types |= dict(table_ptr="*i32", out_ptr="*fp32", scratch_ptr="*i32")
    fixed |= {name: None for name in ("valid_ptr", "fault_ptr", "sum_ptr") if name in kernel.arg_names}
    signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in kernel.arg_names}
    flags = {name: value for name, value in options.items() if not name.isupper()}
    assert flags.keys() <= {field.name for field in dataclasses.fields(HIPOptions)}
    assert "v_" in compile(ASTSource(kernel, signature, fixed), MI300, flags).asm["amdgcn"]


def test_tables_that_a_graph_has_recorded_are_never_freed(monkeypatch):
    """A graph knows an address alone: what the caches drop later must still be there when it is replayed."""
    monkeypatch.setattr(copies, "_recorded", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording)

    class OnGpu(torch.Tensor):
        is_cuda = True

    for recording in (False, True):
        table = torch.ones(3).as_subclass(OnGpu)
        assert copies.held(table) is table
        assert [kept is table for kept in copies._recorded.values()] == [True] * recording
