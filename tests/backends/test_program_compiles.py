"""Every kernel of integer programs compiles to machine code for NVIDIA's GPUs, on a machine without one.

The launches of whole programs are recorded instead of started: what is compiled is what would run.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from hccs.backends.triton import program as kernels
from hccs.executors.cuda import Engine
from hccs.numbers.layers import LinearParams
from hccs.program.cache import is_causal
from tests.program.programs import (
    BY_DISTANCE,
    language_model,
    long_program,
    random_batch,
    random_decoder,
    random_embedder,
    random_program,
)

# Its package has a function of the same name.
linear = importlib.import_module("hccs.backends.triton.program.linear")

TYPES = {
    torch.int8: "*i8", torch.uint8: "*u8", torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64",
    torch.float32: "*fp32", torch.float64: "*fp64",
}  # fmt: skip
SHARED_MEMORY, RESERVED = 233472, 1024
"""Of a multiprocessor of Hopper, and what it takes of each program's."""

OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion", "maxnreg", "launch_pdl")


def ptxas() -> bool:
    try:
        from triton.backends.nvidia.compiler import get_ptxas

        return bool(get_ptxas(90))
    except Exception:  # missing packages and missing programs alike
        return False


def noted(monkeypatch):
    """Launches, which do not start: kernel, types, constants, attributes, options."""
    found = {}

    def note(self, *args, grid, warmup, **named):
        given = {**dict(zip(self.arg_names, args, strict=False)), **named}
        options = {name: given.pop(name) for name in OPTIONS if name in given}
        constants = {param.name for param in self.params if param.is_constexpr}
        signature, constexprs, attributes = {}, {}, {}
        for place, name in enumerate(self.arg_names):
            value = given[name] if name != "NVIDIA" else True  # as it is on the GPUs below
            known = value.data_ptr() if isinstance(value, torch.Tensor) else value
            if name in constants or value is None:
                signature[name], constexprs[(place,)] = "constexpr", value
                continue
            if known % 16 == 0:  # as Triton's launch specialises
                attributes[(place,)] = [["tt.divisibility", 16]]
            if isinstance(value, torch.Tensor):
                signature[name] = TYPES[value.dtype]
            else:
                signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
        parts = signature, constexprs, options
        key = self.fn.__name__, tuple(attributes), *(tuple(part.items()) for part in parts)
        found[key] = (self, signature, constexprs, attributes, options)

    monkeypatch.setattr(JITFunction, "run", note)
    return found


def recorded(monkeypatch, program, batch):
    """The launches of a program on a batch."""
    found = noted(monkeypatch)
    engine = Engine(program, kernels, torch.device("cpu"))
    read = program.embed.read(*batch, *[None] * (3 - len(batch)), program.longest)
    if program.embed.image is not None:
        engine.answer(read.tokens, None, None, None, program.scores)
    else:
        mask = np.arange(read.tokens.shape[1]) < read.lengths[:, None]
        engine.answer(read.tokens, mask, read.types, None, program.scores)
    if is_causal(program):
        cache, texts = engine.cache(len(read.lengths), "cuda"), np.arange(len(read.lengths))
        for counts in (read.lengths, np.ones_like(read.lengths)):
            with cache.extending(program, texts, counts, "cuda"):
                engine.extend(np.zeros(counts.sum(), np.int64), counts, texts, cache, None, program.scores)
    return found


PROGRAMS = {
    "classifier": lambda: random_program(0),
    "two lines": lambda: random_program(5, 2),
    "images": lambda: random_program(3, BY_DISTANCE),
    "mean": lambda: random_embedder(0),
    "max": lambda: random_embedder(3),
    "tokens": lambda: random_embedder(4),
    "decoder": lambda: random_decoder(1),
    "windows": lambda: random_decoder(4),
    "language model": lambda: language_model(1),
    "many keys": lambda: long_program(BY_DISTANCE, False, None),
    "many keys by lines": lambda: long_program(2, True, 150),
}


def machine_code(launch, capability):
    kernel, signature, constexprs, attributes, options = launch
    overlaps = capability >= 90  # what the GPU decides at a launch
    constexprs = {**constexprs, (kernel.arg_names.index("OVERLAPS"),): overlaps}
    source = ASTSource(kernel, signature, constexprs, attributes)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert f"sm_{capability}" in made.asm["ptx"]
    assert made.asm["cubin"]
    # Where launches overlap, every program waits before it reads or writes.
    begin = made.asm["ptx"].split("ld.global")[0].split("st.global")[0]
    assert ("griddepcontrol.wait" in begin) == overlaps
    return made


pytestmark = pytest.mark.skipif(not ptxas(), reason="no ptxas: the wheel of Triton from PyPI has it")


@pytest.mark.parametrize("capability", (pytest.param(80, marks=pytest.mark.slow), 90))
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_become_machine_code(name, capability, monkeypatch):
    program = PROGRAMS[name]()
    length = 299 if name.startswith("many keys") else None
    launches = recorded(monkeypatch, program, random_batch(program, 1, 3, length))
    monkeypatch.undo()
    assert launches
    for launch in launches.values():
        made = machine_code(launch, capability)
        if launch[0].fn.__name__ == "_linear":
            assert "s32.s8.s8" in made.asm["ptx"]  # the tensor cores' product


@pytest.mark.parametrize("inputs", (200, 384))
@pytest.mark.parametrize("limit", (127, 32767))
def test_two_programs_that_keep_rows_fit_on_a_multiprocessor(inputs, limit, monkeypatch):
    monkeypatch.setattr(linear, "capability", lambda _: (9, 0))
    monkeypatch.setattr(linear, "multiprocessors", lambda _: 132)
    launches, device = noted(monkeypatch), torch.device("cpu")
    rng = np.random.default_rng(0)
    weight = rng.integers(-9, 10, (1536, inputs)).astype(np.int8)
    constant = np.full(1536, 256, np.int32)
    params = LinearParams(weight, constant, constant, limit, 128)
    layer = kernels.layer_on(params, slice(None), None, True, device)
    x = torch.empty((32768, 448), dtype=torch.int8)
    out = torch.empty((32768, 1536), dtype=torch.int8 if limit == 127 else torch.int16)
    kernels.linear(x, out, torch.tensor([32768], dtype=torch.int32), layer)
    monkeypatch.undo()
    (launch,) = launches.values()
    assert launch[0].fn.__name__ == "_linear_of_kept_rows"
    made = machine_code(launch, 90)
    assert 2 * (made.metadata.shared + RESERVED) <= SHARED_MEMORY
    # Products in the background, and the next weights on their way.
    assert "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8" in made.asm["ptx"]
    assert "cp.async" in made.asm["ptx"]
