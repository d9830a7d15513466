"""An operator is one file and one entry per executor: a toy runs everywhere; nobody else asks for kinds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from hccs.errors import FileError, ModelError
from hccs.executors import cpu
from hccs.executors.c import table as c_table
from hccs.executors.c.literals import numbers_of
from hccs.executors.c.write import export_c_model
from hccs.executors.onnx import model as onnx_model
from hccs.program import IntegerModel, Program
from hccs.program import operators as op
from tests.export.compilers import in_c, make, require_pass
from tests.program.test_program import batch, small_program

SOURCES = Path(op.__file__).parents[2]
KINDS = {*op.OPERATORS, "CutPixels", "PlacePatches"}


@dataclass(frozen=True, eq=False)
class Clamp(op.Operator):
    """int8 values within +-limit."""

    inputs: tuple[str]
    output: str
    limit: int

    overwrites = True

    def written(self, given):
        self.require_integer("a limit", self.limit, 1, 127)
        self.require_rows_of(given[0], (8,), given[0].width)
        return replace(given[0], largest=self.limit)

    def run(self, given, batch):
        return np.clip(given[0], -self.limit, self.limit)

    @property
    def shape(self):
        return f"+-{self.limit}"

    @property
    def entries(self):
        return np.clip(np.arange(-128, 128), -self.limit, self.limit).astype(np.int8)


def on_cpu(building, step, clamp):
    building.engine.table(*building.places(step), building.width(step), clamp.entries)


def in_onnx(building, clamp):
    x, limit = building.made[clamp.inputs[0]], clamp.limit
    return building.graph("Clip", x, np.uint8(128 - limit), np.uint8(128 + limit))


def c_constants(writing, clamp):
    yield f"const int8_t {writing.name(clamp)}[256] = {{\n{numbers_of(clamp.entries)}}};\n"


IN_C = c_table.Code(
    lambda call: f"hccs_table({call.name}, {call.read()}, {call.count}, {call.out})",
    "int8_t {}[256]",
    c_constants,
    size=lambda writing, clamp: (0, 256),
)


def with_clamps(limit: int = 30) -> Program:
    """Clamped rows of all tokens, and of the first alone."""
    program = small_program()
    steps = list(program.operators)
    narrowed = next(i for i, step in enumerate(steps) if step.output == "x8")
    steps[narrowed : narrowed + 1] = [
        replace(steps[narrowed], output="x8_free"),
        Clamp(("x8_free",), "x8", limit),
    ]
    first = next(i for i, step in enumerate(steps) if step.output == "tanh")
    steps[first : first + 1] = [
        replace(steps[first], output="tanh_free"),
        Clamp(("tanh_free",), "tanh", limit),
    ]
    return replace(program, operators=tuple(steps))


@pytest.fixture
def known(monkeypatch):
    """All that a new operator needs outside its own file."""
    monkeypatch.setitem(op.OPERATORS, "Clamp", Clamp)
    monkeypatch.setitem(cpu.CODE, Clamp, on_cpu)
    monkeypatch.setitem(onnx_model.CODE, Clamp, in_onnx)
    monkeypatch.setitem(c_table.CODE, Clamp, IN_C)


def test_a_new_operator_runs_everywhere(known, tmp_path):
    model = IntegerModel(with_clamps())
    expected = model(*batch(), reference=True).scores
    assert model._engine is not None
    assert (expected != IntegerModel(small_program())(*batch()).scores).any()
    np.testing.assert_array_equal(model(*batch()).scores, expected)
    assert "Clamp" in repr(model) and "+-30" in repr(model)
    model.save(tmp_path / "model.hccs")
    loaded = IntegerModel.load(tmp_path / "model.hccs")
    assert [step.limit for step in loaded.program.operators if isinstance(step, Clamp)] == [30, 30]
    np.testing.assert_array_equal(loaded(*batch()).scores, expected)


@in_c
def test_a_new_operator_is_written_as_c(known, tmp_path):
    written = export_c_model(IntegerModel(with_clamps()), tmp_path / "c")
    require_pass(make(written.folder, "sanitize"), 12)


def test_a_new_operator_is_written_as_onnx(known, tmp_path):
    pytest.importorskip("onnxruntime")
    from hccs.executors.onnx import equal_scores, write_onnx

    program = with_clamps()
    assert equal_scores(write_onnx(program, tmp_path / "model.onnx"), IntegerModel(program)) == 32


def test_an_executor_without_the_entry_refuses_by_name(tmp_path):
    program = with_clamps()
    with pytest.warns(RuntimeWarning, match=r"operators that the CPU engine runs; got Clamp \('x8'\)"):
        model = IntegerModel(program)
    np.testing.assert_array_equal(model(*batch()).scores, model(*batch(), reference=True).scores)
    with pytest.raises(ModelError, match=r"operators that C runs; got Clamp \('x8'\)"):
        export_c_model(model, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    pytest.importorskip("onnx")
    with pytest.raises(ModelError, match=r"operators that ONNX runs; got Clamp \('x8'\)"):
        onnx_model.onnx_program(program)


def test_a_file_with_an_unknown_operator_is_refused(known, tmp_path, monkeypatch):
    IntegerModel(with_clamps()).save(tmp_path / "model.hccs")
    monkeypatch.delitem(op.OPERATORS, "Clamp")
    with pytest.raises(FileError, match="an operator that is none of Embed"):
        IntegerModel.load(tmp_path / "model.hccs")


def asked_kinds(source: str) -> Iterator[str]:
    """Kinds of operators that a module compares types with: isinstance, match, type(x) is."""
    tree = ast.parse(source)
    named: dict[str, str] = {}
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hccs.program"):
            for name in node.names:
                if name.name == "operators":
                    modules.add(name.asname or name.name)
                elif name.name in KINDS:
                    named[name.asname or name.name] = name.name

    def kinds(node: ast.AST) -> Iterator[str]:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in named:
                yield named[part.id]
            if (
                isinstance(part, ast.Attribute)
                and getattr(part.value, "id", "") in modules
                and part.attr in KINDS
            ):
                yield part.attr

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            yield from kinds(node.args[1])
        if isinstance(node, ast.MatchClass):
            yield from kinds(node.cls)
        if isinstance(node, ast.Compare) and all(
            isinstance(x, ast.Eq | ast.NotEq | ast.Is | ast.IsNot) for x in node.ops
        ):
            yield from kinds(node)


def test_nobody_asks_for_the_kind_of_an_operator():
    own = SOURCES / "program" / "operators"
    found = {
        str(file.relative_to(SOURCES)): kinds
        for file in SOURCES.rglob("*.py")
        if own not in file.parents and (kinds := list(asked_kinds(file.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(x, op.Linear | op.Table)",
        "type(x) is op.Linear",
        "match x:\n    case op.Linear():\n        pass",
        "isinstance(x, Attention)",
    ],
)
def test_asking_would_be_seen(line):
    imports = "from hccs.program import operators as op\nfrom hccs.program.operators import Attention\n"
    assert list(asked_kinds(imports + line))


def test_every_operator_has_an_entry_everywhere():
    for executor in (cpu.CODE, onnx_model.CODE, c_table.CODE):
        missing = {kind for kind in op.OPERATORS.values() if kind not in executor}
        assert missing <= {op.EmbedPatches}
        assert not missing or {op.CutPixels, op.PlacePatches} <= set(executor)
