"""The built site, looked at: links, anchors, and nothing loaded from elsewhere."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs_tools.pages import ROOT

SITE = ROOT / "build" / "site"
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """The links, anchors and loaded files of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one tag names, links and loads."""
        values = dict(attrs)
        self.anchors |= {v for k in ("id", "name") if (v := values.get(k))}
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        elif tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(str(values.get("href")))
        elif tag in LOADED and values.get(LOADED[tag]):
            self.loaded.append(str(values[LOADED[tag]]))


def complaints(site: Path = SITE) -> list[str]:
    """What is wrong with a built site.

    Args:
        site: its folder.

    Returns:
        One sentence for each link that leads nowhere, each anchor that is not there and
        each file that would be loaded from another machine.
    """
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        if path.name == "404.html":  # its addresses are absolute
            continue
        for address in page.links + page.loaded:
            parts = urlsplit(address)
            if parts.scheme in ("http", "https") or parts.netloc:
                if address in page.loaded:
                    found.append(f"{name} loads {address}")
                continue
            if parts.scheme:
                continue
            target = (
                (path.parent / unquote(parts.path)).resolve() if parts.path else path
            )
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                found.append(f"{name} links to {address}, which is not there")
            elif target in pages and parts.fragment:
                if unquote(parts.fragment) in pages[target].anchors:
                    continue
                found.append(f"{name} links to {address}: no such anchor")
    return sorted(set(found))


if __name__ == "__main__":
    wrong = complaints()
    pages = len(list(SITE.rglob("*.html")))
    print("\n".join([*wrong, f"{pages} pages, {len(wrong)} complaints"]))  # noqa: T201
    sys.exit(bool(wrong) or not pages)
