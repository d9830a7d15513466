"""Random programs, valid and nearly so: what construction accepts, engine, reference and C compute alike.

Some hundred here, 100,000 by `make fuzz`.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from hccs.errors import HccsError
from hccs.executors.c.write import export_c_model
from hccs.numbers.requant import Requant
from hccs.program import IntegerModel, Program
from hccs.program import operators as op
from tests.export.compilers import COMPILERS, make
from tests.program.programs import random_batch, random_decoder, random_embedder, random_program

ODD = (-(10**7), -3, -1, 0, 1, 2, 7, 126, 127, 128, 129, 32766, 32767, 32768, 10**9, None, "7", 1.0, True)
POOLINGS = ("mean", "last", "max", "first", "", None)
NAMES = ("", "v1.first", "v3.q", "v3.kv", "v0.pixels", "v4.logits", "v2", "a name", "é", 3)


@lru_cache(300)
def program_of(seed: int) -> Program:
    if seed % 3 == 1:
        return random_decoder(seed)
    return random_embedder(seed) if seed % 3 == 0 else random_program(seed, lines=1 + seed % 2)


def mutated(program: Program, rng: np.random.Generator) -> Program:
    """One change of a kind at random; whatever it yields, valid or not."""
    return MUTATIONS[rng.integers(len(MUTATIONS))](program, rng)


def pick(rng: np.random.Generator, choices):
    return choices[int(rng.integers(len(choices)))]


def other_constant(program: Program, rng: np.random.Generator) -> Program:
    at = int(rng.integers(len(program.operators)))
    step, value = program.operators[at], pick(rng, ODD)
    own = [
        field.name
        for field in fields(step)
        if field.name
        in ("first_position", "limit", "bits", "causal", "kv_heads", "window", "pooling", "divided", "dims")
    ]
    inner = [
        name
        for name in (
            "limit",
            "input_limit",
            "multiplier",
            "epsilon",
            "gain_bits",
            "shift",
            "patch",
            "bits",
            "heads",
        )
        if hasattr(getattr(step, "params", None), name)
        and not (isinstance(step, op.Rotate) and name == "multiplier")  # which it cannot be without
    ]
    if own and (not inner or rng.random() < 0.5):
        name = pick(rng, own)
        others = {"pooling": POOLINGS, "divided": (True, False, 1), "dims": (1, 2, 3, 4096, value)}
        step = replace(step, **{name: pick(rng, others.get(name, (value,)))})
    elif inner:
        name = pick(rng, inner)
        given = None if name == "multiplier" else value
        try:
            step = replace(step, params=replace(step.params, **{name: given}))
        except (TypeError, ArithmeticError):  # constants of their own, before there is a program
            return program
    return with_operators(program, [*program.operators[:at], step, *program.operators[at + 1 :]])


def other_arrays(program: Program, rng: np.random.Generator) -> Program:
    steps = list(program.operators)
    for at, step in enumerate(steps):
        match step:
            case op.Table(entries=entries) if rng.random() < 0.5:
                other = pick(rng, (entries[:-1], entries.astype(np.int16), np.full(256, -128, np.int8)))
                steps[at] = replace(step, entries=other)
            case op.Attention(requant=requant) if rng.random() < 0.5:
                one = Requant(type(requant.logits)(3000, 20), 1.0, type(requant.logits)(2**23, 22))
                steps[at] = replace(step, requant=pick(rng, (one, Requant(requant.logits, requant.v_scale))))
            case op.Ramp(params=params) if rng.random() < 0.5:
                low = pick(rng, (0, 0, -5))
                knot = rng.integers(low, 2**13, 64).astype(np.int16)
                steps[at] = replace(step, params=replace(params, knot=knot, slope=-(knot // 2)))
            case op.Linear(params=params) if rng.random() < 0.3:
                outputs = int(rng.integers(0, len(params.weight) + 1))
                factors = None if params.multiplier is None else params.multiplier[:outputs]
                cut = replace(
                    params, weight=params.weight[:outputs], bias=params.bias[:outputs], multiplier=factors
                )
                steps[at] = replace(step, params=cut)
            case op.Linear(params=params) if rng.random() < 0.3:
                near = np.full_like(params.bias, 2**31 - 1 - 127 * 127 * params.weight.shape[1])
                steps[at] = replace(step, params=replace(params, bias=near, input_limit=127))
            case op.Linear(params=params) if params.multiplier is not None and rng.random() < 0.3:
                factors = rng.choice([1, 128, 2**23, 2**24 - 1], len(params.bias)).astype(np.int32)
                steps[at] = replace(step, params=replace(params, multiplier=factors))
    return with_operators(program, steps)


def other_name(program: Program, rng: np.random.Generator) -> Program:
    old, new = pick(rng, program.operators).output, pick(rng, NAMES)
    steps = [
        replace(
            step,
            inputs=tuple(new if name == old else name for name in step.inputs),
            output=new if step.output == old else step.output,
        )
        for step in program.operators
    ]
    return with_operators(program, steps)


def other_input(program: Program, rng: np.random.Generator) -> Program:
    """An input from elsewhere, most often one of the same type."""
    at = int(rng.integers(1, len(program.operators)))
    step = program.operators[at]
    place = int(rng.integers(len(step.inputs)))
    value = program.values[step.inputs[place]]
    alike = [
        name
        for name, other in program.values.items()
        if (other.bits, other.width) == (value.bits, value.width)
    ]
    new = pick(rng, alike if rng.random() < 0.9 else [*program.values, "nothing"])
    inputs = (*step.inputs[:place], new, *step.inputs[place + 1 :])
    return with_operators(
        program, [*program.operators[:at], replace(step, inputs=inputs), *program.operators[at + 1 :]]
    )


def other_order(program: Program, rng: np.random.Generator) -> Program:
    """An operator left out, done twice under another name, or moved."""
    steps = list(program.operators)
    at = int(rng.integers(len(steps)))
    step, form = steps[at], int(rng.integers(3))
    if form != 1:
        del steps[at]
    if form != 0:
        name = step.output if form == 2 else "another"
        steps.insert(int(rng.integers(len(steps) + 1)), replace(step, output=name))
    return with_operators(program, steps)


def bypass(program: Program, rng: np.random.Generator) -> Program:
    """All readers of one value read another of the same type."""
    old = pick(rng, program.operators[1:-1]).output
    value = program.values[old]
    earlier = list(program.values)[: list(program.values).index(old)]
    alike = [
        name
        for name in earlier
        if (program.values[name].bits, program.values[name].width) == (value.bits, value.width)
    ]
    if not alike:
        return program
    new = pick(rng, alike)
    steps = [
        replace(step, inputs=tuple(new if n == old else n for n in step.inputs)) for step in program.operators
    ]
    return with_operators(program, steps)


def other_fields(program: Program, rng: np.random.Generator) -> Program:
    choices = {
        "longest": pick(rng, (*ODD, 39, 40, 41)),
        "labels": pick(rng, ((), program.labels[1:], (*program.labels, "more"), (1,) * len(program.labels))),
        "score_scale": pick(rng, (float("nan"), "x", 0.5)),
    }
    name = pick(rng, list(choices))
    return replace(program, **{name: choices[name]})


def with_operators(program: Program, steps) -> Program:
    return replace(program, operators=tuple(steps))


MUTATIONS = (other_constant, other_arrays, other_name, other_input, other_order, bypass, other_fields)


def case(seed: int) -> Program | None:
    """A program, after up to three changes; None where construction refused it."""
    rng = np.random.default_rng([seed, 7])
    program = program_of(int(rng.integers(300)))
    try:
        for _ in range(int(rng.integers(0, 4))):
            program = mutated(program, rng)
    except HccsError:
        return None
    return program


def require_alike(program: Program, seed: int) -> str:
    """Engine and reference give the same scores, or the same refusal."""
    model = IntegerModel(program)
    assert model._engine is not None
    rng = np.random.default_rng(seed)
    given = random_batch(program, seed, 2, int(rng.integers(1, min(program.longest, 5) + 1)))
    try:
        expected = model(*given, reference=True).scores
    except HccsError as error:
        with pytest.raises(type(error)):
            model(*given)
        return "refused when run"
    np.testing.assert_array_equal(model(*given, threads=1 + seed % 2).scores, expected)
    return "equal"


def require_alike_in_c(program: Program) -> str:
    with tempfile.TemporaryDirectory() as place:
        try:
            written = export_c_model(IntegerModel(program), Path(place) / "c")
        except HccsError:
            return "refused by C"
        done = make(written.folder, "check", "CFLAGS=-O1")
        assert done.returncode == 0 and "differ: PASS" in done.stdout, done.stdout + done.stderr
    return "equal in C"


def fuzzed(seeds: range, in_c: int) -> Counter[str]:
    """What became of the programs of some seeds; every `in_c`-th that runs is compiled."""
    found: Counter[str] = Counter()
    for seed in seeds:
        program = case(seed)
        outcome = "refused" if program is None else require_alike(program, seed)
        found[outcome] += 1
        if outcome == "equal" and found["equal"] % in_c == 0 and COMPILERS:
            found[require_alike_in_c(program)] += 1
    return found


def test_programs_that_construction_accepts_run_alike():
    found = fuzzed(range(300), in_c=60)
    assert min(found["refused"], found["equal"]) > 60


@pytest.mark.fuzz
@pytest.mark.parametrize("part", range(20))
def test_many_programs_that_construction_accepts_run_alike(part):
    found = fuzzed(range(part * 5000, (part + 1) * 5000), in_c=200)
    print(dict(found))
    assert min(found["refused"], found["equal"]) > 1000
