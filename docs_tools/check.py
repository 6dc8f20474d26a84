"""Checks of the built site: links, anchors, and nothing loaded from other hosts."""

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
        """Collect the anchors, links and loaded files of one tag."""
        values = dict(attrs)
        self.anchors |= {v for k in ("id", "name") if (v := values.get(k))}
        if tag == "a" and values.get("href"):
            self.links.append(str(values["href"]))
        elif tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(str(values.get("href")))
        elif tag in LOADED and values.get(LOADED[tag]):
            self.loaded.append(str(values[LOADED[tag]]))


def site_errors(site: Path = SITE) -> list[str]:
    """The errors of a built site.

    Args:
        site: its folder.

    Returns:
        One sentence for each broken link or anchor, and for each file that would be
        loaded from another host.
    """
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    errors = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        if path.name == "404.html":  # its addresses are absolute
            continue
        for address in page.links + page.loaded:
            parts = urlsplit(address)
            if parts.scheme in ("http", "https") or parts.netloc:
                if address in page.loaded:
                    errors.append(f"{name} loads {address}")
                continue
            if parts.scheme:
                continue
            target = (
                (path.parent / unquote(parts.path)).resolve() if parts.path else path
            )
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                errors.append(f"{name} links to {address}, which does not exist")
            elif target in pages and parts.fragment:
                if unquote(parts.fragment) in pages[target].anchors:
                    continue
                errors.append(f"{name} links to {address}: no such anchor")
    return sorted(set(errors))


if __name__ == "__main__":
    errors = site_errors()
    pages = len(list(SITE.rglob("*.html")))
    print("\n".join([*errors, f"{pages} pages, {len(errors)} errors"]))  # noqa: T201
    sys.exit(bool(errors) or not pages)
