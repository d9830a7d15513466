"""Attention on a GPU, as a user calls it."""

import warnings
from contextlib import contextmanager

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import hccs
from hccs.backends.triton.attention import plans
from hccs.backends.triton.attention.tuning import Kernel
from hccs.reference.attention import attention as reference_attention

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


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
          (40, 256, 64), (256, 256, 32), (300, 300, 32), (70, 260, 64), (10, 500, 64), (130, 512, 64),
          (33, 700, 64), (192, 1152, 64), (5, 90, 128), (65, 200, 300)]  # fmt: skip


TWO_LINES = {
    "int16 scores": hccs.HeadParams([1023, 940], [4, 3], [50, 73], [41, 23], [20, 31]),
    "uint8 scores": hccs.HeadParams([1023, 940], [4, 3], [50, 73], [41, 23], [20, 31], [2, 3]),
    "one line, large": hccs.HeadParams([14000, 900], [100, 3], [127, 90], wide=True),
}


@pytest.mark.parametrize("theta", TWO_LINES)
@pytest.mark.parametrize(("nq", "nk", "d"), [pytest.param(*shape, marks=GPU) for shape in SHAPES[::2]])
def test_two_lines_on_cuda_equal_the_reference(nq, nk, d, theta):
    rng = np.random.default_rng(nq * nk + d)
    q, k, v = (rng.integers(-128, 128, (2, 2, n, d)).astype(np.int8) for n in (nq, nk, nk))
    v[0] = np.abs(v[0] | 64)
    tensors = [torch.tensor(x, device="cuda") for x in (q, k, v)]
    for out, mode, chosen in [
        ("pair", None, {}), ("float32", None, {"causal": nq <= nk}), ("pair", "u8_lin", {}),
        ("int8", None, {"valid": rng.integers(0, nk + 1, (2, 2, nq))}), ("pair", "u8_div", {}),
    ]:  # fmt: skip
        expected = reference_attention(q, k, v, TWO_LINES[theta], REQUANT, mode=mode, out=out, **chosen)
        for _ in range(2):  # the second by what the first left known
            found = hccs.attention(*tensors, TWO_LINES[theta], REQUANT, mode=mode, out=out, **chosen)
            assert same(found, expected), (out, mode, list(chosen))


@pytest.mark.parametrize("heads", [pytest.param(n, marks=GPU) for n in (2, 8, 32)])
@pytest.mark.parametrize("nk", [300, 4096])
def test_one_query_and_shared_keys_on_cuda(nk, heads):
    rng = np.random.default_rng(nk + heads)
    q = rng.integers(-128, 128, (2, heads, 1, 64)).astype(np.int8)
    room = torch.tensor(rng.integers(-128, 128, (2, 2, 2, nk + 40, 64)).astype(np.int8), device="cuda")
    k, v = room[:, :, :, :nk]  # views of a cache with room for more
    theta = hccs.HeadParams(1023, 4, 50, 41, 20, 2)
    requant = hccs.Requant(hccs.FixedPoint.nearest(0.0005), 0.037, hccs.FixedPoint.nearest(0.9))
    lengths = torch.tensor(rng.integers(0, nk + 1, (2, heads, 1)), device="cuda")
    for out, valid in (("pair", None), ("float32", lengths), ("int8", lengths)):
        told = {} if valid is None else {"valid": valid.cpu().numpy()}
        expected = reference_attention(q, k.cpu().numpy(), v.cpu().numpy(), theta, requant, out=out, **told)
        for _ in range(2):
            found = hccs.attention(torch.tensor(q, device="cuda"), k, v, theta, requant, out=out, valid=valid)
            assert same(found, expected), (out, list(told))


@pytest.mark.parametrize(
    ("nk", "d"),
    [pytest.param(*shape, marks=GPU) for shape in [(256, 64), (777, 32), (600, 128), (5000, 64)]],
)
def test_a_program_for_each_head_on_cuda(nk, d, monkeypatch):
    """As for heads that fill the GPU: one launch, whose row stays in registers."""
    monkeypatch.setattr("hccs.backends.triton.attention.plans._fills_gpu", lambda *_: True)
    rng = np.random.default_rng(nk)
    q = rng.integers(-128, 128, (5, 2, 1, d)).astype(np.int8)
    room = torch.tensor(rng.integers(-128, 128, (2, 5, 2, nk + 40, d)).astype(np.int8), device="cuda")
    room[:, 0] = room[:, 0].abs() | 64  # sums that nothing cancels
    by_token = room.transpose(2, 3).contiguous().transpose(2, 3)  # heads side by side, as projections leave
    lengths = rng.integers(0, nk + 1, (5, 1, 1))
    lengths[0], lengths[1] = 0, nk
    B = min((2**24 - 1) // nk, 32767)
    large = hccs.HeadParams([B, B // 2], [min(B // 127, 127), B // 300], [127, 90], wide=True)
    for theta, out, valid, (k, v) in [
        (theta_for(nk), "pair", None, room[:, :, :, :nk]),
        (TWO_LINES["uint8 scores"], "float32", lengths, room[:, :, :, :nk]),
        (TWO_LINES["int16 scores"], "int8", lengths, by_token[:, :, :, :nk]),
        (large, "pair", None, by_token[:, :, :, :nk]),
    ]:
        told = {} if valid is None else {"valid": valid}
        expected = reference_attention(q, k.cpu().numpy(), v.cpu().numpy(), theta, REQUANT, out=out, **told)
        for _ in range(2):
            found = hccs.attention(torch.tensor(q, device="cuda"), k, v, theta, REQUANT, out=out, **told)
            assert same(found, expected), (out, list(told))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [pytest.param(n, marks=GPU) for n in (256, 512)])
def test_keys_in_shared_memory_on_cuda(n, causal, monkeypatch):
    """As for heads that fill the GPU: those whose keys lie in shared memory, and neighbours."""
    chosen = []

    def planned(request):
        chosen.append(plans.plan_for(request))
        return chosen[-1]

    monkeypatch.setattr("hccs.backends.triton.attention.plans._fills_gpu", lambda *_: True)
    monkeypatch.setattr("hccs.backends.triton.attention.launch.plan_for", planned)
    hopper = torch.cuda.get_device_capability()[0] == 9 and plans.shared_memory is not None
    rng = np.random.default_rng(n + causal)
    q = torch.tensor(rng.integers(-128, 128, (2, 4, n, 64)).astype(np.int8), device="cuda")
    q[1] = q[1].sign() * 127  # logits that saturate
    room = torch.tensor(rng.integers(-128, 128, (2, 2, 2, n + 16, 64)).astype(np.int8), device="cuda")
    room[:, 0] = room[:, 0].abs() | 64  # sums that nothing cancels
    q_by_token, by_token = (  # heads side by side, as projections leave them
        x.transpose(-3, -2).contiguous().transpose(-3, -2) for x in (q, room[:, :, :, :n])
    )
    odd = torch.empty(2, 2, 2, n, 65, dtype=torch.int8, device="cuda")[..., :64].copy_(by_token)
    requant = hccs.Requant(
        hccs.FixedPoint.nearest([0.0005, 0.01, 0.3, 0.002]), 0.037, hccs.FixedPoint.nearest(0.9)
    )
    B = 2**17 // n
    lines = {
        "one": hccs.HeadParams(B, [B // 14, B // 40, 1, 0], [14, 40, 127, 1], wide=True),
        "bytes": hccs.HeadParams(1023, 4, 50, 41, 20, [2, 2, 3, 3]),
        "two": hccs.HeadParams([200] * 4, 1, 50, 2, 20),
    }
    for theta, out, query, (k, v), suits in [
        ("one", "float32", q, room[:, :, :, :n], True),
        ("one", "bfloat16", q_by_token, by_token, True),
        ("one", "float16", q, room[:, :, :, 16:].repeat_interleave(2, dim=2), True),
        ("one", "pair", q, room[:, :, :, :n], False), ("one", "float32", q, odd, False),
        ("one", "float32", q[:, :, 1:], room[:, :, :, :n], False),
        ("bytes", "float32", q_by_token, by_token, True), ("bytes", "bfloat16", q, room[:, :, :, :n], True),
        ("two", "float32", q_by_token, by_token, False),
    ]:  # fmt: skip
        told = lines[theta], requant
        exact = "pair" if out == "pair" else "float32"
        expected = reference_attention(
            *(x.cpu().numpy() for x in (query, k, v)), *told, out=exact, causal=causal
        )
        for _ in range(2):
            found = hccs.attention(query, k, v, *told, out=out, causal=causal)
            if out in ("float16", "bfloat16"):
                rounded = torch.tensor(expected).to(found.dtype)
                assert torch.equal(found.cpu(), rounded), (theta, out)
            else:
                assert same(found, expected), (theta, out)
        in_shared_memory = chosen.pop().tuning.kernel is Kernel.KEYS_IN_SHARED_MEMORY
        assert in_shared_memory == (hopper and suits), (theta, out)


@pytest.mark.parametrize("mode", [None, "u8_div", "u8_clb", "u8_lin"])
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
def test_strided_heads_and_halves_on_cuda(n):
    """Heads as views into one projection, more of them than programs stay resident; both half formats."""
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
def test_more_heads_than_programs_on_cuda(nq, nk):
    """More heads than programs; the batches have their own parameters in one case."""
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


@contextmanager
def without_waiting():
    """Whatever waits for the device is an error."""
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this mode is a prototype, torch says
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:  # or every later test fails, too
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("nq", [pytest.param(n, marks=GPU) for n in (1, 64)])
def test_lengths_of_the_host_are_copied_once(nq):
    rng = np.random.default_rng(nq)
    q, k, v = (rng.integers(-128, 128, (4, 2, n, 64)).astype(np.int8) for n in (nq, 300, 300))
    tensors = [torch.tensor(x, device="cuda") for x in (q, k, v)]
    lengths, others = rng.integers(0, 301, (2, 4, 1, 1))

    theta = theta_for(300)

    def called(valid):
        return hccs.attention(*tensors, theta, REQUANT, valid=valid)

    first, second = (
        reference_attention(q, k, v, theta, REQUANT, valid=valid, out="float32")
        for valid in (lengths, others)
    )
    for given in (lengths.copy(), torch.tensor(lengths), lengths.tolist()):
        assert same(called(given), first)
    changed = others.copy()
    assert same(called(changed), second)
    with without_waiting():
        found = [called(lengths), called(torch.tensor(lengths)), called(changed)]
        changed[:] = lengths  # in place: the content decides
        found.append(called(changed))
    for result, expected in zip(found, (first, first, second, first), strict=True):
        assert same(result, expected)
    with pytest.raises(hccs.errors.MaskError, match="between 0 and 299"):
        hccs.attention(
            tensors[0], *(x[:, :, :299] for x in tensors[1:]), theta, REQUANT, valid=np.array([300])
        )


@pytest.mark.parametrize("nq", [pytest.param(n, marks=GPU) for n in (1, 64)])
def test_host_lengths_in_a_graph_outlive_what_is_kept(nq):
    rng = np.random.default_rng(nq)
    q, k, v = (
        torch.tensor(rng.integers(-128, 128, (4, 2, n, 64)), device="cuda").to(torch.int8)
        for n in (nq, 300, 300)
    )
    lengths, theta = rng.integers(1, 301, (4, 1, 1)), theta_for(300)
    expected = hccs.attention(q, k, v, theta, REQUANT, valid=lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = hccs.attention(q, k, v, theta, REQUANT, valid=lengths)
    for length in range(100):  # more than are kept, over what a freed copy would leave
        hccs.attention(q, k, v, theta, REQUANT, valid=np.full((4, 1, 1), length))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [pytest.param(s, marks=GPU) for s in [(4, 1, 64, 300), (1, 2, 1, 300)]])
def test_other_masks_like_the_first(shape):
    """A call that is known takes the bits of its own mask, in a graph too."""
    rng = np.random.default_rng(len(shape))
    q, k, v = (rng.integers(-128, 128, (4, 2, n, 64)).astype(np.int8) for n in (64, 300, 300))
    tensors, theta = [torch.tensor(x, device="cuda") for x in (q, k, v)], theta_for(300)
    masks = rng.random((3, *shape)) < 0.5
    expected = [reference_attention(q, k, v, theta, REQUANT, valid=mask, out="float32") for mask in masks]
    given = torch.empty(shape, dtype=torch.bool, device="cuda")

    def called():
        return hccs.attention(*tensors, theta, REQUANT, valid=given)

    for mask, right in zip(masks, expected, strict=True):
        given.copy_(torch.tensor(mask))
        assert same(called(), right)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = called()
    for mask, right in zip(masks, expected, strict=True):
        given.copy_(torch.tensor(mask))
        graph.replay()
        torch.cuda.synchronize()
        assert same(found, right)
