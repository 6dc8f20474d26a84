"""What is known of a published data set: its files, checksums, size and terms."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class DataFile:
    """One published file.

    Attributes:
        path: place below the data folder.
        size: bytes.
        sha256: checksums of the file in its known containers.
        content_sha256: checksum of the decompressed bytes, where containers that differ
            only in a gzip header are in circulation.
        urls: mirrors, tried in this order; none if nobody publishes the file.
    """

    path: str
    size: int
    sha256: tuple[str, ...]
    content_sha256: str | None = None
    urls: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """One data set.

    Attributes:
        name: what `load` takes.
        title: what people call it.
        files: all that must be there.
        samples: rows of the training and of the test part (0: none is published).
        features: numbers per row.
        classes: their names, in the order of the labels 0, 1, ...
        licence: the publisher's terms.
        citation: key in the bibliography of `PAPER.md`.
    """

    name: str
    title: str
    files: tuple[DataFile, ...]
    samples: tuple[int, int]
    features: int
    classes: tuple[str, ...]
    licence: str
    citation: str

    @property
    def is_downloadable(self) -> bool:
        """Whether every file has a mirror."""
        return all(file.urls for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)
