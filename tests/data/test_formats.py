import gzip
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from tests.data.mirror import idx

from hewfl.data import formats
from hewfl.data.formats import read_covertype, read_digits, read_idx, read_news
from hewfl.errors import DataError

DIGIT_FEATURES = "a627aed550b0b29bf76a981bc1ecbab5ef775aac454c94154f20ec9f61a04c83"
DIGIT_LABELS = "a3c91c262eddcf7ba8f0e37507c30284493c9b20412ffe4af30d536401f7ba21"


def gz(folder: Path, content: bytes) -> Path:
    path = folder / "file.gz"
    path.write_bytes(gzip.compress(content))
    return path


def test_idx_files_are_read_back(tmp_path: Path) -> None:
    for shape in ((7,), (3, 4, 5)):
        array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
        (tmp_path / "a.gz").write_bytes(idx(array))
        assert (read_idx(tmp_path / "a.gz") == array).all()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\x00\x08",
        b"\x00\x00\x08\x01\x00\x00\x00\x03ab",  # two of three entries
        b"\x00\x00\x08\x01\x00\x00\x00\x01ab",  # two of one
        b"\x00\x00\x0d\x01\x00\x00\x00\x02ab",  # floats
        b"\x00\x00\x08\x02\x00\x00",  # header cut short
    ],
)
def test_other_bytes_are_no_idx_file(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match="must be an idx file of bytes"):
        read_idx(gz(tmp_path, content))


def test_covertype_lines_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(-300, 7000, (40, 55))
    table[:, -1] = np.arange(40) % 7 + 1
    text = "".join(",".join(map(str, row)) + "\n" for row in table.tolist())
    (features, labels), test = read_covertype([gz(tmp_path, text.encode())])
    assert test is None
    assert features.dtype == np.int16
    assert (features == table[:, :-1]).all()
    assert (labels == np.arange(40) % 7).all()


@pytest.mark.parametrize("line", ["1,2,3", ",".join(["99999"] * 55)])
def test_other_tables_are_not_covertype(tmp_path: Path, line: str) -> None:
    with pytest.raises(DataError, match="must be lines of 55 numbers"):
        read_covertype([gz(tmp_path, line.encode())])


def test_news_are_title_and_description(tmp_path: Path) -> None:
    content = '"3","A, ""B""","C\\D\nE"\n"1","F","Grüße"\n'.encode()
    news = read_news(gz(tmp_path, content))
    assert news.texts == ('A, "B" C\\D\nE', "F Grüße")
    assert news.labels.tolist() == [2, 0]


def test_other_rows_are_no_news(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got \['x', 'y'\]"):
        read_news(gz(tmp_path, b'"1","a","b"\n"x","y"\n'))


def test_digits_are_those_that_were_published() -> None:
    """Checksums of scikit-learn's `load_digits`, rows and order, in our types."""
    (features, labels), test = read_digits()
    assert test is None
    assert (features.shape, labels.shape) == ((1797, 64), (1797,))
    assert (features.dtype, labels.dtype) == (np.dtype("f4"), np.dtype("i8"))
    assert sha256(features.tobytes()).hexdigest() == DIGIT_FEATURES
    assert sha256(labels.tobytes()).hexdigest() == DIGIT_LABELS


def test_damaged_digits_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "DIGITS_SHA256", "0" * 64)
    with pytest.raises(DataError, match=r"digits.csv.gz is damaged"):
        read_digits()
