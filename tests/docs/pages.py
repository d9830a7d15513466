"""The Markdown pages of the project, taken apart: fences, inline code, links, each with its page and line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("", "docs/", "lab/", "lab/docs/", "aie/", "aie/docs/", ".github/")
# Pages whose snippets and commands must work as written. The README files inside `src` belong to exported
# projects and name files of theirs; only their links are followed.
PAGES = sorted(str(path.relative_to(ROOT)) for folder in FOLDERS for path in ROOT.glob(f"{folder}*.md"))
# Those that the site shows, too.
SITE_PAGES = [page for page in PAGES if page == "README.md" or re.match(r"(lab/|aie/)?docs/", page)]


@dataclass(frozen=True)
class Fence:
    """A fenced block: `line` is the page's line of its first line of content."""

    page: str
    line: int
    language: str
    text: str
    section: str = ""

    @property
    def place(self) -> str:
        """Where to look, in a form that editors open."""
        return f"{self.page}:{self.line}"


def fences(page: str) -> list[Fence]:
    """All fenced blocks of a page, in order, without the indentation that a list gives them."""
    found: list[Fence] = []
    indent, language, section, start, lines = "", "", "", 0, None
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        if lines is None:
            if opening := re.fullmatch(r"( *)```(\w*)", line):
                indent, language, start, lines = opening[1], opening[2], number + 1, []
            elif heading := re.fullmatch(r"#+ (.+)", line):
                section = heading[1]
        elif line == f"{indent}```":
            found.append(Fence(page, start, language, "\n".join(lines) + "\n", section))
            lines = None
        else:
            lines.append(line.removeprefix(indent))
    assert lines is None, f"{page}:{start}: a fence without an end"
    return found


def shell_lines(fence: Fence) -> list[tuple[str, str]]:
    """The lines of a shell fence as (place, line); a backslash at the end joins a line with the next."""
    found, start = [], 0
    lines = fence.text.splitlines()
    for number, line in enumerate(lines):
        if not line.endswith("\\"):
            joined = " ".join(part.rstrip("\\").strip() for part in lines[start : number + 1])
            found.append((f"{fence.page}:{fence.line + start}", joined))
            start = number + 1
    return found


def prose(page: str) -> Iterator[tuple[int, str]]:
    """The lines of a page outside its fences, numbered."""
    inside = False
    for number, line in enumerate((ROOT / page).read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield number, line


def inline_code(page: str) -> list[tuple[str, str]]:
    """`code` in the text as (place, code); a span may go over the end of a line, not of a paragraph."""
    found, paragraph, start = [], "", 0
    for number, line in [*prose(page), (0, "")]:
        if line.strip():
            paragraph, start = (f"{paragraph}\n{line}", start) if paragraph else (line, number)
            continue
        for span in re.finditer(r"`([^`]+)`", paragraph):
            place = f"{page}:{start + paragraph.count(chr(10), 0, span.start())}"
            found.append((place, " ".join(span[1].split())))
        paragraph = ""
    return found


def anchors(page: Path) -> set[str]:
    """What `#...` may name: the headings as GitHub spells them in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
