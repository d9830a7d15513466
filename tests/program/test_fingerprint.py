"""Fingerprints: as docs/spec.md says them, in plain Python; stored, verified, and by the command."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import replace

import numpy as np
import pytest

from hccs.errors import HccsError
from hccs.program import IntegerModel, Program, files, fingerprint
from tests.program.programs import random_embedder, random_program


def by_the_page(program: Program) -> str:
    """docs/spec.md, word for word, with the reference of every operator."""
    model, state, content = IntegerModel(program), 1, b""

    def number(below: int) -> int:
        nonlocal state
        state = (1103515245 * state + 12345) % 2**31
        return state * below // 2**31

    def add(answer) -> None:
        nonlocal content
        rows = [answer] if np.ndim(answer) == 1 else list(answer)
        content += struct.pack("<ii", len(rows), len(rows[0]))
        content += b"".join(struct.pack("<i", int(value)) for row in rows for value in row)

    if program.embed.image is not None:
        for _ in range(2):
            pixels = [number(256) for _ in range(int(np.prod(program.embed.image)))]
            image = np.array(pixels, np.uint8).reshape(1, *program.embed.image)
            add(model(image, reference=True).scores[0])
        return hashlib.sha256(content).hexdigest()
    longest = min(program.longest, 128)
    lengths = [n for n in (1, 2, 3, 5, 8, 13, 21, 34, 55, 89) if n < longest] + [longest]
    for k in range(24):
        n = lengths[k % len(lengths)]
        ids = [number(program.embed.vocabulary) for _ in range(n)]
        types = [int(program.embed.type_count > 1 and t >= (n + 1) // 2) for t in range(n)]
        add(model([ids], None, [types], reference=True).scores[0])
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    "program",
    [*(random_embedder(seed) for seed in (0, 1, 4)), *(random_program(seed) for seed in (0, 1, 3, 6))],
)
def test_the_fingerprint_is_that_of_the_page(program: Program) -> None:
    """Vectors per text and per token, scores of both kinds, and images."""
    model = IntegerModel(program)
    assert model.fingerprint() == fingerprint(model) == model.verify() == by_the_page(program)


def test_short_programs_have_one_too() -> None:
    program = replace(random_embedder(0), longest=2)
    assert IntegerModel(program).fingerprint() == by_the_page(program)


def test_a_fingerprint_is_of_constants_and_nothing_else() -> None:
    program = random_program(0)
    own = IntegerModel(program).fingerprint()
    named = replace(
        program, labels=tuple(f"other {i}" for i in range(len(program.labels))), tokenizer="t", facts={"a": 1}
    )
    assert IntegerModel(named).fingerprint() == own
    last = program.operators[-1]
    bias = last.params.bias.copy()
    bias[0] += 1
    changed = replace(last, params=replace(last.params, bias=bias))
    other = replace(program, operators=(*program.operators[:-1], changed))
    assert IntegerModel(other).fingerprint() != own


def test_files_store_it_and_verify(tmp_path) -> None:
    program = replace(random_embedder(0), facts={"fingerprint": "of an earlier form"})
    with pytest.raises(HccsError, match="the file's fingerprint, of an earlier form"):
        IntegerModel(program).verify()
    IntegerModel(program).save(tmp_path / "m.hccs")
    loaded = IntegerModel.load(tmp_path / "m.hccs")
    assert loaded.program.facts["fingerprint"] == loaded.verify() == by_the_page(program)


def test_an_engine_that_differs_is_refused() -> None:
    """The engine of another program stands for one that computes wrongly."""
    model, other = IntegerModel(random_embedder(0)), IntegerModel(random_embedder(0))
    if model._engine is None:
        pytest.skip("native code does not run here")
    program = model.program
    unit = program.operators[-1]
    last = replace(program.operators[-2], pooling="max")
    assert type(last).__name__ == "Pool"
    other = IntegerModel(replace(program, operators=(*program.operators[:-2], last, unit)))
    model._engine = other._engine
    with pytest.raises(HccsError, match="engine to answer as the reference"):
        model.verify()


def test_the_command_prints_and_verifies(tmp_path) -> None:
    pytest.importorskip("typer")
    from typer.testing import CliRunner

    from hccs.cli.app import app

    model = IntegerModel(random_embedder(0))
    model.save(tmp_path / "m.hccs")
    own, run = model.fingerprint(), CliRunner().invoke
    for arguments in (["m.hccs"], ["."], ["m.hccs", "--verify"]):
        result = run(app, ["fingerprint", str(tmp_path / arguments[0]), *arguments[1:]])
        assert (result.exit_code, result.output) == (0, f"{own}\n")
    result = run(app, ["fingerprint", str(tmp_path), "--json", "--verify"])
    assert json.loads(result.stdout) == {"fingerprint": own, "stored": own, "verified": True}
    forged = replace(model.program, facts={"fingerprint": "0" * 64})
    files.save(forged, tmp_path / "m.hccs")
    result = run(app, ["fingerprint", str(tmp_path), "--verify"])
    assert result.exit_code != 0 and isinstance(result.exception, HccsError)
    assert run(app, ["fingerprint", str(tmp_path)]).output == f"{own}\n"
