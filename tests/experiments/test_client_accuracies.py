"""Accuracies of clients and classes: against a plain computation, and read back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hewfl.data import load, row_clients, row_labels, split_rows
from hewfl.errors import InvalidInputError
from hewfl.experiments import Results, run, spec_from_table
from hewfl.experiments.build_problem import build_problem
from hewfl.experiments.results import axis_values
from hewfl.experiments.spec import Spec
from hewfl.experiments.summary import client_rows, summarise
from hewfl.problems.problem import LocalTests
from hewfl.simulation.evaluation import client_statistics
from tests.experiments.runs import small, table


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEWFL_CACHE", str(tmp_path / "cache"))


def wards(folder: Path, **clients: Any) -> Spec:
    """A spec on a file whose rows name their clients."""
    rng = np.random.default_rng(0)
    lines = ["a,b,ward,kind"]
    for k in range(120):
        a, b = rng.normal(size=2)
        lines.append(f"{a:.3f},{b:.3f},w{k % 12},{'yes' if a + k % 3 > 1 else 'no'}")
    (folder / "wards.csv").write_text("\n".join(lines))
    data = {"name": str(folder / "wards.csv"), "client_column": "ward"}
    clients |= {"partition": "natural", "n": 12}
    return spec_from_table(
        table() | {"data": data, "clients": clients, "audit_every": 0}
    )


@pytest.mark.parametrize("group", ["client", "class"])
def test_a_clients_own_test_samples_are_counted(tmp_path: Path, group: str) -> None:
    spec = wards(tmp_path)
    problem = build_problem(spec, 0)
    x = np.random.default_rng(1).normal(size=(3, problem.d))
    dataset = load(spec.data.name, client_column="ward")
    _, rows = split_rows(dataset, 0)
    labels, clients = row_labels(dataset, rows), row_clients(dataset, rows)
    features = problem.test[0]
    hits = (x.reshape(3, 2, -1) @ features.T).argmax(axis=1) == labels
    members, count = (clients, 12) if group == "client" else (labels, 2)
    assert members is not None
    own = [np.flatnonzero(members == g) for g in range(count)]
    want = [[hit[k].mean() if len(k) else np.nan for k in own] for hit in hits]
    np.testing.assert_allclose(problem.evaluate(x)[group], want)


def test_other_clients_are_judged_by_their_mix_of_classes() -> None:
    spec = small()
    problem = build_problem(spec, 0)
    x = np.random.default_rng(1).normal(size=(2, problem.d))
    values = problem.evaluate(x)
    labels = np.concatenate([problem.labels[rows] for rows in (slice(None),)])
    assert len(labels) == problem.data_sizes.sum()
    for i, (start, m) in enumerate(
        zip(problem.offsets, problem.data_sizes, strict=True)
    ):
        own = labels[start : start + m]
        want = values["class"][:, own].mean(axis=1)  # the mean over its samples
        np.testing.assert_allclose(values["client"][:, i], want)


def test_a_class_without_test_samples_does_not_count() -> None:
    tests = LocalTests(np.array([0, 0, 2]), 3, np.array([[0.5, 0.25, 0.25], [0, 1, 0]]))
    accuracies = tests.accuracies(np.array([[True, False, True]]))
    np.testing.assert_allclose(accuracies, [[(0.5 * 0.5 + 0.25) / 0.75, np.nan]])


@pytest.mark.parametrize("partition", ["features", "pool"])
def test_where_a_mix_of_classes_says_nothing_there_is_no_value(partition: str) -> None:
    spec = small()
    clients = replace(spec.clients, partition=partition)
    values = build_problem(replace(spec, clients=clients), 0).evaluate(
        np.zeros((1, 650))
    )
    assert "client" not in values


@pytest.mark.parametrize(("n", "tenth"), [(1, 1), (10, 1), (11, 2), (30, 3)])
def test_the_worst_tenth_and_the_spread(n: int, tenth: int) -> None:
    values = np.random.default_rng(n).random((2, n + 1))
    values[:, 0] = np.nan  # a client without test samples
    found = client_statistics(values)
    for row, worst, spread in zip(values, *found.values(), strict=True):
        assert worst == pytest.approx(np.sort(row[1:])[:tenth].mean())
        assert spread == pytest.approx(row[1:].std())
    assert client_statistics(np.full((1, 3), np.nan)) == {}


@pytest.fixture
def results(tmp_path: Path) -> Results:
    scenario = {"faults": [{"kind": "RandomLabels", "share": 0.25}]}
    spec = wards(tmp_path, scenario=scenario, local_steps=2, participation=6)
    return run(spec, runs_dir=tmp_path / "runs")


def test_records_are_read_back(results: Results) -> None:
    label = results.labels[0]
    by_client = results.accuracies(label, "client")
    assert by_client.shape == (2, 7, 12)
    faulty = results.records[0][0][0].scenario["faulty"]
    honest = np.delete(by_client[0, -1], faulty)  # as in the objective
    honest = np.sort(honest[np.isfinite(honest)])
    worst = results.curve(label, "worst_tenth_accuracy")[0, -1]
    assert worst == pytest.approx(honest[: -(-len(honest) // 10)].mean(), abs=1e-6)
    assert summarise(results)["methods"][0]["class_accuracy"] == pytest.approx(
        results.accuracies(label, "class")[:, -1].mean(axis=0).tolist()
    )
    rows = client_rows(results, 1)
    assert [row["client"] for row in rows] == list(range(12))
    assert sum(row["is_faulty"] for row in rows) == 3
    assert rows[5]["methods"][label]["accuracy"] == by_client[1, -1, 5]
    part = [r for r in results.records[1][0][1:] if 5 in r.clients]
    weights = [r.weights[r.clients.index(5)] for r in part]
    assert rows[5]["methods"][label]["weight"] == pytest.approx(np.mean(weights))
    assert rows[5]["methods"][label]["steps"] == 2
    with pytest.raises(InvalidInputError, match="`label` must be one of"):
        results.accuracies("nobody", "client")


def test_bytes_are_numbers_in_the_precision_of_the_run(results: Results) -> None:
    label = results.labels[0]
    sent = axis_values(results, label, "bytes")
    assert (sent == 8 * results.curve(label, "scalars")).all()  # float64
    assert sent[0, -1] > 0
