"""A griffe extension for the site: examples in docstrings become code, parameters become tables."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^ *>>> .*\n(?:^ *\S.*\n?)*\n?)+", re.MULTILINE)


def fenced(text: str) -> str:
    """A docstring whose doctests are fences; Markdown would take `>>>` for nested quotes."""
    found = EXAMPLE.sub(lambda example: f"\n```pycon\n{example[0].strip()}\n```\n\n", text + "\n")
    return found.rstrip() + "\n"


def parameter_table(parameters: list[Any]) -> str:
    """Names, types and defaults, as a table."""
    shown = [p for p in parameters if p.name not in ("self", "cls")]
    if not shown:
        return ""
    lines = ["| parameter | type | default |", "|---|---|---|"]
    for p in shown:
        stars = {"variadic positional": "*", "variadic keyword": "**"}.get(getattr(p.kind, "value", ""), "")
        kind = f"`{p.annotation}`" if p.annotation is not None else ""
        default = f"`{p.default}`" if p.default is not None and not stars else "" if stars else "required"
        lines.append(f"| `{stars}{p.name}` | {kind} | {default} |")
    return "\n\n" + "\n".join(lines) + "\n"


class Docstrings(griffe.Extension):
    """Changes docstrings before they are rendered."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_function_instance(self, *, func: Any, **_: Any) -> None:
        if func.docstring is not None:
            func.docstring.value += parameter_table(list(func.parameters))
