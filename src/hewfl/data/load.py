"""A data set by name or by path.

The files of a name are searched for in HEWFL_DATA, then in the user cache, then on the
publishers' mirrors. Every load checks the sha256 of its files. Parsed arrays are
cached.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hewfl.core.validation import invalid
from hewfl.data import formats, user_files
from hewfl.data.cache import Parsed, load_or_parse, verify_cached
from hewfl.data.catalogue import CATALOGUE, DatasetInfo, dataset_info, verify_file
from hewfl.data.dataset import Dataset
from hewfl.data.download import fetch, progress_bar
from hewfl.data.formats import Parts, Texts, read_news
from hewfl.data.paths import file_sha256, find_file
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
    label_column: str | None = None,
    client_column: str | None = None,
    download: bool = True,
) -> Dataset:
    """A data set by its name in the catalogue, or from a file.

    Args:
        name: `digits`, `mnist`, `fashion_mnist`, `covertype`, `ag_news`, or the path
            of a CSV, NPZ or Parquet file.
        label_column: column of the labels in a CSV or Parquet file; the last by
            default.
        client_column: column of the clients (a natural partition); "clients" for the
            array of an NPZ file; None if the file has no clients.
        download: whether absent files may be downloaded.

    Returns:
        The data set, as published.

    Raises:
        InvalidInputError: neither a known name nor a path with a known suffix; or a
            column for a data set of the catalogue.
        DataError: files are absent or damaged; the message says how to get them.
        MissingExtraError: the file is Parquet, and pyarrow is not installed.

    Examples:
        >>> digits = load("digits")
        >>> digits.features.shape, len(digits.classes)
        ((1797, 64), 10)
    """
    for argument, column in (("label", label_column), ("client", client_column)):
        if name in CATALOGUE and column is not None:
            rule = f"left out: {name} has no columns"
            raise invalid(f"{argument}_column", rule, repr(column))
    if name == "digits":
        train, test = formats.read_digits()
        classes = CATALOGUE["digits"].classes
        return Dataset("digits", *train, test, classes, "hewfl")
    if name in CATALOGUE:
        return _load_named(CATALOGUE[str(name)], download=download)
    path = Path(name)
    if not path.name.endswith(user_files.SUFFIXES):
        known = ", ".join(CATALOGUE)
        rule = f"one of {known}, or a file ending in {', '.join(user_files.SUFFIXES)}"
        raise invalid("name", rule, repr(str(name)))
    return _load_file(path, label_column, client_column)


def ag_news_texts() -> tuple[Texts, Texts]:
    """AG News as texts: training subset and test part, rows as in `load("ag_news")`.

    Returns:
        The training part and the test part.

    Raises:
        DataError: files are absent or damaged; the message says how to get them.

    Examples:
        >>> train, test = ag_news_texts()  # doctest: +SKIP
        >>> len(train.texts)  # doctest: +SKIP
        30000
    """
    info = dataset_info("ag_news")
    texts = replace(info, files=info.files[:2])  # without the features
    paths, _ = _verified_files(texts, download=False)
    return read_news(paths[0]), read_news(paths[1])


def check(
    name: str | Path,
    *,
    label_column: str | None = None,
    client_column: str | None = None,
) -> Dataset:
    """Load without downloading, and compare cached arrays with their checksums.

    Args:
        name: as for `load`.
        label_column: as for `load`.
        client_column: as for `load`.

    Returns:
        The data set.

    Raises:
        DataError: as `load`, or a cached array has changed since it was written.
    """
    dataset = load(
        name, label_column=label_column, client_column=client_column, download=False
    )
    if name in _READERS:
        _, key = _verified_files(dataset_info(str(name)), download=False)
        verify_cached(str(name), key)
    elif name != "digits":
        verify_cached(*_file_key(Path(name), label_column, client_column))
    return dataset


def _load_named(info: DatasetInfo, *, download: bool) -> Dataset:
    paths, key = _verified_files(info, download=download)

    def parse() -> Parsed:
        train, test = _READERS[info.name](paths)
        return Parsed(train, test, info.classes)

    parsed = load_or_parse(info.name, key, parse)
    source = str(paths[0].parent)
    return Dataset(info.name, *parsed.train, parsed.test, info.classes, source)


def _verified_files(
    info: DatasetInfo, *, download: bool
) -> tuple[tuple[Path, ...], list[str]]:
    """Intact files of a data set, and the cache key of their parsed form."""
    missing = [file.path for file in info.files if find_file(file.path) is None]
    if missing and not download:
        text = f"{info.name}: {', '.join(missing)} not found; {info.how_to_get}"
        raise DataError(text)
    if missing:
        with progress_bar() as report:
            fetch(info, report)
    paths, key = [], [f"formats {formats.VERSION}"]
    for file in info.files:
        path = find_file(file.path)
        assert path is not None, "found or downloaded above"
        sha256, problem = verify_file(path, file)
        if problem is not None:
            advice = f"remove it, then {info.how_to_get}"
            raise DataError(f"{path} is damaged: it {problem}; {advice}")
        paths.append(path)
        key.append(sha256)
    return tuple(paths), key


def _load_file(
    path: Path, label_column: str | None, client_column: str | None
) -> Dataset:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    columns = (label_column, client_column)
    name, key = _file_key(path, *columns)
    parsed = load_or_parse(name, key, lambda: user_files.read_user_file(path, *columns))
    return Dataset(
        path.name,
        *parsed.train,
        parsed.test,
        parsed.classes,
        str(path),
        parsed.clients,
        parsed.client_names,
    )


def _file_key(
    path: Path, label_column: str | None, client_column: str | None
) -> tuple[str, list[str]]:
    kind = next(s for s in user_files.SUFFIXES if path.name.endswith(s)).lstrip(".")
    form = f"tables {user_files.VERSION}"
    columns = [label_column or "", *([] if client_column is None else [client_column])]
    return kind, [form, kind, file_sha256(path), *columns]
