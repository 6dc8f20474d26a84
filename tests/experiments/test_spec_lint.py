"""Fields without effect are refused; what hewfl itself writes is not."""

from pathlib import Path

import pytest

from hewfl.errors import InvalidInputError
from hewfl.experiments.executor import Progress
from hewfl.experiments.overrides import with_overrides
from hewfl.experiments.run import tune_all
from hewfl.experiments.run_folder import folder_for
from hewfl.experiments.spec import read_spec, spec_from_table
from hewfl.experiments.spec_lint import refuse_unused_fields
from tests.experiments.runs import small, table

IID = ["clients.partition=iid", "clients.alpha=0.2", "clients.min_samples=1"]
MODULE = ["problem.model=medium_cnn", "audit_every=0", "data.name=mnist"]
BASELINE = 'methods=[{method="FedAvg", grid={step_scale=[0.1, 0.2]}}]'


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            ["data.label_column=kind"],
            "`data.label_column` must be left out: a data set known by",
        ),
        (
            ["data.name=mnist", "data.split=published", "data.test_fraction=0.3"],
            '`data.test_fraction` must be left out: data.split = "published"',
        ),
        (
            ["clients.partition=iid", "clients.min_samples=1"],
            "`clients.alpha` must be left out: only clients.partition = dirichlet, "
            "quantity, features have it; got 0.5",
        ),
        ([*IID, "clients.min_samples=4"], "`clients.min_samples` must be left out"),
        ([*IID, "clients.partition=pool", "clients.alpha=1"], "`clients.alpha` must"),
        (["data.validation_fraction=0.1"], "`data.validation_fraction` must be left"),
        (["problem.learning_rate=0.1"], "`problem.learning_rate` must be left out: "),
        (["problem.dropout=0.1"], "`problem.dropout` must be left out: "),
        (["problem.clip=1.0"], "`problem.clip` must be left out: "),
        ([*MODULE, "problem.l2=0.1"], "`problem.l2` must be left out: only"),
        (
            [*MODULE, "problem.solve_optimum=false"],
            "`problem.solve_optimum` must be left out",
        ),
        ([*MODULE, "data.bias=false"], "`data.bias` must be left out: only"),
        ([BASELINE], "`audit_every` must be left out: only HewHom"),
        (
            ["tune.screen_top_k=2"],
            "`tune.screen_top_k` must be left out: there is no first trial",
        ),
        (["tune.screen_seeds=[3]"], "`tune.screen_seeds` must be left out"),
        (
            ['tune.tie_metrics=["pooled"]'],
            "`tune.tie_metrics` must be left out: nothing counts",
        ),
    ],
)
def test_a_field_without_effect_is_refused(changes: list[str], told: str) -> None:
    spec = spec_from_table(with_overrides(table(), changes))
    with pytest.raises(InvalidInputError) as error:
        refuse_unused_fields(spec)
    assert told in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        IID,
        MODULE,
        [BASELINE, "audit_every=0"],
        ["tune.screen_rounds=2", "tune.screen_top_k=2", "tune.screen_seeds=[3]"],
        ["tune.tie_tolerance=0.1", 'tune.tie_metrics=["pooled"]'],
        ["data.name=own.csv", "data.label_column=kind"],
        ["problem.reference_steps=2.0"],  # divides L for every model
    ],
)
def test_fields_with_effect_and_defaults_pass(changes: list[str]) -> None:
    refuse_unused_fields(spec_from_table(with_overrides(table(), changes)))


def test_a_tuned_spec_can_be_run_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    folder = folder_for(small(), tmp_path)
    tune_all([folder], jobs=0, progress=Progress())
    tuned = read_spec(folder.path / "tuned.toml")
    assert tuned.tune == small().tune  # non-default, and idle by now
    refuse_unused_fields(tuned)
