"""Notebooks run, and are kept without outputs.

`make docs` runs all of them in a kernel; the one that starts Flower's simulation, with
processes of its own, only there.
"""

from pathlib import Path

import pytest
from docs_tools.notebooks import without_outputs
from docs_tools.pages import NOTEBOOKS, cells

pytest.importorskip("matplotlib", reason="notebooks draw")
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))


def test_they_are_numbered() -> None:
    assert [path.stem[:1] for path in PATHS] == list("12345")


@pytest.mark.unchecked
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize(
    "path", [p for p in PATHS if "flower" not in p.stem], ids=lambda path: path.stem
)
def test_runs(path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - may not be installed

    mpl.use("agg")
    names: dict[str, object] = {"__name__": "__main__"}
    for k, (kind, source) in enumerate(cells(path)):
        if kind == "code":
            exec(compile(source, f"{path.stem}, cell {k}", "exec"), names)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_is_kept_without_outputs(path: Path) -> None:
    assert without_outputs(path)
