"""The command, as a user types it."""

from typer.testing import CliRunner

from hewfl import __version__
from hewfl.cli import app
from hewfl.demo import run_demo

runner = CliRunner()


def test_version() -> None:
    result = runner.invoke(app, ["version"])
    assert result.exit_code == 0
    assert __version__ in result.output


def test_demo_prints_the_tables() -> None:
    result = runner.invoke(app, ["demo"])
    assert result.exit_code == 0
    for text in ("exact weights", "certified gap", "by data size", "weights by local"):
        assert text in result.output


def test_a_bad_seed_is_refused() -> None:
    result = runner.invoke(app, ["demo", "--seed", "-1"])
    assert result.exit_code == 2
    assert "seed" in result.output


def test_the_exact_rule_has_the_least_bound_and_no_miss() -> None:
    for seed in range(3):
        *others, exact = run_demo(seed).outcomes
        assert exact.rule == "exact weights"
        assert all(exact.model_value <= other.model_value for other in others)
        assert exact.missed <= 1e-14
        for other in others:  # the certificate bounds the true distance
            assert other.model_value - exact.model_value <= other.missed + 1e-14


def test_the_demo_is_reproducible() -> None:
    first, again = run_demo(1), run_demo(1)
    assert (first.solution.weights == again.solution.weights).all()
    assert [o.objective for o in first.outcomes] == [
        o.objective for o in again.outcomes
    ]
