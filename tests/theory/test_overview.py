import re
from pathlib import Path

import numpy as np
import pytest
from tests.theory.overview import AMPLITUDES, Row, markdown, overview

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return overview()


def find(rows: list[Row], label: str, form: str, H: int = 4, v2: float = 0.0) -> Row:
    key = (label, form, H, v2)
    (row,) = (r for r in rows if (r.label, r.form, r.horizon, r.variance) == key)
    return row


def test_the_page_shows_what_the_code_prints(rows: list[Row]) -> None:
    """To renew the page, paste `markdown(overview())` into it."""
    page = (ROOT / "docs" / "theory.md").read_text("utf-8")
    for table in markdown(rows).split("\n\n"):
        assert table in page


def test_the_page_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "theory.md").read_text("utf-8")
    tests = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.M)
    }
    named = set(re.findall(r"(?:`|::)(test_\w+)`", page))
    assert len(named) > 5
    assert named <= tests
    for file, name in re.findall(r"`(tests/[\w/.]+)::(test_\w+)`", page):
        assert f"def {name}(" in (ROOT / file).read_text("utf-8")


@pytest.mark.parametrize(
    ("label", "form", "largest"),
    [
        ("cor:realized-het-rate", "printed", 0.00282),
        ("th:sur-cvx", "printed", 0.00161),
        ("cor:realized-hom-rate", "paper", 1 / 129),
        ("cor:pl-safe", "paper", np.sqrt(0.1 / 400)),
    ],
)
def test_rates_end_where_the_errata_say(
    rows: list[Row], label: str, form: str, largest: float
) -> None:
    assert find(rows, label, form).largest == pytest.approx(largest, rel=2e-3)


def test_a_row_agrees_with_itself(rows: list[Row]) -> None:
    theta = np.asarray(AMPLITUDES)
    for row in rows:
        useful = row.holds & ~row.vacuous
        np.testing.assert_array_equal(row.vacuous, ~(row.floor < 1))
        assert (theta[useful] <= row.largest * (1 + 1e-3)).all()


def test_sharper_constants_reach_further(rows: list[Row]) -> None:
    for row in rows:
        if row.form == "sharp":
            paper = find(rows, row.label, "paper", row.horizon, row.variance)
            assert row.largest >= paper.largest
            both = row.holds & paper.holds
            assert (row.floor[both] <= paper.floor[both]).all()


def test_undefined_floors_are_empty(rows: list[Row]) -> None:
    """C_χ ≥ 1 at ϑ = 0.1, and no other amplitude is lost with it."""
    row = find(rows, "cor:realized-het-rate", "printed")
    np.testing.assert_array_equal(np.isnan(row.floor), [False, False, False, True])
    assert not row.holds[-1]
