"""Specs: what is read is what is meant, and mistakes are named."""

import dataclasses
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hewfl import ALIE, IPM, Cohort, InvalidInputError, RandomLabels, Scenario, Sleeper
from hewfl.aggregators import Certified
from hewfl.errors import DataError
from hewfl.experiments.build_problem import build_federation
from hewfl.experiments.method_spec import MethodSpec, method_from_table
from hewfl.experiments.overrides import with_overrides
from hewfl.experiments.spec import (
    RENAMED,
    field_meanings,
    read_spec,
    spec_from_table,
    spec_table,
    template,
    write_spec,
)
from hewfl.experiments.spec_sections import FAULTS, LOCAL_STEPS, PARTICIPATION
from hewfl.methods.registry import METHODS
from hewfl.server.server_step import ServerStep
from tests.experiments.runs import TEXT, small, table

DOCS = Path(__file__).parents[2] / "docs"


def test_a_spec_survives_writing_and_reading() -> None:
    spec = small()
    again = spec_from_table(tomllib.loads(write_spec(spec)))
    assert again == spec
    assert again.digest == spec.digest


@pytest.mark.parametrize(
    ("label", "ok"),
    [
        *(("\x00", False), ("a\x1bb", False), ("\x7f", False), ("tab\tand\r\n", False)),
        *(("[\n1,\n]", False), (" ", False), ('quo"te\\', True), ("é ▲", True)),
    ],
)
def test_any_label_on_one_line_is_read_back(label: str, ok: bool) -> None:
    spec = small()
    methods = (replace(spec.methods[0], label=label), *spec.methods[1:])
    odd = replace(spec, methods=methods)
    text = write_spec(odd)
    if ok:
        assert spec_from_table(tomllib.loads(text)) == odd
    else:
        with pytest.raises(InvalidInputError, match="label` must be text on one line"):
            spec_from_table(tomllib.loads(text))


def test_lists_are_written_on_one_line_and_methods_as_tables() -> None:
    lines = write_spec(small()).splitlines()
    assert "seeds = [0, 1]" in lines
    assert "amplitude = [0.25, 0.5, 1.0]" in lines
    assert lines.count("[[methods]]") == 3


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_key_is_refused_by_an_error_that_names_the_new_one(
    old: str, new: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"`{old}` is now called `{new}`"):
        spec_from_table(with_overrides(table(), [f"{old}=1"]))
    *section, name = new.split(".")
    record = getattr(small(), section[0]) if section else small()
    assert name in {f.name for f in dataclasses.fields(record)}


def test_the_digest_sees_every_change() -> None:
    digests = {small().digest}
    changes = ["rounds=7", "clients.alpha=0.4", "data.bias=false", "problem.l2=0.1"]
    for change in changes:
        digests.add(spec_from_table(with_overrides(table(), [change])).digest)
    assert len(digests) == 1 + len(changes)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("rounds=0", "`rounds` must be at least 1; got 0"),
        ("rounds=2.5", "`rounds` must be a whole number; got 2.5"),
        ("seeds=[1, 1]", "`seeds` must be different whole numbers from 0"),
        ("seeds=[]", "`seeds` must be different whole numbers from 0"),
        ("evaluate_evry=2", "did you mean `evaluate_every`?"),
        ('name="a/b"', "`name` must be a name for a folder; got 'a/b'"),
        ('dtype="half"', "`dtype` must be one of 'float32', 'float64'; got 'half'"),
        ("data.bias=1", "`data.bias` must be true or false; got 1"),
        ("clients.n=0", "`clients.n` must be at least 1; got 0"),
        ("clients.alpha=0", "`clients.alpha` must be a positive finite number; got 0"),
        ("clients.alpha=inf", "`clients.alpha` must be a positive finite number"),
        (
            "clients.local_steps=0",
            "`clients.local_steps` must be whole numbers of at least 1",
        ),
        (
            "clients.local_steps=2.5",
            "`clients.local_steps` must be a whole number, a list",
        ),
        ("clients.local_steps=[1, 2, 3, 4, 0]", "`clients.local_steps` must be whole"),
        (
            "clients.local_steps=[1, 2, 3, 4, 1.5]",
            "`clients.local_steps[4]` must be a whole",
        ),
        ("clients.local_steps=[]", "`clients.local_steps` must be whole numbers"),
        (
            "clients.local_steps=[1, 2]",
            "`clients.local_steps` must be one number for each of the 5 clients; got 2",
        ),
        (
            'clients.local_steps={kind="FixedSteps", steps=[1, 2]}',
            "`clients.local_steps.steps` must be one number for each of the 5 clients",
        ),
        (
            'clients.local_steps={kind="TimedSteps", budget=1, speeds=[1]}',
            "`clients.local_steps.speeds` must be one number for each of the 5 clients",
        ),
        (
            'clients.local_steps={kind="ChoiceSteps", choices=[0]}',
            "`clients.local_steps.choices` must be a list of ",
        ),
        (
            'clients.local_steps={kind="EpochSteps", epochs=[]}',
            "`clients.local_steps.epochs` must be a list with at least one",
        ),
        ('clients.local_steps={kind="X"}', "`clients.local_steps.kind` must be one of"),
        (
            "clients.participation=0",
            "`clients.participation` must be at least 1; got 0",
        ),
        (
            "clients.participation=99",
            "`clients.participation` must be at most the 5 clients there are; got 99",
        ),
        ("clients.participation=true", '"full", a whole number or a table; got True'),
        (
            'clients.participation={kind="SampledParticipation", count=6}',
            "`clients.participation.count` must be at most the 5 clients there are",
        ),
        (
            'clients.participation={kind="RandomParticipation", probability=[0.5]}',
            "`clients.participation.probability` must be one number for each of the 5",
        ),
        ('clients.participation="half"', '"full", a whole number or a table'),
        ("problem.l2=-1", "`problem.l2` must be a nonnegative finite number"),
        ("data.subsample=1", "`data.subsample` must be at least 2 rows; got 1"),
        ("data.test_fraction=0", "`data.test_fraction` must be between 0 and 1"),
        ("data.name=", "`data.name` must be a data set or a file; got ''"),
        (
            "tune.metric=validation_loss",
            "`tune.metric` must be measured: only modules with data.validation",
        ),
        ('tune.metric="loss"', "`tune.metric` must be one of 'objective'"),
        ("tune=3", "`tune` must be a table; got 3"),
        ("methods=[]", "`methods` must be at least one"),
        ("methods.FedAvgMM.momentum=0", "(did you mean `FedAvgM`?); got 'FedAvgMM'"),
        ("methods.FedAvgM=0", "`--set` must be the path of a field, such as methods."),
        ("methods.FedAvgM.momentun=0", "(did you mean `momentum`?)"),
    ],
)
def test_mistakes_are_named(change: str, text: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        spec_from_table(with_overrides(table(), [change]))
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ({"method": "FedAvgg"}, "`methods[0].method` must be one of HewHom"),
        ({"method": "Scafold"}, "(did you mean `Scaffold`?); got 'Scafold'"),
        ({"method": 3}, "your own `file:Name`; got 3"),
        ({}, '`methods[0].method` must be given, such as "FedAvg"'),
        ({"method": "FedAvg", "lr": 0.1}, "no field of FedAvg: use `learning_rate`"),
        ({"method": "HewHom", "lr": 0.1}, "no field of HewHom: use `amplitude`"),
        ({"method": "trust", "grid": {"lr": [1]}}, "of trust: use `learning_rate`"),
        ({"method": "FedAvg", "eta": 1}, "use `learning_rate` or `server_learning_r"),
        ({"method": "FedAdam", "lr": 0.1}, "no field of FedAdam: use `learning_rate`"),
        ({"method": "fedavg_m", "step_scale": 1}, "'fedavg_m' is spelled FedAvgM"),
        ({"method": "Fed-Adam", "step_scale": 1}, "'Fed-Adam' is spelled FedAdam"),
        (
            {"method": "FedAdam", "step_scale": 1},
            "server_learning_rate` must be given: about the change of one entry",
        ),
        ({"method": "FedAvg"}, "exactly one of learning_rate, step_scale, total, ampl"),
        ({"method": "Krum", "step_scale": 1}, "'Krum' is now called krum"),
        ({"method": "krum", "total": 1, "bad": 0.1}, "now called `f`"),
        ({"method": "fedavg", "step_scale": 1}, "'fedavg' is spelled FedAvg"),
        ({"method": ["FedAvg"]}, "`methods[0].method` must be one of"),
        ({"method": {}}, "`methods[0].method` must be one of"),
        (
            {"method": "Scaffold", "step_scale": 1, "variates": "zero"},
            "`methods[0].variates` must be left out: Scaffold sets it itself",
        ),
        (
            {"method": "MinibatchSGD", "step_scale": 1, "at_anchor": True},
            "`methods[0].at_anchor` must be left out",
        ),
        (
            {"method": "FedAdam", "step_scale": 1, "grid": {"adapt": ["none"]}},
            "`methods[0].grid.adapt` must be left out",
        ),
        ({"method": "HewHom", "kappa": 2.0}, 'use method = "exact" with `kappa`'),
        (
            {"method": "FedAvgM", "step_scale": 1, "nesterov": True, "momentum": 0.0},
            "nesterov` must be left out without `momentum`",
        ),
        ({"method": "FedAvg", "step": 1}, "`methods[0].step` must be one of"),
        (
            {"method": "FedAvg", "step_scale": -1},
            "`methods.FedAvg.step_scale` must be a positive finite number",
        ),
        (
            {"method": "FedAvg", "step_scale": 1, "momentum": 1.0},
            "`methods.FedAvg.momentum` must be from 0 to below 1",
        ),
        (
            {"method": "FedAvg", "step_scale": 1, "server_learning_rate": -1.0},
            "`methods.FedAvg.server_learning_rate` must be a positive finite number",
        ),
        (
            {"method": "FedAvg", "grid": {"step_scale": 1}},
            "`methods[0].grid.step_scale` must be a list of values",
        ),
        (
            {"method": "FedAvg", "grid": {"step_scale": [0.1, -0.1]}},
            "`methods.FedAvg.step_scale` must be a positive finite number; got -0.1",
        ),
        (
            {"method": "FedAvg", "step_scale": 1, "grid": {"step_scale": [1]}},
            "either given or in the grid, not both",
        ),
    ],
)
def test_mistakes_in_methods_are_named(method: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        spec_from_table(table() | {"methods": [method]})
    assert text in str(error.value)


def test_two_methods_of_one_name_need_labels() -> None:
    twice = [{"method": "FedAvg", "step_scale": s} for s in (0.1, 0.2)]
    with pytest.raises(InvalidInputError, match="'FedAvg' twice"):
        spec_from_table(table() | {"methods": twice})


def test_every_method_can_be_named() -> None:
    fields: dict[str, dict[str, Any]] = {
        "HewHom": {"amplitude": 1},
        "HewHet": {"amplitude": 1, "start": "zero"},
        "HewFixed": {"amplitude": 1, "power": 0},
        "HewControl": {
            "radius": 1,
            "amplitude_min": 0.1,
            "amplitude_max": 0.5,
            "variance": 1.0,
        },
        "FedProx": {"step_scale": 1, "prox": 0.1},
        "FedAvgM": {"step_scale": 1, "momentum": 0.5},
        "power-weights": {"step_scale": 1, "power": 0.5},
        "qfedavg": {"step_scale": 1, "q": 1},
    }
    adaptive = {"step_scale": 1, "server_learning_rate": 0.1}
    fields |= dict.fromkeys(("FedAdam", "FedYogi", "FedAdagrad"), adaptive)
    for name in METHODS:
        given = fields.get(name, {"step_scale": 0.5})
        entry = MethodSpec(name, "mine", given).entry(2.0)
        assert entry.label == "mine"


def test_aggregators_are_read_with_their_fields() -> None:
    fields: dict[str, dict[str, Any]] = {
        "disagreement": {},
        "agreement": {"power": 1.0},
        "geometric-median": {"smoothing": 1e-3, "iterations": 3},
        "coordinate-median": {},
        "trimmed-mean": {"f": 0.25},
        "krum": {"f": 0.2},
        "multi-krum": {"f": 0.2, "selected_fraction": 0.75},
        "centered-clipping": {"radius": 2.0, "iterations": 1, "relative": False},
    }
    given = table()
    given["methods"] = [
        {"method": name, "step_scale": 0.5, **own} for name, own in fields.items()
    ]
    spec = spec_from_table(given)
    assert spec_from_table(tomllib.loads(write_spec(spec))) == spec
    for method in spec.methods:
        aggregator = method.entry(2.0).algorithm.aggregator  # type: ignore[attr-defined]  # a `Method`
        for name, value in fields[method.method].items():
            assert getattr(aggregator, name) == value
    bad = {"method": "krum", "step_scale": 0.5, "f": 0.6}
    given["methods"] = [bad]
    with pytest.raises(InvalidInputError, match=r"krum\.f"):
        spec_from_table(given)


def test_candidates_are_the_product_of_the_lists() -> None:
    method = MethodSpec(
        "HewHom", "HEW", {}, {"amplitude": (1, 2), "curvature_ratio": (1.1, 2.0)}
    )
    points = [dict(c.parameters) for c in method.candidates()]
    assert points == [
        {"amplitude": a, "curvature_ratio": r} for a in (1, 2) for r in (1.1, 2.0)
    ]


def test_files_that_are_no_specs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the spec"):
        read_spec(tmp_path / "none.toml")
    file = tmp_path / "bad.toml"
    file.write_text("rounds = ")
    with pytest.raises(DataError, match=r"bad.toml is not TOML"):
        read_spec(file)
    file.write_text(TEXT)
    assert read_spec(file) == small()


def test_changes_need_a_field_and_a_value() -> None:
    with pytest.raises(InvalidInputError, match="field=value"):
        with_overrides({}, ["rounds"])
    with pytest.raises(InvalidInputError, match="`name` is none"):
        with_overrides({"name": "x"}, ["name.first=1"])


def test_the_template_is_a_spec_and_explains_every_field() -> None:
    text = template()
    spec = spec_from_table(tomllib.loads(text))
    assert spec.name == "example"
    for record in (type(spec), type(spec.data), type(spec.clients), type(spec.tune)):
        meanings = field_meanings(record)
        assert set(meanings) == set(record.__dataclass_fields__)
        assert all(len(meaning) > 1 for meaning in meanings.values())
    comment = text.partition("# What is compared.")[2].partition("\n\n")[0]
    assert set(METHODS) <= set(re.findall(r"[\w-]+", comment))


def test_the_docs_list_methods_and_laws_with_their_fields() -> None:
    text = (DOCS / "experiments.md").read_text("utf-8")
    told = text.partition("## Methods and laws")[2].partition("\n## ")[0]
    for name in METHODS:
        assert f"`{name}`" in told
    rows = {line.split("`")[1]: line for line in told.splitlines() if "| `" in line}
    for name, law in LOCAL_STEPS.items():
        for field in dataclasses.fields(law):
            assert f"`{field.name}`" in rows[name]
    for name, law in FAULTS.items():
        for field in dataclasses.fields(law):
            assert f"`{field.name}`" in rows[name]
    for name, law in PARTICIPATION.items():
        for word in (name, *(f.name for f in dataclasses.fields(law))):
            assert f"`{word}`" in told


def test_scenarios_are_read_with_their_faults() -> None:
    given = table()
    given["clients"] = {
        "scenario": {"faults": [{"kind": "RandomLabels", "share": 0.25}]}
    }
    spec = spec_from_table(given)
    assert build_federation(spec).scenario == Scenario((RandomLabels(0.25),))
    again = spec_from_table(tomllib.loads(write_spec(spec)))
    assert again.digest == spec.digest
    sleeper = {"kind": "Sleeper", "rounds": 3, "base": {"kind": "IPM", "share": 0.25}}
    given["clients"]["scenario"]["faults"] = [sleeper, {"kind": "ALIE", "share": 0.1}]
    attacked = spec_from_table(given)
    expected = Scenario((Sleeper(IPM(0.25), 3), ALIE(0.1)))
    assert build_federation(attacked).scenario == expected
    again = spec_from_table(tomllib.loads(write_spec(attacked)))
    assert again.digest == attacked.digest
    plain = spec_from_table(table())
    assert "scenario" not in spec_table(plain)["clients"]  # folders keep their names
    assert plain.digest != spec.digest


@pytest.mark.parametrize(
    ("scenario", "text"),
    [
        (3, "`clients.scenario` must be a table with `faults`; got 3"),
        ({"faults": []}, "`clients.scenario.faults` must be a list of tables"),
        ({"fault": [{}]}, "`clients.scenario.fault` must be one of faults, objective"),
        (
            {"faults": [{"kind": "Lazy"}]},
            r"`clients.scenario.faults\[0\].kind` must be one",
        ),
        (
            {"faults": [{"kind": "sign-flipping", "share": 0.2}]},
            "did you mean ScaledUpdates with factor = -1.0",
        ),
        ({"faults": [{"kind": "alie", "share": 0.2}]}, "did you mean ALIE"),
        (
            {"faults": [{"kind": "Sleeper", "base": {"kind": "Lazy"}}]},
            r"`clients.scenario.faults\[0\].base.kind` must be one",
        ),
        (
            {"faults": [{"kind": "Sleeper", "base": {"kind": "IPM", "share": 2}}]},
            "from 0 to below 1; got 2",
        ),
        (
            {"faults": [{"kind": "RandomLabels", "share": 2}]},
            "from 0 to below 1; got 2",
        ),
        (
            {"faults": [{"kind": "HiddenBatches"}], "objective": "mine"},
            "`clients.scenario.objective` must be one of honest, all",
        ),
        (
            {"faults": [{"kind": "RandomLabels", "share": 0.99}]},
            "`clients.scenario.faults` must be such that one of 20 is honest",
        ),
    ],
)
def test_scenarios_that_make_no_sense_are_refused(scenario: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        spec_from_table(table() | {"clients": {"scenario": scenario}})


def test_an_amplitude_is_a_total_step_in_units_of_one_over_smoothness() -> None:
    two = np.array([1, 2])
    cohort = Cohort(two, two, two, two, 3)
    for given, expected in (
        ({"amplitude": 2.0}, [1.0, 0.5]),  # theta h/(L H_i)
        ({"step_scale": 2.0}, [0.5, 0.5]),
        ({"total": 2.0}, [2.0, 1.0]),
        ({"learning_rate": 2.0}, [2.0, 2.0]),
    ):
        entry = MethodSpec("disagreement", "d", given).entry(4.0, 2.0)
        plan = entry.algorithm.plan(cohort, None)
        np.testing.assert_allclose(plan.step_sizes, expected)


def test_any_method_with_an_aggregator_can_be_certified() -> None:
    table = {"learning_rate": 0.1, "certify_f": 0.25}
    for name in ("krum", "FedAvg", "Scaffold"):
        plain = {"method": name, "learning_rate": 0.1}
        rule: Any = method_from_table(plain, "m").entry(1.0).algorithm
        given = {"method": name, "refuse_above": 2, **table}
        method: Any = method_from_table(given, "m").entry(1.0).algorithm
        assert method.aggregator == Certified(rule.aggregator, 0.25, 2.0)
    grid = {"refuse_above": [1.0, "none"], "certify_f": [1, 0.2]}
    spec = method_from_table({**plain, "grid": grid}, "m")
    made: Any = [point.entry(1.0).algorithm for point in spec.candidates()]
    limits = [(m.aggregator.f, m.aggregator.refuse_above) for m in made]
    assert limits == [
        (1, 1.0),
        (0.2, 1.0),
        (1, None),
        (0.2, None),
    ]


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"refuse_above": 2.0}, "`methods.krum.refuse_above` must be left out without"),
        (
            {"certify_f": 0.5},
            "`methods.krum.certify_f` must be a count .*or a fraction",
        ),
        (
            {"certify_f": 1, "refuse_above": 0},
            "`methods.krum.refuse_above` must be a positive",
        ),
    ],
)
def test_certificates_that_make_no_sense(fields: Any, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        method_from_table({"method": "krum", "learning_rate": 0.1, **fields}, "m")


def test_nesterov_uses_the_momentum_of_the_preset() -> None:
    given = {"method": "FedAvgM", "step_scale": 1.0, "nesterov": True}
    step = method_from_table(given, "m").entry(1.0).server_step
    assert step == ServerStep(momentum=0.9, nesterov=True)
