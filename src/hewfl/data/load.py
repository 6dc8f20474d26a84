"""A data set by name or by path.

The files of a name are searched for in HEWFL_DATA, then in the user cache, then on the
publishers' mirrors. Every load checks the sha256 of its files. Parsed arrays are
cached.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hewfl.core.toml_records import one_of
from hewfl.core.validation import invalid
from hewfl.data import formats, user_files
from hewfl.data.cache import Parsed, load_or_parse, verify_cached
from hewfl.data.catalogue import CATALOGUE, DatasetInfo, dataset_info, verify_file
from hewfl.data.dataset import Dataset
from hewfl.data.download import fetch, progress_bar
from hewfl.data.femnist import read_femnist
from hewfl.data.formats import Parts, Texts, read_news
from hewfl.data.hugging_face import (
    PREFIX,
    fingerprint,
    is_hugging_face,
    read_hugging_face,
)
from hewfl.data.paths import file_sha256, find_file
from hewfl.errors import DataError

_READERS: dict[str, Callable[[Sequence[Path]], Parts]] = {
    "mnist": formats.read_images,
    "fashion_mnist": formats.read_images,
    "emnist": partial(formats.read_emnist, split="balanced"),
    "emnist_letters": partial(formats.read_emnist, split="letters"),
    "emnist_byclass": partial(formats.read_emnist, split="byclass"),
    "cifar10": partial(formats.read_cifar, label_bytes=1),
    "cifar100": partial(formats.read_cifar, label_bytes=2),
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
        name: `digits`, another name of `CATALOGUE`, the path of a CSV, NPZ or Parquet
            file or of a folder of images, or "hf:" before a name of the Hugging Face
            hub or the path of a folder that its library has saved.
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
        MissingExtraError: the source needs a library that is not installed.

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
    if not is_users(str(name)):
        raise invalid("name", one_of((*CATALOGUE, USERS), name), repr(str(name)))
    return _load_users(str(name), label_column, client_column)


USERS = f"a file ending in {', '.join(user_files.SUFFIXES)}, a folder or hf:NAME"
"""Data sets that are not in the catalogue."""


def is_users(name: str) -> bool:
    """Whether a name is of a file, a folder or a data set of Hugging Face."""
    is_file = name.endswith(user_files.SUFFIXES) or Path(name).is_dir()
    return is_hugging_face(name) or is_file


def absolute_source(name: str) -> str:
    """The name of a user's data set, with the absolute path of its file or folder."""
    prefix = PREFIX if is_hugging_face(name) else ""
    place = Path(name.removeprefix(prefix))
    on_hub = bool(prefix) and not place.is_dir()
    return name if on_hub else f"{prefix}{place.resolve()}"


def source_digest(name: str) -> str:
    """What identifies the content of a user's data set.

    Raises:
        DataError: there is no such file, folder or data set.
    """
    if is_hugging_face(name):
        return fingerprint(name)
    if not Path(name).exists():
        raise DataError(f"{name}: no such file")
    return file_sha256(Path(name))


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
    if name in CATALOGUE and name != "digits":
        info = dataset_info(str(name))
        _, key = _verified_files(info, download=False)
        verify_cached(info.name, [*key, *map(str, info.shape)])
    elif name != "digits":
        verify_cached(*_users_key(str(name), label_column, client_column))
    return dataset


def _load_named(info: DatasetInfo, *, download: bool) -> Dataset:
    paths, key = _verified_files(info, download=download)

    def parse() -> Parsed:
        if info.name == "femnist":
            return read_femnist(paths[0], info.classes)
        train, test = _READERS[info.name](paths)
        return Parsed(train, test, info.classes, shape=info.shape)

    parsed = load_or_parse(info.name, [*key, *map(str, info.shape)], parse)
    return _as_dataset(info.name, parsed, str(paths[0].parent))


def _as_dataset(name: str, parsed: Parsed, source: str) -> Dataset:
    of_clients = (parsed.clients, parsed.client_names, parsed.shape)
    parts = (*parsed.train, parsed.test, parsed.classes)
    return Dataset(name, *parts, source, *of_clients)


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


def _load_users(
    name: str, label_column: str | None, client_column: str | None
) -> Dataset:
    columns = (label_column, client_column)
    folder, key = _users_key(name, *columns)

    def parse() -> Parsed:
        if is_hugging_face(name):
            return read_hugging_face(name, *columns)
        return user_files.read_user_file(Path(name), *columns)

    parsed = load_or_parse(folder, key, parse)
    return _as_dataset(name if is_hugging_face(name) else Path(name).name, parsed, name)


def _users_key(
    name: str, label_column: str | None, client_column: str | None
) -> tuple[str, list[str]]:
    kinds = [s for s in user_files.SUFFIXES if name.endswith(s)]
    kind = "hf" if is_hugging_face(name) else (*kinds, "folder")[0].lstrip(".")
    form = f"tables {user_files.VERSION}"
    columns = [label_column or "", *([] if client_column is None else [client_column])]
    return kind, [form, kind, source_digest(name), *columns]
