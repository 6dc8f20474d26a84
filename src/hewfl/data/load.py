"""A data set by name or by path.

Names are searched for in HEWFL_DATA, then in the user cache, then on the publishers'
mirrors. Every load checks the sha256 of what it reads; parsed arrays are cached.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hewfl.core.validation import invalid
from hewfl.data import formats
from hewfl.data import user_files as own_files
from hewfl.data.cache import Parsed, cached, verify_cached
from hewfl.data.catalogue import CATALOGUE, entry_named
from hewfl.data.dataset import Dataset
from hewfl.data.download import fetch, progress_bar
from hewfl.data.formats import Parts, Texts, read_news
from hewfl.data.paths import DatasetInfo, examine, file_sha256, find, how_to_get
from hewfl.errors import DataError

_READERS: dict[str, Callable[[Sequence[Path]], Parts]] = {
    "mnist": formats.read_images,
    "fashion_mnist": formats.read_images,
    "covertype": formats.read_covertype,
    "ag_news": formats.read_news_features,
}


def load(
    name: str | Path = "digits",
    *,
    label: str | None = None,
    client: str | None = None,
    download: bool = True,
) -> Dataset:
    """A data set by its name in the catalogue, or from a file of one's own.

    Args:
        name: `digits`, `mnist`, `fashion_mnist`, `covertype`, `ag_news`, or the path
            of a CSV, NPZ or Parquet file.
        label: column of the labels in a CSV or Parquet file; the last by default.
        client: column that says whose each row is; "clients" for the array of an NPZ
            file; None if the file does not say.
        download: whether files found nowhere may be downloaded.

    Returns:
        The data set, as published.

    Raises:
        InvalidInputError: neither a known name nor a path with a known suffix; or a
            label for a data set that has its own.
        DataError: files are absent or damaged; the text says how to get them.
        MissingExtraError: a Parquet file, and pyarrow is not installed.

    Examples:
        >>> digits = load("digits")
        >>> digits.features.shape, len(digits.classes)
        ((1797, 64), 10)
    """
    if name in CATALOGUE and label is not None:
        raise invalid("label", f"left out: {name} has its labels", repr(label))
    if name in CATALOGUE and client is not None:
        raise invalid("client", f"left out: {name} does not say whose", repr(client))
    if name == "digits":
        train, test = formats.read_digits()
        classes = CATALOGUE["digits"].classes
        return Dataset("digits", *train, test, classes, "hewfl")
    if name in CATALOGUE:
        return _load_named(entry_named(str(name)), download=download)
    path = Path(name)
    if not path.name.endswith(own_files.SUFFIXES):
        known = ", ".join(CATALOGUE)
        rule = f"one of {known}, or a file ending in {', '.join(own_files.SUFFIXES)}"
        raise invalid("name", rule, repr(str(name)))
    return _load_file(path, label, client)


def ag_news_texts() -> tuple[Texts, Texts]:
    """AG News as texts: training subset and test part, rows as in `load("ag_news")`.

    Returns:
        The training part and the test part.

    Examples:
        >>> train, test = ag_news_texts()  # doctest: +SKIP
        >>> len(train.texts)  # doctest: +SKIP
        120000

    Raises:
        DataError: files are absent or damaged; the text says how to get them.
    """
    entry = entry_named("ag_news")
    texts = replace(entry, files=entry.files[:2])  # features may still be to be made
    paths, _ = _verified(texts, download=False)
    return read_news(paths[0]), read_news(paths[1])


def check(
    name: str | Path, *, label: str | None = None, client: str | None = None
) -> Dataset:
    """Load without downloading, and compare cached arrays with their checksums.

    Args:
        name: as for `load`.
        label: as for `load`.
        client: as for `load`.

    Returns:
        The data set.

    Raises:
        DataError: as `load`, or a cached array has changed since it was written.
    """
    dataset = load(name, label=label, client=client, download=False)
    if name in _READERS:
        _, key = _verified(entry_named(str(name)), download=False)
        verify_cached(str(name), key)
    elif name != "digits":
        verify_cached(*_file_key(Path(name), label, client))
    return dataset


def _load_named(entry: DatasetInfo, *, download: bool) -> Dataset:
    paths, key = _verified(entry, download=download)

    def parse() -> Parsed:
        train, test = _READERS[entry.name](paths)
        return Parsed(train, test, entry.classes)

    parsed = cached(entry.name, key, parse)
    source = str(paths[0].parent)
    return Dataset(entry.name, *parsed.train, parsed.test, parsed.classes, source)


def _verified(
    entry: DatasetInfo, *, download: bool
) -> tuple[tuple[Path, ...], list[str]]:
    """Sound files of a data set, and the key of their parsed form."""
    places = [find(file) for file in entry.files]
    missing = [f.path for f, p in zip(entry.files, places, strict=True) if p is None]
    if missing and not download:
        text = f"{entry.name}: {', '.join(missing)} not found; {how_to_get(entry)}"
        raise DataError(text)
    if missing:
        with progress_bar() as report:
            fetch(entry, report)
        places = [find(file) for file in entry.files]
    paths = tuple(place for place in places if place is not None)
    key = [f"formats {formats.VERSION}"]
    for path, file in zip(paths, entry.files, strict=True):
        sha256, problem = examine(path, file)
        if problem is not None:
            text = (
                f"{path} is damaged: it {problem}; remove it, then {how_to_get(entry)}"
            )
            raise DataError(text)
        key.append(sha256)
    return paths, key


def _load_file(path: Path, label: str | None, client: str | None) -> Dataset:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    name, key = _file_key(path, label, client)
    parsed = cached(name, key, lambda: own_files.read_own_file(path, label, client))
    whose = (parsed.clients, parsed.client_names)
    return Dataset(
        path.name, *parsed.train, parsed.test, parsed.classes, str(path), *whose
    )


def _file_key(
    path: Path, label: str | None, client: str | None
) -> tuple[str, list[str]]:
    kind = next(s for s in own_files.SUFFIXES if path.name.endswith(s)).lstrip(".")
    form = f"tables {own_files.VERSION}"
    columns = [label or "", *([] if client is None else [client])]
    return kind, [form, kind, file_sha256(path), *columns]
