"""What commands print: JSON for machines, plain lines without a terminal, choices in --help."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("typer")
from typer.testing import CliRunner

import hccs
from hccs.cli.app import app
from hccs.cli.output import Output, finite, on_run, stage_times
from tests.program.programs import random_program

runner = CliRunner()


def test_info_and_show_for_machines(tmp_path):
    found = json.loads(runner.invoke(app, ["info", "--json"]).stdout)
    assert found["version"] == hccs.__version__ and found["isa"] in found["available"]
    program = random_program(1)
    hccs.IntegerModel(program).save(tmp_path / "m.hccs")
    shown = json.loads(runner.invoke(app, ["show", str(tmp_path / "m.hccs"), "--json"]).stdout)
    assert [step["writes"] for step in shown["operators"]] == [step.output for step in program.operators]
    assert shown["bytes"] == sum(step["bytes"] for step in shown["operators"]) > 0


@pytest.mark.parametrize(
    ("command", "choices"),
    [
        ("convert --mode", "i16_div|i16_clb|u8_div|u8_clb|u8_lin"),
        ("convert --granularity", "head|layer|global"),
        ("convert --problem", "classification|regression|tokens|images"),
        ("convert --integer", "whole|attention"),
        ("evaluate --mode", "i16_div|i16_clb|u8_div|u8_clb|u8_lin"),
        ("evaluate --backend", "float|integer|whole"),
        ("export c --vocabulary", "all|used"),
    ],
)
def test_choices_are_told_and_others_refused(command, choices):
    *words, option = command.split()
    shown = runner.invoke(app, [*words, "--help"], env={"COLUMNS": "200"}).output
    assert choices in shown
    refused = runner.invoke(app, [*words, "x", option, "nothing"])
    assert refused.exit_code == 2 and "nothing" in refused.output


@pytest.mark.parametrize("command", ["convert", "evaluate", "bench", "compare", "show", "info"])
def test_every_command_with_results_has_json(command):
    assert "--json" in runner.invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output


def test_the_last_words_are_plain_without_a_terminal(capsys, tmp_path):
    output = Output()
    output.end("done", ["[bold]a[/bold] line"], on_run(tmp_path / "a run", "bench", "export c"))
    said = capsys.readouterr().out
    assert not re.search(r"\x1b|\r|[│╭]", said)
    assert "[bold]a[/bold] line" in said
    assert f"time it here           hccs bench '{tmp_path / 'a run'}'" in said
    assert f"for a microcontroller  hccs export c '{tmp_path / 'a run'}'" in said


def test_machines_get_results_alone(capsys):
    output = Output(json=True)
    output.say("words")
    output.results({"a": float("inf"), "b": (1, float("nan"))})
    caught = capsys.readouterr()
    assert json.loads(caught.out) == {"a": None, "b": [1, None]} and caught.err == "words\n"
    assert finite({1: [2.5]}) == {"1": [2.5]}


def test_where_time_went():
    assert stage_times({"a": 2.0, "b": 61.0, "c": 1.0, "d": 0.5, "e": 0.1}) == (
        "1 min 5 s in all: b 1 min 1 s, a 2.0 s, c 1.0 s, d 0.5 s"
    )
