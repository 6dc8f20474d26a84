"""`hewfl certify`, as a user types it."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from hewfl.cli.certify import Clients, Question, Start, certify

pytestmark = pytest.mark.unchecked
EXAMPLE = Path(__file__).parents[2] / "examples" / "certify.toml"
SYSTEM = ["--smoothness=1", "--radius=1", "--horizon=1,2,4,8"]
SYSTEM += ["--batch-size=32", "--variance=1e-4"]
SHORT = ["--variants=sharp", "--amplitude=0.03"]
"""With an amplitude the answer comes sooner: it is not searched."""
OPTIONS = [*SYSTEM, *SHORT, "--rounds=9"]
FROM_FILE = ["--config", str(EXAMPLE)]
app = typer.Typer()
app.command()(certify)


@pytest.fixture(autouse=True, scope="module")
def _answers_are_kept() -> Iterator[None]:
    """A certificate takes seconds; a question asked again gets the answer it had."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Question, "answer", cache(Question.answer))
        patch.setattr(Question, "improvements", cache(Question.improvements))
        yield


def run(*arguments: str | Path, columns: int = 80) -> Result:
    return CliRunner().invoke(
        app, [str(a) for a in arguments], env={"COLUMNS": f"{columns}", "TERM": "dumb"}
    )


def answer(*arguments: str | Path) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output, parse_constant=pytest.fail)


def test_the_report_fits_and_tells_the_story() -> None:
    result = run(*FROM_FILE)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "…" not in result.output
    text = " ".join(result.output.split())
    for part in (
        "Best guarantee: th:pl-global (uniform weights, PL; joint constants). The "
        "expected gap of the last iterate is at most 0.05 after 91 rounds",
        "What would help most: half the local steps (80 rounds, by th:pl-global); then "
        "the same H = 4 and b = 32 for all clients",
        "no gap exceeds LR²/2 = 0.5",
        "All 4 clients take part",
        "Gaps are in units of the objective",
        "th:pl-global PL objective, equal weights: the gap shrinks geometrically to a "
        "floor. For the last iterate; equal weights 1/n",
        "Holds, but does not certify 0.05: at ϑ = ",
        "th:ho-main was not evaluated: it needs similarity and hessian_lipschitz",
        "3,904 6,504",
    ):
        assert part in text
    text = " ".join(run(*FROM_FILE, "--variants=paper").output.split())
    assert "Does not apply: it needs equal local steps: here 1 to 8." in text


def test_the_row_in_the_docs_is_the_one_that_is_printed() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "certify.md").read_text(encoding="utf-8")
    row = page[page.index("    th:sur-cvx  Convex") : page.index("The first line is")]
    story, _, table = row.partition("\n\n")
    printed = " ".join(run(*FROM_FILE).output.split())
    for part in (story, *table.strip().splitlines()[2:]):
        assert " ".join(part.split()) in printed


def number(cell: str) -> float:
    """A cell of a table."""
    return {"never": np.inf, "-": np.nan}.get(cell) or float(cell.replace(",", ""))


@pytest.mark.parametrize(
    "arguments", [FROM_FILE, OPTIONS, [*FROM_FILE, "--target=7e-3"]]
)
def test_every_printed_bound_is_a_bound(arguments: list[str]) -> None:
    """Tables, verdicts and headline against the numbers with all their digits."""
    result, text = answer(*arguments), run(*arguments, columns=200).output
    tables = iter(re.split(r"constants +ϑ +largest ϑ .*\n", text)[1:])
    by_label: dict[str, list[Any]] = {}
    for p in result["guarantees"]:
        by_label.setdefault(p["label"], []).append(p)
    cap, count = result["case"]["system"]["radius"] ** 2 / 2, 0
    for rows in by_label.values():
        if not any(p["holds"] and not p["vacuous"] for p in rows):
            continue
        lines = next(tables).splitlines()
        for p in rows:
            cells = next(x for x in lines if x.split()[:1] == [p["variant"]]).split()
            if not p["holds"] or p["vacuous"]:
                continue
            largest, rounds, closed, after, lowest = map(number, cells[2:])
            assert largest <= p["amplitudes"][1]
            assert rounds >= float(p["rounds_to_target"])
            assert closed >= float(p["closed_rounds"])
            values = [float(p[k]) for k in ("value", "iterated") if p[k] is not None]
            assert after >= min(*values, cap)
            assert lowest >= p["floor"]
            count += 1
            floor = re.search(r"bound never falls below ([\d.e,-]*\d)", p["verdict"])
            if floor is not None:
                assert number(floor[1]) <= p["floor"]
            bound = re.search(r"at most ([\d.e-]+) after ([\d.e,+]+) r", p["verdict"])
            if bound is not None:
                assert number(bound[1]) >= result["target"]
                assert number(bound[2]) >= p["rounds_to_target"]
    assert count > 0
    least = re.search(r"lowest certified gap is (\S+), by", result["headline"][0])
    if least is not None:
        designs = [float(p["design"]["least_target"]) for p in result["guarantees"]]
        assert number(least[1]) >= min(designs)
    table = text.partition("effect of one change")[2]
    for change in result["improvements"]:
        row = next(
            x for x in table.splitlines() if x.strip().startswith(change["change"])
        )
        rounds, gap = map(number, row.split()[-2:])
        assert rounds >= float(change["rounds"])
        assert change["least_gap"] is None or gap >= float(change["least_gap"])
    single = text.partition("one round at uniform weights")[2].splitlines()
    for r in result["first_round"]:
        cells = next(x for x in single if x.split()[:1] == [r["variant"]]).split()
        uniform, optimal, _, value = map(number, cells[1:])
        assert uniform <= r["uniform"]
        assert optimal <= r["noise_optimal"]
        assert value >= r["value"]


def test_a_condition_that_fails_by_little_shows_both_sides() -> None:
    result = answer(*OPTIONS, "--amplitude=1.0000000001")
    sur = next(p for p in result["guarantees"] if p["label"] == "th:sur-cvx")
    assert "but 1.0000000001 exceeds 1" in sur["verdict"]


def test_the_best_guarantee_comes_first() -> None:
    lines = run(*FROM_FILE).output.strip().splitlines()
    assert lines[0].startswith("Best guarantee: th:pl-global")
    assert any(line.startswith("What would help most: ") for line in lines[:5])


def test_the_report_says_when_nothing_is_certified() -> None:
    hard = " ".join(run(*OPTIONS, "--target", "1e-6").output.split())
    assert "No theorem certifies a gap of 1e-06; the lowest certified gap is" in hard
    alone = " ".join(run(*OPTIONS, "--active", "2").output.split())
    assert "No theorem certifies a gap of 0.05; the lowest certified gap is" in alone
    assert "it needs full participation: 2 of 4 clients take part" in alone
    assert "What would help most: all clients in every round" in alone


@pytest.mark.parametrize(
    "who", [["--active=2", "--absence=1"], ["--rotation=0,1; 2,3"]], ids=str
)
def test_absent_clients_have_a_row(who: list[str], tmp_path: Path) -> None:
    """Algorithm 1 prints a certificate there, and so does the command."""
    asked = [*OPTIONS, "--amplitude=0.009", "--target=0.1", *who]
    result = run(*asked, "--plot", tmp_path / "a.png")
    text = " ".join(result.output.split())
    assert "Best guarantee: th:sur-system (Algorithm 1 with θ̄ = ϑ, absent" in text
    assert "th:sur-system Convex objective, predicted weights, absent clients" in text
    row = answer(*asked)["guarantees"][-1]
    assert row["label"] == "th:sur-system"
    assert row["rounds_to_target"] == pytest.approx(2540, abs=200)
    assert row["value"] is row["closed_rounds"] is None


def test_a_start_at_the_target_needs_no_rounds() -> None:
    text = " ".join(run(*OPTIONS, "--start-gap", "0").output.split())
    assert "Certified: the start is at most 0.05 already." in text
    assert "nothing needs to improve" in text


def test_a_million_clients() -> None:
    """Kinds of client are counted, not listed."""
    result = answer(*OPTIONS, "--count=500000,500000", "--horizon=1,4")
    assert result["case"]["system"]["count"] == [5e5, 5e5]
    assert sum(result["noise"]["optimal"]) == pytest.approx(1)


def test_identical_clients_are_grouped() -> None:
    """As kinds, by one number, or given one by one."""
    require_single_clients = Clients((1, 4, 1, 4), 32, 1e-4).system(1.0, 1.0)
    kinds = Clients((1, 4), 32, 1e-4, (2, 2)).system(1.0, 1.0)
    for name in ("horizon", "batch_size", "variance", "count"):
        np.testing.assert_array_equal(
            getattr(require_single_clients, name), getattr(kinds, name)
        )
    alike = Clients(4, 32, 1e-4, 1_000_000).system(1.0, 1.0)
    assert alike.multiplicity == [1e6]


def test_options_and_file_ask_the_same() -> None:
    more = [*SYSTEM, "--pl-constant=0.1", "--dimension=650", "--target=0.05"]
    more += ["--start-gap=0.5", "--start-tracking=1e-5", "--sampling=fresh draws"]
    assert answer(*more) == answer(*FROM_FILE)


def test_options_overrule_the_file() -> None:
    result = answer(*FROM_FILE, *SHORT, "--horizon=4", "--count=7")
    assert result["case"]["system"]["horizon"] == [4.0]
    assert result["case"]["system"]["count"] == [7.0]
    assert result["case"]["pl_constant"] == 0.1
    assert {p["variant"] for p in result["guarantees"]} == {"sharp"}
    uniform = next(p for p in result["guarantees"] if p["label"] == "th:pl-global")
    assert uniform["holds"] is True


def test_json_has_the_words() -> None:
    result = answer(*FROM_FILE)
    assert result["headline"][0].startswith("Best guarantee: th:pl-global")
    assert result["improvements"][0]["factor"] < 1
    for p in result["guarantees"]:
        assert p["title"]
        assert p["iterate"] == "the last iterate"
        assert p["verdict"].endswith(".")


def test_json_has_no_infinities() -> None:
    result = answer(*FROM_FILE, "--variants=sharp", "--amplitude=0.5")
    het = next(p for p in result["guarantees"] if p["label"] == "cor:realized-het-rate")
    assert het["holds"] is False
    assert het["value"] == het["rounds_to_target"] == "inf"
    assert het["iterated"] is None
    floor = next(h for h in het["hypotheses"] if h["name"].startswith("2am"))
    assert floor == {
        "name": "2am ≤ 1 + β",
        "left": None,
        "right": None,
        "holds": False,
    }


def test_latex_of_the_theorems_that_hold() -> None:
    text = run(*OPTIONS, "--latex").output
    held = [p for p in answer(*OPTIONS)["guarantees"] if p["holds"]]
    assert text.count(r"\begin{align*}") == len(held) > 0
    for p in held:
        assert f"% {p['label']}, {p['variant']} constants, ϑ = " in text


def test_options_have_the_names_of_the_keys() -> None:
    keys = {f.name for f in fields(Question)} - {"clients", "start"}
    keys |= {f.name for f in fields(Clients)}
    keys |= {f"start_{f.name}" for f in fields(Start)}
    others = {"config", "as_json", "latex", "plot", "html", "observed"}
    assert set(signature(certify).parameters) == keys | others


def test_a_hopeless_case_has_a_sentence_in_place_of_a_table() -> None:
    hopeless = ["--smoothness=1", "--radius=1", "--horizon=4", "--count=2"]
    hopeless += ["--batch-size=1", "--variance=1e30", "--variants=sharp"]
    text = run(*hopeless).output
    assert "No theorem gives a bound over many rounds" in text
    assert "of these changes helps by a hundredth" in " ".join(text.split())
    assert "effect of one change" not in text
    assert "never" not in text.partition("one round")[0].replace("never falls", "")
    assert "largest ϑ" not in text


def test_a_figure(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "c.pdf"):
        result = run(*FROM_FILE, "--plot", tmp_path / name)
        assert result.exit_code == 0, result.output
        assert "picture saved in" in result.output
        assert (tmp_path / name).stat().st_size > 5000
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_a_figure_has_the_gaps_of_a_run(tmp_path: Path) -> None:
    gaps = tmp_path / "gaps.txt"
    gaps.write_text("0.5\n0.4\n0.2\n")
    plain, run_too = tmp_path / "a.png", tmp_path / "b.png"
    assert run(*OPTIONS, "--plot", plain).exit_code == 0
    assert run(*OPTIONS, "--plot", run_too, "--observed", gaps).exit_code == 0
    assert plain.read_bytes() != run_too.read_bytes()
    gaps.write_text("fast\n")
    result = run(*OPTIONS, "--plot", plain, "--observed", gaps)
    assert result.exit_code == 2
    assert "`observed` must be a readable file" in result.output


def test_other_methods_stand_beside_the_theorems() -> None:
    """The last row is a lower bound, and is rounded down."""
    text, result = run(*FROM_FILE, columns=200).output, answer(*FROM_FILE)
    table = text.partition("other methods at the same constants")[2].splitlines()
    sgd, least = result["literature"][1], result["literature"][-1]
    row = next(x for x in table if x.strip().startswith("minibatch SGD")).split()
    assert number(row[-2]) >= sgd["rounds_to_target"]
    assert number(row[-1]) >= sgd["value"]
    row = next(x for x in table if "no less than" in x).split()
    assert number(row[-2]) <= least["rounds_to_target"]
    assert number(row[-1]) <= least["value"]
    assert "gradient descent: needs gradients without noise" in text


def test_a_figure_needs_matplotlib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run(*OPTIONS, "--plot", tmp_path / "x.png")
    assert result.exit_code == 1
    assert "install hewfl's extra report" in result.output


FILE = EXAMPLE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FILE + "[starts]", "`starts` must be one of"),
        (FILE.replace("smoothness =", "smothness ="), "did you mean `smoothness`?"),
        (FILE.replace("horizon =", "horizons ="), "`clients.horizons` must be one of"),
        (FILE.replace("variance = 1e-4", ""), "`clients.variance` must be given"),
        (FILE.replace("[1, 2, 4, 8]", "[1, 2.5]"), "`clients.horizon[1]` must be a"),
        (FILE.replace("[1, 2, 4, 8]", "[0, 2]"), "`horizon` must be a whole number"),
        (FILE.replace("[1, 2, 4, 8]", "4.5"), "`clients.horizon` must be a whole nu"),
        (FILE.replace("[1, 2, 4, 8]", "4"), "`clients` must be one number of clients"),
        (FILE.replace("= 32", "= [1, 2]"), "by lists of one length; got 2, 4"),
        (FILE.replace("fresh draws", "fresh"), "`sampling` must be one of 'one obj"),
        (FILE.replace("radius = 1.0", "radius = 0.0"), "`radius` must be positive"),
        (FILE.replace("target = 0.05", "target = 0.5"), "`target` must be below the"),
        ("smoothness = ", "`config` must be a readable TOML file"),
    ],
)
def test_a_bad_file_gets_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "system.toml"
    path.write_text(text, encoding="utf-8")
    result = run("--config", path)
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert says in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "`smoothness` must be given"),
        (
            [*OPTIONS, "--horizon", "1,x"],
            "`--horizon` must be whole numbers separated",
        ),
        ([*OPTIONS, "--horizon", "4.5"], "`--horizon` must be whole numbers separ"),
        ([*OPTIONS, "--html", "page.html"], "use --plot or --json"),
        ([*OPTIONS, "--variants", "blunt"], "`variants[1]` must be one of 'printed'"),
        ([*OPTIONS, "--plot", "x.gif"], "`plot` must be a path ending in .png or"),
        (
            [*OPTIONS, "--plot", "/no/such/place.png"],
            "`plot` must be a path in a folder",
        ),
        ([*OPTIONS, "--rotation", "0;x"], "`--rotation` must be rounds separated by"),
        ([*OPTIONS, "--active", "1", "--absence", "1"], "`absence` must be at least 3"),
        ([*OPTIONS, "--curvature", "1"], "`curvature` must be above the smoothness"),
        (["--config", "/no/such.toml"], "`config` must be a readable TOML file"),
    ],
)
def test_bad_options_get_one_line(arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.output
    assert result.output.count("\n") == 1
