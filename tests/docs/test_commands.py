"""Every command of the pages parses: `hccs` by its own command line; scripts and targets exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest

click = pytest.importorskip("click")
typer = pytest.importorskip("typer")

from hccs.cli.app import app
from tests.docs.pages import PAGES, ROOT, fences, inline_code, shell_lines

PYPROJECTS = [ROOT / folder / "pyproject.toml" for folder in ("", "lab", "aie")]
HCCS = typer.main.get_command(app)
# Commands that are parsed but not run, and why.
NOT_RUN = {
    "hccs aie build": "needs a compiler for the device; aie/tests/test_aie_toolchain.py stands in for one",
    "hccs demo": "takes minutes; tests/conversion runs its stages",
    "hccs bench": "takes minutes; lab/tests/test_bench.py runs it small",
    "hccs compare --out": "takes minutes; lab/tests/test_compare.py runs it small",
    "hccs compare MODEL": "takes minutes; lab/tests/test_compare.py runs it small",
    "hccs compare RUN": "takes minutes; lab/tests/test_compare.py runs it small",
    "hccs serve": "runs until it is stopped; tests/serving starts it",
    "hccs reproduce": "takes hours; lab/tests/test_reproduce.py runs it small",
}
# Commands that another test runs word for word.
RUN_ELSEWHERE = {"hccs aie cycles": "aie/tests/test_aie_cli.py"}


def commands_in(line: str) -> list[list[str]]:
    """The commands of a shell line, each as its words, without comments."""
    words = shlex.split(line, comments=True)
    found: list[list[str]] = [[]]
    for word in words:
        if word == "&&":
            found.append([])
        else:
            found[-1].append(word)
    return [command for command in found if command]


def in_fences(page: str) -> list[tuple[str, list[str]]]:
    """All commands of a page's shell fences, as (place, words)."""
    return [
        (place, command)
        for fence in fences(page)
        if fence.language == "sh"
        for place, line in shell_lines(fence)
        for command in commands_in(line)
    ]


def find(words: list[str]) -> tuple[Any, list[str], str]:
    """The command of `hccs` that these words name, its arguments, and what is wrong (or nothing)."""
    command, rest = HCCS, list(words)
    while hasattr(command, "commands"):
        while rest and rest[0].startswith("-"):
            rest.pop(0)  # options of a group, as in `hccs --version`
        if not rest:
            return command, [], ""
        if rest[0] not in command.commands:
            return command, rest, f"no command {rest[0]!r} among {', '.join(command.commands)}"
        command = command.commands[rest.pop(0)]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for word in rest:
        option = word.split("=")[0]
        if re.match(r"--?[A-Za-z]", option) and option not in {*known, "--help"}:
            return command, rest, f"no option {option} among {', '.join(sorted(known))}"
    return command, rest, ""


def complaint(words: list[str], *, complete: bool) -> str:
    """What the real command line says against `hccs WORDS`, or nothing."""
    command, arguments, wrong = find(words)
    if wrong or not complete or hasattr(command, "commands"):
        return wrong
    try:
        command.make_context(" ".join(words), list(arguments))
    except Exception as error:  # of click, or of the click that typer carries
        said: Callable[[], str] = getattr(error, "format_message", error.__str__)
        return said()
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_fences_parse(page):
    wrong = []
    for place, command in in_fences(page):
        text = f"{place}: {' '.join(command)}: "
        if command[0] == "hccs":
            said = complaint(command[1:], complete=True)
            wrong += [text + said] if said else []
        else:
            wrong += [text + said for said in script_complaints(command)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_text_exist(page):
    """Mentions may be incomplete; the commands and options they name exist."""
    wrong = []
    for place, code in inline_code(page):
        if code.startswith(("hccs ", "make ", "pip ", "python ", "pytest ")):
            command = shlex.split(code.replace("…", ""))
            found = (
                [complaint(command[1:], complete=False)]
                if command[0] == "hccs"
                else script_complaints(command)
            )
            wrong += [f"{place}: {code}: {said}" for said in found if said]
    assert not wrong, "\n".join(wrong)


def script_complaints(command: list[str]) -> list[str]:
    """Targets of `make`, extras of `pip`, scripts of `python` with their options: those that do not exist."""
    if command[0] == "make" and len(command) > 1 and not command[1].startswith("-"):
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        exported = {"host", "simulate"}  # of the projects that `hccs aie export` writes
        return [f"no target {w}" for w in command[1:] if "=" not in w and w not in {*targets, *exported}]
    if command[0] == "pip":
        offered = [
            extra
            for file in PYPROJECTS
            for extra in re.findall(
                r"^([a-z]+) = \[",
                file.read_text(encoding="utf-8").partition("[project.optional-dependencies]")[2],
                re.MULTILINE,
            )
        ]
        asked = [
            extra for word in command for found in re.findall(r"\[(.+)\]", word) for extra in found.split(",")
        ]
        return [f"no extra {extra}" for extra in asked if extra not in offered]
    if command[0] == "pytest":
        return [f"no file {word}" for word in command[1:] if "/" in word and not (ROOT / word).exists()]
    if command[0] == "python" and command[1].endswith(".py"):
        script = ROOT / command[1]
        if not script.exists():
            return [f"no script {command[1]}"]
        options = [word for word in command[2:] if word.startswith("--")]
        return [
            f"no option {option}"
            for option in options
            if f'"{option}"' not in script.read_text(encoding="utf-8")
        ]
    return []


def test_what_is_not_run_is_still_named_somewhere():
    """An entry that no page has any more goes."""
    named = [" ".join(command) for page in PAGES for _, command in in_fences(page)]
    assert [prefix for prefix in NOT_RUN if not any(text.startswith(prefix) for text in named)] == []
    assert [text for text in RUN_ELSEWHERE if text not in named] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("convert MODEL --out RUN --nonsense", "no option --nonsense"),
        ("export onnyx RUN", "no command 'onnyx'"),
        ("convert MODEL", "out"),
        ("evaluate RUN --backend gpu", "gpu"),
        ("evaluate RUN", ""),
    ],
)
def test_a_wrong_command_is_seen(words, said):
    found = complaint(words.split(), complete=True)
    assert said in found and bool(said) == bool(found)
