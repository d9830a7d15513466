"""Whether HTML is what its writer meant: every element closed in its order, nothing fetched."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"br", "hr", "link", "meta", "img", "input"}


class Elements(HTMLParser):
    """All elements of a page in their order, and its text; one that is closed wrongly is remembered."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.names: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.wrong: list[str] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        self.wrong += self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(page: str) -> Elements:
    """The page's elements; it must be well formed, hold all it shows, and link to what it has."""
    found = Elements(page)
    assert found.wrong == []
    assert len(found.ids) == len(set(found.ids))
    assert all(link.startswith("#") and link[1:] in found.ids for link in found.links)
    without_names = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert re.findall(r"https?://[^\s\"']+|@import|url\(", without_names) == []
    return found
