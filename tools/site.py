"""Hooks of mkdocs: the README is the first page, and links that leave docs/ lead to the project's files."""

from __future__ import annotations

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


def with_links_of_the_site(text: str, folder: Path) -> str:
    """A page of `folder` with the links of the site: into docs/ as they are there, others to the source."""

    def changed(link: re.Match[str]) -> str:
        opening, name, anchor, closing = link[1], link[2], link[3] or "", link[4]
        target = (folder / name).resolve()
        docs = ROOT / "docs"
        if target.is_relative_to(docs):
            return f"{opening}{target.relative_to(docs)}{anchor}{closing}"
        if target == ROOT / "README.md":
            return f"{opening}index.md{anchor}{closing}"
        return f"{opening}{source_url()}/{target.relative_to(ROOT)}{anchor}{closing}"

    return LINK.sub(changed, text)


def on_files(files: Any, config: Any) -> Any:
    """Add the README as the first page."""
    from mkdocs.structure.files import File

    text = with_links_of_the_site((ROOT / "README.md").read_text(encoding="utf-8"), ROOT)
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links of every other page."""
    return markdown if page.file.src_path == "index.md" else with_links_of_the_site(markdown, ROOT / "docs")
