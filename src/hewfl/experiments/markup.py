"""HTML in which all text is escaped that is not markup already."""

import html
from collections.abc import Iterable, Sequence


class Html(str):
    """Text that is HTML already; all other text is escaped."""

    __slots__ = ()


def tag(name: str, *inside: str, **attributes: str | int | float) -> Html:
    """An element. Attributes are in Python's spelling: `class_` is class."""
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{named}>{join(inside)}</{name}>")


def join(parts: Iterable[str]) -> Html:
    """Parts one after the other."""
    return Html("".join(p if isinstance(p, Html) else html.escape(p) for p in parts))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> Html:
    """A table that scrolls where the page is too narrow."""
    top = tag("tr", *(tag("th", name, scope="col") for name in head))
    body = (tag("tr", *(tag("td", cell) for cell in row)) for row in rows)
    parts = (tag("caption", caption), tag("thead", top), tag("tbody", *body))
    return tag("div", tag("table", *parts), class_="scroll")


def warning(text: str) -> Html:
    """A paragraph that stands out."""
    return tag("p", text, class_="warn")
