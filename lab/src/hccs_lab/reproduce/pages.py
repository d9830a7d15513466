"""Tables put into pages between marks, and the results of all experiments in one file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hccs._files import atomic
from hccs.errors import FileError

BEGIN = "<!-- table: {name} -->"
END = "<!-- end of table -->"
_BLOCK = re.compile(r"(<!-- table: (?P<name>[^>]*?) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def filled(page: str, tables: Mapping[str, str]) -> str:
    """A page with every marked block that a table is known for replaced by it; other blocks stay.

    >>> filled("<!-- table: a -->\\nold\\n<!-- end of table -->", {"a": "| new |"})
    '<!-- table: a -->\\n| new |\\n<!-- end of table -->'
    """

    def block(match: re.Match[str]) -> str:
        table = tables.get(match["name"])
        return match[0] if table is None else f"{match[1]}{table}\n{match[3]}"

    return _BLOCK.sub(block, page)


def fill(path: Path, tables: Mapping[str, str]) -> list[str]:
    """Replace the marked blocks of a page; returns the names of those replaced."""
    try:
        page = path.read_text()
    except OSError as error:
        raise FileError(f"{path} to be a page", error.strerror or str(error), "Check --page.") from error
    names = [match["name"] for match in _BLOCK.finditer(page)]
    if not names:
        raise FileError(
            f"marks such as {BEGIN.format(name='accuracy')} and {END} in {path}", "none", "Check --page."
        )
    atomic.replace(path, filled(page, tables).encode())
    return [name for name in names if name in tables]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """All results in one file; what only figures need is left out."""
    atomic.replace(path, (json.dumps(_without_curves(content), indent=1) + "\n").encode())


def _without_curves(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _without_curves(value) for key, value in content.items() if key != "fidelity"}
    if isinstance(content, list) and content and all(isinstance(value, float) for value in content):
        return [round(value, 6) for value in content]
    return content
