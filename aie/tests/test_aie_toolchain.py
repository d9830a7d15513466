"""`hccs aie build`: what it asks a compiler, what it reads back, and what it says when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from aie.tests.test_aie_listing import code, hardware_loop

from hccs import ParamTable
from hccs.errors import FileError
from hccs.numbers.modes import Mode
from hccs_aie.cycles.machine import Generation
from hccs_aie.export import export, plan
from hccs_aie.listing import functions
from hccs_aie.toolchain import ToolchainError, build, modelled_code_size

LISTING = """
hccs_tile.o:	file format elf32-aie

Disassembly of section .text:

00000000 <hccs_tile>:
       0: 15 00 40 00  	nopa ;	nopb ;	movx r0, #0
      10: 19 10 00 10  	ret lr
      12: 01 00        	nop

00000020 <helper>:
      20: 01 00        	nop
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    table = ParamTable(B=[[444]], S=[[11]], D=[[40]], scale=[[0.1]], n=64, mode="u8_clb")
    return export(plan(table), "iron", tmp_path / "project")


def fake_tool(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def peano(tmp_path: Path) -> dict[str, str]:
    """A stand-in with Peano's file names: records its arguments and prints a listing."""
    root = tmp_path / "peano"
    fake_tool(root / "bin/clang++", f'echo "$@" > {root}/arguments; touch hccs_tile.o')
    (root / "listing").write_text(LISTING)
    fake_tool(root / "bin/llvm-objdump", f"cat {root}/listing")
    return {"PEANO_INSTALL_DIR": str(root), "AIE_API_INCLUDE": "/somewhere/include"}


def test_counts_addresses_not_instructions() -> None:
    assert {f.name: f.bundles for f in functions(LISTING)} == {"hccs_tile": 3, "helper": 1}


def test_builds_with_peano(project: Path, peano: dict[str, str]) -> None:
    made = build(project, "aie2", environment=peano)
    assert made.total == 4
    assert made.object_file.exists()
    assert made.modelled_bundles == modelled_code_size(Generation.AIE2, Mode.U8_CLB, 64) > 50
    arguments = (Path(peano["PEANO_INSTALL_DIR"]) / "arguments").read_text()
    assert "--target=aie2-none-unknown-elf" in arguments
    assert "-I/somewhere/include" in arguments
    assert "src/hccs_tile.cc" in arguments


def test_a_failing_compiler_is_quoted(project: Path, peano: dict[str, str]) -> None:
    fake_tool(Path(peano["PEANO_INSTALL_DIR"]) / "bin/clang++", "echo 'error: no such intrinsic' >&2; exit 1")
    with pytest.raises(ToolchainError, match="no such intrinsic"):
        build(project, environment=peano)


def test_a_missing_compiler_is_named(project: Path) -> None:
    with pytest.raises(ToolchainError, match="clang"):
        build(project, environment={"PEANO_INSTALL_DIR": "/nowhere", "AIE_API_INCLUDE": "/x"})


def test_no_tools_no_build(project: Path) -> None:
    with pytest.raises(ToolchainError, match="make host"):
        build(project, environment={})
    with pytest.raises(ToolchainError, match="AIE_API_INCLUDE"):
        build(project, environment={"PEANO_INSTALL_DIR": "/nowhere"})


def test_vitis_needs_its_platform_and_project(project: Path) -> None:
    vitis = {"XILINX_VITIS": "/nowhere"}
    with pytest.raises(ToolchainError, match="platform"):
        build(project, environment=vitis)
    with pytest.raises(FileError, match="export for vitis"):
        build(project, platform="base.xpfm", environment=vitis)


def test_builds_with_vitis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ParamTable(B=[[444]], S=[[11]], D=[[40]], scale=[[0.1]], n=64, mode="i16_div")
    folder = export(plan(table), "vitis", tmp_path / "project")
    fake_tool(tmp_path / "bin/make", f"mkdir -p Work/aie/18_0; cp {tmp_path}/listing Work/aie/18_0/18_0.lst")
    (tmp_path / "listing").write_text(LISTING)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    made = build(folder, platform="base.xpfm", environment={"XILINX_VITIS": "/nowhere"})
    assert made.bundles == {"18_0:hccs_tile": 3, "18_0:helper": 1}


HOSTILE_PLATFORMS = ["$(shell touch {})", "`touch {}`", "x; touch {}", "x & touch {} &", "-f {}", "", "a b"]
HOSTILE_PLATFORMS += [
    "$(eval $(shell touch {}))",
    "x\nSHELL=touch {}",
    "${{x}}",
    "x|y",
    "caf\u00e9.xpfm",
    "'x'",
]


@pytest.mark.parametrize("platform", HOSTILE_PLATFORMS)
def test_a_platform_is_a_path_and_runs_nothing(platform: str, tmp_path: Path) -> None:
    table = ParamTable(B=[[444]], S=[[11]], D=[[40]], scale=[[0.1]], n=64)
    folder = export(plan(table), "vitis", tmp_path / "project")
    canary = tmp_path / "canary"
    with pytest.raises(ToolchainError, match="--platform of letters"):
        build(folder, platform=platform.format(canary), environment={"XILINX_VITIS": "/nowhere"})
    assert not canary.exists()


def test_a_platform_file_is_found_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ParamTable(B=[[444]], S=[[11]], D=[[40]], scale=[[0.1]], n=64)
    folder = export(plan(table), "vitis", tmp_path / "project")
    fake_tool(tmp_path / "bin/make", f'echo "$@" > {tmp_path}/arguments')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.xpfm").touch()
    for platform in ("base.xpfm", "xilinx_vek280_base_202410_1"):
        with pytest.raises(ToolchainError, match="functions in what vitis made; got none"):
            build(folder, platform=platform, environment={"XILINX_VITIS": "/nowhere"})
        given = tmp_path / platform if platform == "base.xpfm" else platform
        assert (tmp_path / "arguments").read_text() == f"PLATFORM={given}\n"


def test_the_project_is_read_from_its_json_alone(project: Path, peano: dict[str, str]) -> None:
    (project / "src/hccs_parameters.hpp").write_text("static constexpr mode selected = mode::i16_div;")
    made = build(project, environment=peano)
    assert made.modelled_bundles == modelled_code_size(Generation.AIE2, Mode.U8_CLB, 64)
    (project / "project.json").write_text("{}")
    with pytest.raises(FileError, match=r"hccs\.aie\.project"):
        build(project, environment=peano)


def test_output_that_is_no_text_is_quoted_all_the_same(project: Path, peano: dict[str, str]) -> None:
    fake_tool(Path(peano["PEANO_INSTALL_DIR"]) / "bin/clang++", r"printf 'error: \377' >&2; exit 1")
    with pytest.raises(ToolchainError, match="error: \N{REPLACEMENT CHARACTER}"):
        build(project, environment=peano)


def test_a_relative_tool_folder_is_found(
    project: Path, peano: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = build(project, environment={"PEANO_INSTALL_DIR": "peano", "AIE_API_INCLUDE": "api"})
    assert made.total == 4
    assert f"-I{tmp_path}/api" in (tmp_path / "peano/arguments").read_text()


def test_names_of_functions_are_printed_as_they_are(
    project: Path, peano: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typer_testing = pytest.importorskip("typer.testing")
    app = pytest.importorskip("hccs.cli.app").app
    listing = Path(peano["PEANO_INSTALL_DIR"]) / "listing"
    listing.write_text(LISTING.replace("<helper>", "<helper[abi:cxx11][/]>"))
    for name, value in peano.items():
        monkeypatch.setenv(name, value)
    result = typer_testing.CliRunner().invoke(app, ["aie", "build", str(project)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.exception
    assert "helper[abi:cxx11][/]" in result.output


def test_loops_are_printed_beside_the_model(
    project: Path, peano: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typer_testing = pytest.importorskip("typer.testing")
    app = pytest.importorskip("hccs.cli.app").app
    bodies: list[str] = []
    for body in (93, 66, 43):
        bodies += hardware_loop(9, body, 2, start=16 * len(bodies))
    (Path(peano["PEANO_INSTALL_DIR"]) / "listing").write_text(code("hccs_tile", *bodies))
    for name, value in peano.items():
        monkeypatch.setenv(name, value)
    result = typer_testing.CliRunner().invoke(app, ["aie", "build", str(project)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.exception
    per_row = (93 * 2 + 66 * 2 + 43 * 4 + 3 * 14) / 64
    assert build(project, environment=peano).issued.per_row == per_row
    rows = {
        line.split("│")[1].strip(): line.split("│")[2:] for line in result.output.splitlines() if "│" in line
    }
    assert [cell.strip() for cell in rows["row_groups"][:3]] == ["43", "4", f"{43 * 4 / 64:.1f}"]
    assert f"{per_row:.1f}" in rows["all"][2]


def test_not_a_project(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="hccs aie export"):
        build(tmp_path, environment={})
