import sys
from pathlib import Path

import numpy as np
import pytest

from hewfl.data.partition_plot import draw_partition
from hewfl.errors import InvalidInputError, MissingExtraError

COUNTS = np.array([[3, 0, 5], [1, 1, 0]])


@pytest.mark.parametrize(("suffix", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
@pytest.mark.parametrize("classes", [3, 23])
def test_a_picture_is_saved_and_reproducible(
    tmp_path: Path, suffix: str, magic: bytes, classes: int
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    counts = np.ones((2, classes), dtype=np.int64)
    names = tuple(f"class {k}" for k in range(classes))
    first, again = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    draw_partition(counts, names, "title", first)
    draw_partition(counts, names, "title", again)
    assert first.read_bytes().startswith(magic)
    assert first.read_bytes() == again.read_bytes()
    draw_partition(counts * 2, names, "title", again)
    assert first.read_bytes() != again.read_bytes()


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"`output` must be .*\.png or \.pdf"):
        draw_partition(COUNTS, ("a", "b", "c"), "title", tmp_path / "a.txt")


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match="extra report"):
        draw_partition(COUNTS, ("a", "b", "c"), "title", tmp_path / "a.png")
