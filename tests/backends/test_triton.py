"""The Triton kernels in Triton's interpreter, for machines without a GPU; test_tensor runs them on one."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

CHECK = """
import torch, hccs
from hccs.reference.softmax import softmax as reference_softmax
from hccs.backends.triton import softmax as rows
from hccs.nn import functional
from hccs.backends.triton import float_logits as fused

theta = hccs.HeadParams(B=[444, 300], S=[11, 4], D=[40, 60])
packed, scale = torch.tensor(theta.packed), torch.tensor([0.1, 0.05])
generator = torch.Generator().manual_seed(0)
for mode in hccs.Mode:
    for k in (5, 17):
        x = torch.randint(-128, 128, (3, 2, 4, k), generator=generator).to(torch.int8)
        masks = {
            "none": None,
            "mask": torch.rand(3, 1, 4, k, generator=generator) > 0.3,
            "lengths": torch.randint(0, k + 1, (3, 1, 4), generator=generator, dtype=torch.int32),
        }
        for name, valid in masks.items():
            out = torch.full(x.shape, 77, dtype=torch.uint8 if mode.is_u8 else torch.int16)
            rows.softmax(x, packed, mode, valid, out)
            expected = reference_softmax(x.numpy(), theta, mode, None if valid is None else valid.numpy())
            assert (out.numpy() == expected).all(), (mode, k, name)
            if name == "lengths":
                continue
            z = torch.randn(3, 2, 4, k, generator=generator) * 6
            p, wide = fused.forward(z, packed, scale, valid, mode)
            expected_p, _ = torch.ops.hccs.softmax_logits(z, packed, scale, valid, mode.value)
            assert torch.equal(p, expected_p), (mode, k, name)
            g = torch.randn(z.shape, generator=generator)
            dz, learn = fused.backward(g, wide, packed.float(), scale, valid, True)
            expected_dz, expected_learn = torch.ops.hccs.softmax_logits_backward(
                g.double(), wide, packed, scale, valid, True)
            torch.testing.assert_close(dz.double(), expected_dz, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(learn.double(), expected_learn, rtol=1e-3, atol=1e-4)
for mode in hccs.Mode:  # whole rows inside one head: four logits to a word
    for k in (16, 64):
        x = torch.randint(-128, 128, (1, 2, 4096 // k, k), generator=generator).to(torch.int8)
        x[0, 0, :40] = torch.randint(100, 128, (40, k), generator=generator).to(torch.int8)
        for given in (theta, hccs.HeadParams(B=[9, 2], S=[1, 0], D=[8, 127])):
            out = torch.full(x.shape, 77, dtype=torch.uint8 if mode.is_u8 else torch.int16)
            rows.softmax(x, torch.tensor(given.packed), mode, None, out)
            assert (out.numpy() == reference_softmax(x.numpy(), given, mode)).all(), (mode, k, "words")
print("same bits")
"""


def test_kernels_equal_the_reference_in_the_interpreter(triton_process):
    done = triton_process(CHECK, interpreted=True)
    assert done.stdout.strip() == "same bits", done.stderr


COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from hccs.backends.triton.packed_rows import softmax_words

given = dict(x_ptr="*i32", theta_ptr="*i32", rows_per_group="i32", heads="i32")
for is_u8 in (True, False):
    for is_clb in (True, False):
        fixed = dict(IS_U8=is_u8, IS_CLB=is_clb, BLOCK_ROWS=64, WORDS=16)
        signature = {**given, "out_ptr": "*i32" if is_u8 else "*i64", **dict.fromkeys(fixed, "constexpr")}
        compile(ASTSource(softmax_words, signature, fixed), GPUTarget("cuda", 90, 32))
print("compiled")
"""


def test_machine_instructions_of_the_word_kernel_assemble(triton_process):
    # The interpreter runs plain spellings of them; the assembler needs no GPU.
    done = triton_process(COMPILE, interpreted=False)
    assert done.stdout.strip() == "compiled", done.stderr[-2000:]
