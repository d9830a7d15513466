"""Hooks of mkdocs: README and notebooks are pages, and links that leave docs/ lead to the project's files."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\()([^)\s:#]+)(#[^)\s]*)?(\))")


def source_url() -> str:
    """Where the files of the project can be looked at: at the host that builds the site, or here."""
    repository = os.environ.get("GITHUB_REPOSITORY")
    return f"{os.environ['GITHUB_SERVER_URL']}/{repository}/blob/main" if repository else ROOT.as_uri()


def with_links_of_the_site(text: str, folder: Path, at: str = ".") -> str:
    """A page of `folder`, at the site's folder `at`, with its links: within docs/, or to the source."""

    def changed(link: re.Match[str]) -> str:
        opening, name, anchor, closing = link[1], link[2], link[3] or "", link[4]
        target = (folder / name).resolve()
        docs = ROOT / "docs"
        if target.is_relative_to(docs):
            page = target.with_suffix(".md") if target.suffix == ".ipynb" else target
            return f"{opening}{os.path.relpath(page.relative_to(docs), at)}{anchor}{closing}"
        if target == ROOT / "README.md":
            return f"{opening}{os.path.relpath('index.md', at)}{anchor}{closing}"
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
    """Add the README as the first page, and the notebooks."""
    from mkdocs.structure.files import File

    text = with_links_of_the_site((ROOT / "README.md").read_text(encoding="utf-8"), ROOT)
    files.append(File.generated(config, "index.md", content=text))
    for notebook in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text = with_links_of_the_site(as_markdown(notebook), notebook.parent, "notebooks")
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links of every other page."""
    path = page.file.src_path
    generated = path == "index.md" or path.startswith("notebooks/")
    return markdown if generated else with_links_of_the_site(markdown, ROOT / "docs")
