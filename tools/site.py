"""Hooks of mkdocs: the README, the notebooks and the pages of lab/ and aie/ are part of the site.

Links between them lead to pages of the site, all other links to the project's files.
"""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DISTRIBUTIONS = ("lab", "aie")
"""Folders whose docs/ are pages of the site."""
LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?(\))")


def source_url() -> str:
    """Where the files of the project can be looked at: at the host that builds the site, or here."""
    repository = os.environ.get("GITHUB_REPOSITORY")
    return f"{os.environ['GITHUB_SERVER_URL']}/{repository}/blob/main" if repository else ROOT.as_uri()


def place_on_site(file: Path) -> Path | None:
    """Where a file of the project is on the site; None if it is no part of it."""
    if file == ROOT / "README.md":
        return Path("index.md")
    for name in DISTRIBUTIONS:
        if file.parent == ROOT / name / "docs" and file.suffix == ".md":
            return Path(name) / file.name
    if not file.is_relative_to(DOCS):
        return None
    found = file.relative_to(DOCS)
    return found.with_suffix(".md") if file.suffix == ".ipynb" else found


def with_links_of_the_site(text: str, folder: Path, at: str = ".") -> str:
    """A page of `folder`, at the site's folder `at`, with its links: to pages, or to the source."""

    def changed(link: re.Match[str]) -> str:
        opening, name, anchor, closing = link[1], link[2], link[3] or "", link[4]
        target = (folder / name).resolve()
        page = place_on_site(target)
        if page is not None:
            return f"{opening}{os.path.relpath(page, at)}{anchor}{closing}"
        return f"{opening}{source_url()}/{target.relative_to(ROOT)}{anchor}{closing}"

    return LINK.sub(changed, text)


def as_markdown(notebook: Path) -> str:
    """The cells of a notebook, with the outputs that are stored in it."""
    parts = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        parts += [shown for output in cell["outputs"] if (shown := _output(output))]
    return "\n\n".join(parts) + "\n"


def _output(output: dict[str, Any]) -> str:
    """An output as HTML where it has such a form, otherwise as text."""
    data = output.get("data", {})
    if "text/html" in data:
        return "<div>\n" + "".join(data["text/html"]).replace("\n\n", "\n").strip() + "\n</div>"
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
    return f"```text\n{text}\n```" if text else ""


def on_files(files: Any, config: Any) -> Any:
    """Add the README as the first page, the notebooks, and the pages of the other distributions."""
    from mkdocs.structure.files import File

    sources = [ROOT / "README.md", *sorted((DOCS / "notebooks").glob("*.ipynb"))]
    sources += [page for name in DISTRIBUTIONS for page in sorted((ROOT / name / "docs").glob("*.md"))]
    for source in sources:
        place = place_on_site(source)
        assert place is not None
        text = as_markdown(source) if source.suffix == ".ipynb" else source.read_text(encoding="utf-8")
        text = with_links_of_the_site(text, source.parent, str(place.parent))
        files.append(File.generated(config, place.as_posix(), content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links of the pages in docs/; the page of public names shows each name closed."""
    if page.file.generated_by is not None:
        return markdown
    if page.file.src_path == "api.md":
        markdown = re.sub(r"^::: ([\w.]+)$", _closed, markdown, flags=re.M)
    return with_links_of_the_site(markdown, DOCS)


def _closed(name: re.Match[str]) -> str:
    """A public name as a closed block, whose title is the first sentence of its docstring."""
    docstring = _package()[name[1].partition(".")[2]].docstring
    summary = re.split(r"(?<=[.:;])\s", docstring.value)[0].rstrip(".:;") if docstring else ""
    title = " ".join(f"{name[1]}: {summary}".split()).replace('"', "'")
    return f'??? abstract "{title}"\n\n    ::: {name[1]}\n'


@cache
def _package() -> Any:
    import griffe

    return griffe.load("hccs", search_paths=[str(ROOT / "src")], resolve_aliases=True)
