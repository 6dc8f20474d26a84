"""What of the catalogue is here."""

from dataclasses import dataclass
from typing import Literal, final

from hewfl.data.entry import Entry
from hewfl.data.places import download_root, find

State = Literal["embedded", "here", "partly here", "absent"]


@final
@dataclass(frozen=True, slots=True)
class Stock:
    """One data set and where its files are.

    Attributes:
        entry: of the catalogue.
        state: how much of it was found.
        place: `hewfl`, `HEWFL_DATA`, `cache`, or both of these; empty if absent.
    """

    entry: Entry
    state: State
    place: str


def take_stock(entry: Entry) -> Stock:
    """Look for the files of a data set without reading them."""
    if not entry.files:
        return Stock(entry, "embedded", "hewfl")
    found = [place for place in map(find, entry.files) if place is not None]
    ours = {place.is_relative_to(download_root()) for place in found}
    names = {False: "HEWFL_DATA", True: "cache"}
    place = ", ".join(names[is_ours] for is_ours in sorted(ours))
    if not found:
        return Stock(entry, "absent", place)
    whole = len(found) == len(entry.files)
    return Stock(entry, "here" if whole else "partly here", place)
