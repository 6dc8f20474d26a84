"""NPZ and Parquet files of users."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from hewfl.data.load import load
from hewfl.errors import DataError, MissingExtraError


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
    ("arrays", "told"),
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
def test_bad_npz_files(tmp_path: Path, arrays: dict[str, object], told: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(DataError, match=told):
        load(tmp_path / "own.npz")


def test_bytes_that_are_no_npz(tmp_path: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.ones(2))
    for content in (b"", b"nothing of the kind", b"PK\x03\x04", array.getvalue()):
        (tmp_path / "own.npz").write_bytes(content)
        told = "must be an NPZ file of numbers; got no zip archive, or half of one$"
        with pytest.raises(DataError, match=told):
            load(tmp_path / "own.npz")


def test_npz_has_no_columns(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", X=np.ones((2, 2)), y=[0, 1])
    with pytest.raises(DataError, match="no column"):
        load(tmp_path / "own.npz", label="y")


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
    dataset = load(path, label="kind")
    assert dataset.features.tolist() == [[1, 2.5], [3, -4]]
    assert dataset.classes == ("x", "y")
    with pytest.raises(DataError, match="features must be numbers; got string"):
        load(path, label="a")
    parquet.write_table(arrow.table({"a": [1, None], "b": [0, 1]}), path)
    with pytest.raises(DataError, match="no entry may be missing; got 1 in a"):
        load(path)
    path.write_bytes(b"no parquet")
    with pytest.raises(DataError, match="must be a Parquet file"):
        load(path)
