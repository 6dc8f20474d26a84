"""Overrides and sweeps: what `--set` and `--sweep` change, and what they refuse."""

import pytest

from hewfl.errors import InvalidInputError
from hewfl.experiments.overrides import (
    at_point,
    point_text,
    sweep_digest,
    sweep_points,
    with_overrides,
)
from hewfl.experiments.spec import spec_from_table
from tests.experiments.runs import table


def method(label: str, *changes: str) -> dict[str, object]:
    spec = spec_from_table(with_overrides(table(), changes))
    (chosen,) = (m for m in spec.methods if m.label == label)
    return {**chosen.parameters, **({"grid": dict(chosen.grid)} if chosen.grid else {})}


def test_a_field_of_a_method_is_set_by_its_label_or_its_name() -> None:
    for name in ("FedAvgM", "FedAvg"):
        assert method("FedAvgM", f"methods.{name}.momentum=0.9")["momentum"] == 0.9


def test_a_step_size_replaces_one_of_another_kind() -> None:
    changed = method("FedAvgM", "methods.FedAvg.learning_rate=0.1")
    assert changed == {"learning_rate": 0.1, "momentum": 0.5}


def test_a_value_replaces_a_grid_and_a_grid_a_value() -> None:
    fixed = method("HEW", "methods.HEW.amplitude=2.0")
    assert fixed == {"amplitude": 2.0, "curvature_ratio": 1.5}
    lists = method("FedAvgM", "methods.FedAvgM.grid.learning_rate=[0.1, 0.2]")
    assert lists == {"momentum": 0.5, "grid": {"learning_rate": (0.1, 0.2)}}


def test_a_label_may_have_points_in_it() -> None:
    given = table()
    given["methods"][0]["label"] = "HEW v1.0 (Alg. 2)"
    changed = with_overrides(given, ["methods.HEW v1.0 (Alg. 2).curvature_ratio=2.0"])
    assert changed["methods"][0]["curvature_ratio"] == 2.0
    assert given["methods"][0]["curvature_ratio"] == 1.5  # the table given is unchanged


@pytest.mark.parametrize(
    ("sweep", "values"),
    [
        ("clients.alpha=0.1,0.5,1.0", [0.1, 0.5, 1.0]),
        ("clients.partition=iid, dirichlet", ["iid", "dirichlet"]),
        ("clients.participation=full,3", ["full", 3]),
        ('clients.local_steps=4,{kind="EpochSteps",epochs=1}', None),
        ("seeds=[0],[1,2]", [[0], [1, 2]]),
    ],
)
def test_values_of_a_sweep(sweep: str, values: list[object] | None) -> None:
    swept = [value for point in sweep_points([sweep]) for value in point.values()]
    assert swept == (values or [4, {"kind": "EpochSteps", "epochs": 1}])


def test_several_sweeps_make_their_product() -> None:
    points = sweep_points(["clients.alpha=0.1,1.0", "methods.FedAvg.momentum=0,0.5"])
    assert len(points) == 4
    texts = [point_text(point) for point in points]
    assert texts[:2] == ["alpha=0.1, momentum=0", "alpha=0.1, momentum=0.5"]
    spec = spec_from_table(at_point(table(), points[1]))
    assert spec.name == "small-alpha=0.1-momentum=0.5"
    assert spec.clients.alpha == 0.1


def test_equal_names_of_two_fields_are_written_whole() -> None:
    (point,) = sweep_points(["methods.A.tau=1", "methods.B.tau=2"])
    assert point_text(point) == "methods.A.tau=1, methods.B.tau=2"


def test_the_digest_of_a_sweep_sees_everything_but_its_values() -> None:
    def digest(*sweeps: str, rounds: int = 6) -> str:
        return sweep_digest(table() | {"rounds": rounds}, sweep_points(sweeps))

    assert digest("clients.alpha=0.1,0.5") == digest("clients.alpha=0.5,0.7,0.9")
    others = {digest("clients.n=4,5"), digest("clients.alpha=1,2", rounds=7)}
    assert len({digest("clients.alpha=0.1,0.5"), *others}) == 3


@pytest.mark.parametrize(
    ("sweeps", "text"),
    [
        (["clients.alpha"], "`--sweep` must be of the form field=value"),
        (["clients.alpha="], "different values, separated by commas"),
        (["clients.alpha=1,1"], "different values, separated by commas"),
        (["clients.n=2", "clients.n=3"], "`--sweep` must be given once for each field"),
    ],
)
def test_mistakes_in_a_sweep_are_named(sweeps: list[str], text: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        sweep_points(sweeps)
    assert text in str(error.value)
