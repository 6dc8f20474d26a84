"""Files of users: CSV with errors that name line and column, NPZ, Parquet."""

import gzip
import io
import sys
from pathlib import Path

import numpy as np
import pytest

from hewfl.data.load import load
from hewfl.errors import DataError, MissingExtraError

CSV = "a,kind,b\n1,x,2.5\n3,y,-4\n5,x,6e2\n"


def written(folder: Path, text: str, name: str = "own.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_of_one_name_are_refused(tmp_path: Path, kind: str) -> None:
    file = written(tmp_path, "a,b,a,y\n1,2,3,x\n4,5,6,z\n")
    if kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        columns = [arrow.array([1, 2]) for _ in range(4)]
        file = tmp_path / "own.parquet"
        parquet.write_table(arrow.table(columns, names=["a", "b", "a", "y"]), file)
    with pytest.raises(DataError, match="columns must differ; got 'a' 2 times"):
        load(file)


def test_columns_without_a_name_are_read(tmp_path: Path) -> None:
    dataset = load(written(tmp_path, ",,y\n1,2,x\n4,5,z\n"))
    assert dataset.features.tolist() == [[1, 2], [4, 5]]


def test_a_label_column_by_name(tmp_path: Path) -> None:
    dataset = load(written(tmp_path, CSV), label_column="kind")
    assert dataset.features.tolist() == [[1, 2.5], [3, -4], [5, 600]]
    assert dataset.labels.tolist() == [0, 1, 0]
    assert dataset.classes == ("x", "y")
    assert dataset.name == "own.csv"
    assert dataset.test is None


def test_the_last_column_is_the_label_by_default(tmp_path: Path) -> None:
    dataset = load(written(tmp_path, "1,2,10\n3,4,9\n5,6,10\n"))
    assert dataset.features.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert dataset.classes == ("9", "10")  # in the order of numbers
    assert dataset.labels.tolist() == [1, 0, 1]


def test_quotes_marks_and_compression(tmp_path: Path) -> None:
    text = '\ufeff"x, first",label\r\n1,"a, b"\r\n2,c # d\r\n'
    path = tmp_path / "own.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    dataset = load(path)
    assert dataset.classes == ("a, b", "c # d")
    assert dataset.features.tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("0,1,label\n5,6,1\n7,8,0\n", "label"),
        ("1,2,kind\n5,6,x\n7,8,y\n7,8,y\n", "kind"),
        ("2019,2020,kind\n5,6,x\n7,8,y\n7,8,y\n", "kind"),
        ('"two\nlines",b,"the\nkind"\n5,6,x\n7,8,y\n7,8,y\n', None),
        ('"two\r\nlines",2020,kind\r\n5,6,x\r\n7,8,y\r\n', "kind"),
        ("\ufeffa, b, kind\n5,6,x\n7,8,y\n", "kind"),
    ],
)
def test_headers_of_every_kind(tmp_path: Path, text: str, label: str | None) -> None:
    dataset = load(written(tmp_path, text), label_column=label)
    assert dataset.features[:2].tolist() == [[5, 6], [7, 8]]
    assert len(dataset.classes) == 2


@pytest.mark.parametrize("labels", ["xyy", "100"])
def test_a_header_of_numbers_must_be_named(tmp_path: Path, labels: str) -> None:
    rows = "".join(f"5,6,{label}\n" for label in labels)
    path = written(tmp_path, f"2019,2020,kind\n{rows}")
    with pytest.raises(DataError, match="pass label_column='kind'"):
        load(path)


def test_text_of_two_bytes(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_bytes("a,kind\n1,é\n2,y\n".encode("utf-16"))
    assert load(tmp_path / "own.csv").classes == ("y", "é")


CLIENTS = "a,ward,kind\n1,north,x\n3,south,y\n5,north,x\n"


def test_a_column_of_clients(tmp_path: Path) -> None:
    dataset = load(written(tmp_path, CLIENTS), client_column="ward")
    assert dataset.features.tolist() == [[1], [3], [5]]
    assert dataset.client_names == ("north", "south")
    assert dataset.clients is not None
    assert dataset.clients.tolist() == [0, 1, 0]
    again = load(tmp_path / "own.csv", client_column="ward")  # now from the cache
    assert again.clients is not None
    assert again.clients.tolist() == [0, 1, 0]
    assert again.client_names == ("north", "south")
    last = load(written(tmp_path, "a,kind,id\n1,x,10\n3,y,9\n"), client_column="id")
    assert last.classes == ("x", "y")
    assert last.client_names == ("9", "10")


@pytest.mark.parametrize(
    ("text", "client", "match"),
    [
        (CLIENTS, "town", "must have one column 'town'; got 0 among a, ward, kind"),
        ("a,w,kind\n1,n,x\n2,n,y\n", "w", "clients must be at least two; got only n"),
        ("w,kind\nn,x\ns,y\n", "w", "must have a column of features; got none"),
        ("a,w,kind\n1,,x\n2,n,y\n", "w", "clients must be whole numbers or texts"),
    ],
)
def test_bad_clients(tmp_path: Path, text: str, client: str, match: str) -> None:
    with pytest.raises(DataError, match=match):
        load(written(tmp_path, text), client_column=client)


@pytest.mark.parametrize(
    ("text", "label", "match"),
    [
        ("", None, "rows must have at least two columns; got 0"),
        ("1\n2\n", None, "rows must have at least two columns; got 1"),
        ("a,b\n", None, "must have rows below its header; got none"),
        ("a;b\n1;2\n", None, "got 1 in the first.*a;b.*; separate fields by commas"),
        ("1,2,0\n1,x,1\n", None, "numbers; got 'x' in line 2, column 2$"),
        (
            "1,2,0\n1,,1\n",
            None,
            "features must be numbers; got '' in line 2, column 2$",
        ),
        ("a,b,c\n1,,1\n", None, "numbers; got '' in line 2, column 'b'$"),
        ("1,2,0\n1,2,3,1\n", None, "have 3 fields, as the first has; got 4 in line 2"),
        ("1,2,0\n1,2,0\n\n1,1\n", None, "rows must have 3 fields.*; got 2 in line 4"),
        ('a,b,c\n"1",2,"x\ny"\n1,2\n', None, "got 2 in line 4"),
        (
            CSV,
            None,
            "'x' in line 2, column 'kind' .*label_column='kind'",
        ),
        ("1,nan,0\n1,2,1\n", None, "must be finite; got nan in line 1, column 2$"),
        ("a,b,c\n1,2,0\n\n1,-inf,1\n", None, "got -inf in line 4, column 'b'$"),
        ("a,b,c\n1,2,0\n1e999,1,1\n", None, "got inf in line 3, column 'a'$"),
        ("1,2,0\n1,2,0\n", None, "labels must be of at least two classes; got only 0"),
        ("1,2,0\n1,2,0.5\n", None, "or texts; got 0.5 in line 2, column 3$"),
        ("a,b,c\n1,2,0\n\n1,2,inf\n", None, "texts; got inf in line 4, column 'c'$"),
        (
            "1,2,a\n1,2,\n",
            None,
            "labels must be whole numbers or texts; got '' in line",
        ),
        (CSV, "sort", "must have one column 'sort'; got 0 among a, kind, b"),
        ("1,2,0\n", "kind", "must have a header to find column 'kind' by name"),
    ],
)
def test_errors_name_line_and_column(
    tmp_path: Path, text: str, label: str | None, match: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(DataError, match=match) as caught:
        load(path, label_column=label)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="must be UTF-8 text"):
        load(tmp_path / "own.csv")
    (tmp_path / "own.csv.gz").write_bytes(gzip.compress(b"\xff\xfe\x00"))
    with pytest.raises(DataError, match="must be UTF-8 text"):
        load(tmp_path / "own.csv.gz")
    for content in (gzip.compress(CSV.encode())[:-12], CSV.encode()):
        (tmp_path / "own.csv.gz").write_bytes(content)
        with pytest.raises(DataError, match="must be a gzip file, as its name says"):
            load(tmp_path / "own.csv.gz")


def test_npz_with_a_test_part(tmp_path: Path) -> None:
    X = np.arange(8, dtype=np.float32).reshape(4, 2)
    y = np.array(["u", "v", "u", "w"])
    np.savez_compressed(tmp_path / "own.npz", X=X, y=y, X_test=X[:1] > 0, y_test=y[1:2])
    dataset = load(tmp_path / "own.npz")
    assert dataset.features.dtype == np.float32
    assert (dataset.features == X).all()
    assert dataset.labels.tolist() == [0, 1, 0, 2]
    assert dataset.classes == ("u", "v", "w")
    assert dataset.test is not None
    assert dataset.test[0].tolist() == [[0, 1]]
    assert dataset.test[1].tolist() == [1]


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"X": np.ones((2, 2))}, "arrays must be X, y and, if any, .*; got X"),
        (
            {"X": np.ones((2, 2)), "y": [0, 1], "y_test": [0]},
            "arrays must be X, y and, if any, X_test, y_test",
        ),
        ({"X": np.ones(2), "y": [0, 1]}, "features must be a table of numbers"),
        ({"X": np.ones((2, 2)), "y": [0, 1, 1]}, "labels must be one per row"),
        ({"X": np.ones((2, 2)), "y": [1j, 0]}, "labels must be whole numbers or texts"),
        (
            {
                "X": np.ones((2, 2)),
                "y": [0, 1],
                "X_test": np.ones((1, 3)),
                "y_test": [0],
            },
            "X_test must be as wide as X; got 3 and 2",
        ),
        (
            {"X": np.array([[{}]]), "y": [0]},
            "must be an NPZ file of numbers; got objects$",
        ),
    ],
)
def test_bad_npz_files(tmp_path: Path, arrays: dict[str, object], match: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(DataError, match=match):
        load(tmp_path / "own.npz")


def test_bytes_that_are_no_npz(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.ones(2))
    for content in (b"", b"nothing of the kind", b"PK\x03\x04", array.getvalue()):
        (tmp_path / "own.npz").write_bytes(content)
        match = "must be an NPZ file of numbers; got no zip archive, or half of one$"
        with pytest.raises(DataError, match=match):
            load(tmp_path / "own.npz")


def test_npz_has_no_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", X=np.ones((2, 2)), y=[0, 1])
    with pytest.raises(DataError, match="no column"):
        load(tmp_path / "own.npz", label_column="y")


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="extra data"):
        load(tmp_path / "own.parquet")


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"a": [1, 3], "kind": ["x", "y"], "b": [2.5, -4.0]}
    path = tmp_path / "own.parquet"
    parquet.write_table(arrow.table(columns), path)
    dataset = load(path, label_column="kind")
    assert dataset.features.tolist() == [[1, 2.5], [3, -4]]
    assert dataset.classes == ("x", "y")
    with pytest.raises(DataError, match="features must be numbers; got string"):
        load(path, label_column="a")
    parquet.write_table(arrow.table({"a": [1, None], "b": [0, 1]}), path)
    with pytest.raises(DataError, match="no entry may be missing; got 1 in a"):
        load(path)
    path.write_bytes(b"no parquet")
    with pytest.raises(DataError, match="must be a Parquet file"):
        load(path)
