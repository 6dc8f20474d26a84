"""Fields without effect are refused; what hewfl itself writes is not."""

import tomllib
from pathlib import Path

import pytest

from hewfl.errors import InvalidInputError
from hewfl.experiments.demo import demo_spec
from hewfl.experiments.idle import refuse_idle_fields
from hewfl.experiments.overrides import overridden
from hewfl.experiments.paper import DATA, REGIMES, extended_spec, main_spec, quick
from hewfl.experiments.paper_deep import cnn_spec, head_spec
from hewfl.experiments.run import Progress, folder_for, tune_all
from hewfl.experiments.spec import read_spec, spec_from_table, write_spec
from hewfl.experiments.template import template
from tests.experiments.runs import small, table

IID = ["clients.partition=iid", "clients.alpha=0.2", "clients.minimum=1"]
MODULE = ["problem.model=medium_cnn", "audit_every=0", "data.name=mnist"]
BASELINE = 'methods=[{method="FedAvg", grid={step_scale=[0.1, 0.2]}}]'


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["data.label=kind"], "`data.label` must be left out: a data set known by"),
        (
            ["data.name=mnist", "data.split=published", "data.test_fraction=0.3"],
            '`data.test_fraction` must be left out: data.split = "published"',
        ),
        (
            ["clients.partition=iid", "clients.minimum=1"],
            '`clients.alpha` must be left out: only clients.partition = "dirichlet" '
            "has it; got 0.5",
        ),
        ([*IID, "clients.minimum=4"], "`clients.minimum` must be left out"),
        ([*IID, "clients.partition=pool", "clients.alpha=1"], "`clients.alpha` must"),
        (["data.validation_fraction=0.1"], "`data.validation_fraction` must be left"),
        (["problem.learning_rate=0.1"], "`problem.learning_rate` must be left out: "),
        (["problem.dropout=0.1"], "`problem.dropout` must be left out: "),
        (["problem.clip=1.0"], "`problem.clip` must be left out: "),
        ([*MODULE, "problem.l2=0.1"], "`problem.l2` must be left out: only"),
        ([*MODULE, "problem.optimum=false"], "`problem.optimum` must be left out"),
        ([*MODULE, "data.bias=false"], "`data.bias` must be left out: only"),
        ([BASELINE], "`audit_every` must be left out: of the methods only HewHom"),
        (["tune.keep=2"], "`tune.keep` must be left out: there is no first trial"),
        (["tune.screen_seeds=[3]"], "`tune.screen_seeds` must be left out"),
        (["tune.tie_by=pooled"], "`tune.tie_by` must be left out: nothing counts"),
    ],
)
def test_a_field_without_effect_is_refused(changes: list[str], told: str) -> None:
    spec = spec_from_table(overridden(table(), changes))
    with pytest.raises(InvalidInputError) as error:
        refuse_idle_fields(spec)
    assert told in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [
        IID,
        MODULE,
        [BASELINE, "audit_every=0"],
        ["tune.screen_rounds=2", "tune.keep=2", "tune.screen_seeds=[3]"],
        ["tune.tie=0.1", "tune.tie_by=pooled"],
        ["data.name=own.csv", "data.label=kind"],
        ["problem.reference_steps=2.0"],  # divides L for every model
    ],
)
def test_fields_with_effect_and_defaults_pass(changes: list[str]) -> None:
    refuse_idle_fields(spec_from_table(overridden(table(), changes)))


def test_every_spec_that_hewfl_makes_passes_and_loads_again() -> None:
    specs = [demo_spec(), cnn_spec(), head_spec(), small()]
    specs.append(spec_from_table(tomllib.loads(template())))
    for data in DATA:
        for regime in REGIMES:
            for spec in (main_spec(data, regime), extended_spec(data, regime)):
                specs += [spec, quick(spec)]
    for spec in specs:
        again = spec_from_table(tomllib.loads(write_spec(spec)))
        assert again == spec
        refuse_idle_fields(again)


def test_a_tuned_spec_can_be_run_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))
    folder = folder_for(small(), tmp_path)
    tune_all([folder], jobs=0, progress=Progress())
    tuned = read_spec(folder.path / "tuned.toml")
    assert tuned.tune == small().tune  # non-default, and idle by now
    refuse_idle_fields(tuned)
