"""HTML in which all text is escaped that is not markup already."""

import html
from collections.abc import Iterable, Sequence
from itertools import starmap, zip_longest


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


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str,
    *,
    css: str = "cards",
) -> Html:
    """A table; on a narrow screen each row is a card that names its cells.

    Args:
        head: names of the columns.
        rows: cells.
        caption: what it shows.
        css: "cards", or "matrix", which stays a table at any width, and scrolls;
            "matrix long" has long texts in the last column.
    """
    top = tag("tr", *(tag("th", name, scope="col") for name in head))
    # cells with the names of their columns; a row may be longer than the head
    named = (zip_longest(head[: len(row)], row, fillvalue="") for row in rows)
    body = (tag("tr", *starmap(_cell, cells)) for cells in named)
    parts = (tag("caption", caption), tag("thead", top), tag("tbody", *body))
    look = {"class_": "scroll"}
    if css != "cards":  # who cannot point scrolls by keys
        look |= {"tabindex": "0", "role": "region", "aria_label": caption}
    return tag("div", tag("table", *parts, class_=css), **look)


def _cell(name: str, cell: str) -> Html:
    """A cell that knows its column; a cell that is markup of its own stays it."""
    if isinstance(cell, Html) and cell.startswith("<td"):
        return cell
    return tag("td", tag("span", cell), data_name=name)


def warning(text: str) -> Html:
    """A paragraph that stands out."""
    return tag("p", text, class_="warn")
