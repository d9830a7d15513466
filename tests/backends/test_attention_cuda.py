"""Attention in Triton: every path of its kernels in the interpreter, and through the door on a GPU."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import hccs
from hccs.backends.triton.attention.tiles import tile_for
from hccs.reference.attention import attention as reference_attention

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

CHECK = """
import numpy as np, torch, triton.runtime.interpreter as interpreter

# Its scalars are arrays of one element, which NumPy no longer takes as bounds of a loop.
patch = interpreter._patch_lang_tensor
def with_index(tensor, scope):
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())
interpreter._patch_lang_tensor = with_index

import hccs
from hccs.reference.attention import attention as reference_attention
from hccs.backends.triton.attention.launch import Tile, attention

rng = np.random.default_rng(0)
requant = hccs.Requant(hccs.FixedPoint([3, 9 << 19], [9, 35]), [0.037, 0.5], hccs.FixedPoint(12345678, 24))
# Tails everywhere; keys kept in one block and in two; programs that stay, and load ahead; streamed keys; a
# head in chunks.
shapes = [(5, 7, 3, None), (1, 1, 1, None), (2, 0, 4, None),
          (20, 32, 32, Tile(16, 32, repeat=2, persistent=1)),
          (40, 32, 32, Tile(16, 32, repeat=2, persistent=1, ahead=True)),
          (33, 20, 64, Tile(16, 32, repeat=3, ahead=True)),
          (17, 40, 32, Tile(16, 32, tiles=2, repeat=2)), (16, 40, 8, Tile(16, 32)),
          (3, 33, 130, Tile(16, 32)), (3, 100, 8, Tile(16, 32))]
for case, (nq, nk, d, tile) in enumerate(shapes):
    B = 32767 // max(nk, 1)
    parts = np.array([[B, min(127, B // 40), 40], [B // 2, min(127, B // 250), 100]])
    by_batch = case % 4 in (2, 3)
    theta = hccs.HeadParams(*(part[:, None] if by_batch else part for part in parts.T))
    limits = [-128, 127] if case % 2 else range(-128, 128)
    q, k, v = (rng.choice(limits, (2, 2, n, d)).astype(np.int8) for n in (nq, nk, nk))
    for valid, causal, mode, out in [
        (None, False, None, "pair"), (None, False, "u8_div", "float32"),
        (rng.random((2, 1, nq, nk)) < 0.6, False, None, "float32"),
        (rng.random((2, 1, 1, nk)) < 0.6, nq <= nk, None, "pair"),
        (rng.integers(0, nk + 1, (2, 2, nq)), nq <= nk, None, "int8"),
        (rng.integers(0, nk + 1, (2, 1, 1)), False, "u8_clb", "pair"),
    ]:
        expected = reference_attention(
            q, k, v, theta, requant, valid=valid, causal=causal, mode=mode, out=out)
        found = attention(
            *map(torch.tensor, (q, k, v)), theta, requant,
            valid=None if valid is None else torch.tensor(valid), causal=causal,
            mode=None if mode is None else hccs.Mode(mode), out=out, tile=tile)
        for a, b in zip(*(x if out == "pair" else (x,) for x in (found, expected))):
            assert (a.numpy() == b).all(), (nq, nk, d, causal, mode, out)
# Fewer and more leading dimensions than batch and heads.
for lead in [(), (3,), (2, 1, 2)]:
    q, k, v = (rng.integers(-128, 128, (*lead, n, 8)).astype(np.int8) for n in (5, 7, 7))
    theta, one = hccs.HeadParams(B=600, S=14, D=40), hccs.Requant(hccs.FixedPoint(3, 9))
    for valid in (rng.random((5, 7)) < 0.6, rng.random((*lead, 1, 7)) < 0.6, rng.integers(0, 8, (*lead, 5))):
        expected = reference_attention(q, k, v, theta, one, valid=valid)
        found = attention(*map(torch.tensor, (q, k, v)), theta, one, valid=torch.tensor(valid))
        assert (found.numpy() == expected).all(), (lead, valid.shape)
print("same bits")
"""


def test_kernels_equal_the_reference_in_the_interpreter(triton_process):
    done = triton_process(CHECK, interpreted=True)
    assert done.stdout.strip() == "same bits", done.stderr


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from hccs.backends.triton.attention import kernels
from hccs.backends.triton.attention.prefetched import attention_ahead

outputs = ["bf16", "i8", "i32"]
plain = dict(MASKING=0, CAUSAL=False, ALL=True, FULL=True, MODE=0, OUT=0, WIDE=False, HOPPER=True, CHUNKS=1,
             BLOCK_D=64, ROWS=64, KEYS=64, TILES=1, REPEAT=1, LOOP=False, SHARED=True)
for kernel, changes in [
    (kernels.attention_resident, dict(TILES=2, REPEAT=4, LOOP=True)),
    (kernels.attention_resident, dict(MASKING=1, ALL=False, FULL=False, OUT=1, WIDE=True)),
    (kernels.attention_streamed,
     dict(MASKING=3, CAUSAL=True, ALL=False, FULL=False, MODE=2, OUT=2, CHUNKS=2)),
    (attention_ahead, dict(REPEAT=2)),
    (attention_ahead, dict(REPEAT=2, MASKING=1, ALL=False, OUT=2)),
]:
    fixed = {name: value for name, value in {**plain, **changes}.items() if name in kernel.arg_names}
    output = outputs[fixed["OUT"]]
    types = dict.fromkeys(("q_ptr", "k_ptr"), "*i8") | dict.fromkeys(("table_ptr", "sum_ptr"), "*i32")
    types["v_ptr"] = "*i32" if kernel is attention_ahead else "*i8"
    types["out_ptr"] = f"*{output}"
    types["valid_ptr"] = "*i32"
    for name, dtype in (("q_tiles", "i8"), ("k_tiles", "i8"), ("out_tiles", output)):
        types[name] = f"tensordesc<{dtype}[1, 1, 64, 64]>"
    signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in kernel.arg_names}
    compile(ASTSource(kernel, signature, fixed), GPUTarget("cuda", 90, 32))
print("compiled")
"""


def test_machine_instructions_assemble(triton_process):
    # The interpreter runs plain spellings of them; the assembler needs no GPU.
    done = triton_process(COMPILE, interpreted=False)
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]


@pytest.mark.parametrize("nk", [1, 20, 64, 65, 128, 200, 256, 384, 512, 513, 4096])
def test_tiles_hold_what_their_kernel_takes(nk):
    for nq, d, hopper, masked, per_row, many in itertools.product(
        [1, 16, 17, 128, 4096], [32, 64, 128], [True, False], [True, False], [True, False], [True, False]
    ):
        tile = tile_for(
            nq, nk, d, hopper=hopper, masked=masked, mask_per_row=masked and per_row, many_heads=many
        )
        assert {tile.rows, tile.keys} <= {16, 32, 64, 128}
        # Programs that stay have all their keys; those that load ahead have them in one block.
        assert not tile.persistent or nk <= tile.keys * tile.tiles
        assert not tile.ahead or (many and nk <= tile.keys and tile.repeat > 1)


def theta_for(nk: int) -> hccs.HeadParams:
    B = 32767 // nk
    return hccs.HeadParams(B=[B, max(B // 2, 1)], S=[min(127, B // 14), 0], D=[14, 127])


def same(found, expected) -> bool:
    pairs = zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True)
    return all(np.array_equal(a.cpu().numpy(), b) for a, b in pairs)


REQUANT = hccs.Requant(
    hccs.FixedPoint.nearest([0.0005, 0.01]), [0.037, 0.5], hccs.FixedPoint.nearest([0.9, 1.7])
)
# Around the block sizes: one token, tails, whole blocks, keys kept and streamed, heads narrow and in chunks.
SHAPES = [(1, 1, 64), (3, 7, 20), (17, 64, 64), (64, 64, 64), (70, 100, 64), (128, 128, 64), (1, 129, 64),
          (40, 256, 64), (256, 256, 32), (10, 500, 64), (130, 512, 64), (33, 700, 64), (192, 1152, 64),
          (5, 90, 128), (65, 200, 300)]  # fmt: skip


@pytest.mark.parametrize("mode", [None, "u8_div", "u8_clb"])
@pytest.mark.parametrize(("nq", "nk", "d"), [pytest.param(*shape, marks=GPU) for shape in SHAPES])
def test_cuda_equals_the_reference(nq, nk, d, mode):
    rng = np.random.default_rng(nq * nk + d)
    extreme = (nq + nk) % 2 == 0
    q, k, v = (
        rng.choice([-128, 127] if extreme else range(-128, 128), (2, 2, n, d)).astype(np.int8)
        for n in (nq, nk, nk)
    )
    tensors = [torch.tensor(x, device="cuda") for x in (q, k, v)]
    options = [
        {},
        {"valid": rng.random((2, 1, nq, nk)) < 0.5},
        {"valid": rng.integers(0, nk + 1, (2, 2, nq)), "causal": nq <= nk},
        {"valid": rng.random((2, 1, 1, nk)) < 0.5},
    ]
    for number, chosen in enumerate(options):
        out = ("pair", "float32", "int8", "pair")[number]
        expected = reference_attention(q, k, v, theta_for(nk), REQUANT, mode=mode, out=out, **chosen)
        found = hccs.attention(*tensors, theta_for(nk), REQUANT, mode=mode, out=out, **chosen)
        assert same(found, expected), (out, list(chosen))


def in_float64(q, k, v, theta, requant):
    """The float32 output by another way: float64 holds every integer of it."""
    B, S, D = (torch.tensor(theta.packed[:, i], device=q.device).long()[:, None, None] for i in range(3))
    M, r = (torch.tensor(requant.packed[:, i], device=q.device).long()[:, None, None] for i in range(2))
    acc = (q.double() @ k.double().transpose(-1, -2)).long()
    x = ((acc * M + (1 << (r - 1))) >> r).clamp(-128, 127)
    s = (B - S * torch.minimum(x.amax(-1, keepdim=True) - x, D)).double()
    v_scale = torch.tensor(requant.v_scale, device=q.device)[:, None, None]
    return (s @ v.double()).float() / s.sum(-1, keepdim=True).float() * v_scale


@pytest.mark.parametrize("n", [pytest.param(n, marks=GPU) for n in (64, 128, 256, 512, 1024)])
def test_strided_heads_and_halves_on_cuda(n, monkeypatch):
    """Heads as views into one projection, more of them than programs stay resident; both half formats."""
    monkeypatch.setattr("hccs.backends.triton.attention.launch._MANY_HEADS", 1)
    generator = torch.Generator("cuda").manual_seed(n)
    shape = (1 << 23) // (n * n) + 3, n, 2, 64
    q, k, v = (
        torch.randint(-128, 128, shape, generator=generator, device="cuda").to(torch.int8).transpose(1, 2)
        for _ in range(3)
    )
    expected = in_float64(q, k, v, theta_for(n), REQUANT)
    assert torch.equal(hccs.attention(q, k, v, theta_for(n), REQUANT), expected)
    for out in ("float16", "bfloat16"):
        found = hccs.attention(q, k, v, theta_for(n), REQUANT, out=out)
        assert torch.equal(found, expected.to(found.dtype))


@pytest.mark.parametrize(("nq", "nk"), [pytest.param(n, m, marks=GPU) for n, m in [(128, 128), (100, 120)]])
def test_heads_loaded_ahead_on_cuda(nq, nk, monkeypatch):
    """More heads than programs; the batches have their own parameters in one case."""
    monkeypatch.setattr("hccs.backends.triton.attention.launch._MANY_HEADS", 1)
    rng, batches = np.random.default_rng(nk), 300
    q, k, v = (rng.integers(-128, 128, (batches, 2, n, 64)).astype(np.int8) for n in (nq, nk, nk))
    tensors = [torch.tensor(x, device="cuda") for x in (q, k, v)]
    lengths = rng.integers(0, nk + 1, (batches, 1, 1))
    own = hccs.HeadParams(B=rng.integers(100, 200, (batches, 2)), S=1, D=rng.integers(1, 100, (batches, 2)))
    for theta, out, chosen in [
        (theta_for(nk), "pair", {}),
        (theta_for(nk), "float32", {"valid": lengths}),
        (theta_for(nk), "float32", {"valid": rng.random((batches, 1, 1, nk)) < 0.5, "mode": "u8_div"}),
        (own, "int8", {"valid": lengths, "causal": True}),
    ]:
        expected = reference_attention(q, k, v, theta, REQUANT, out=out, **chosen)
        found = hccs.attention(*tensors, theta, REQUANT, out=out, **chosen)
        assert same(found, expected), (out, list(chosen))
