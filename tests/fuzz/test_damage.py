"""Drawn and damaged input of rules, weights, spec files, checkpoints and replies.

Each gives an answer that keeps its promise or one of our errors: no other exception,
no warning, no number that is not finite. More cases: HEWFL_TEST_EXAMPLES=5000.
"""

import contextlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hewfl import (
    FedAvg,
    Federation,
    FixedSteps,
    LocalSGD,
    Method,
    ServerStep,
    combine,
    data_gap,
    post_local_weights,
    simulate,
    solve_simplex_qp,
)
from hewfl.aggregators import NAMES, PREAGGREGATIONS, Trust, make
from hewfl.displacements.count_sketch import CountSketch
from hewfl.errors import HewError
from hewfl.experiments.spec import Spec, read_spec, spec_from_table, write_spec
from hewfl.problems import random_quadratic
from tests.experiments.runs import table

HARD: tuple[float, ...] = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    5e-324,
    1e-310,
    1e-160,
    1e-45,
    3e38,
    1e150,
    1e154,
)
HARD += (1e300, -1e300, 1.7e308, np.nan, np.inf, -np.inf)
SIZES = st.integers(1, 6)


@st.composite
def matrices(draw: st.DrawFn, n: int | None = None, d: int | None = None) -> Any:
    """Rows of hard numbers, of one scale, of equal vectors, or of plain bytes."""
    n, d = draw(SIZES) if n is None else n, draw(SIZES) if d is None else d
    kind = draw(st.sampled_from(("hard", "scaled", "equal", "one", "bytes")))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    X = rng.standard_normal((n, d))
    with np.errstate(all="ignore"):
        if kind == "hard":
            X = draw(arrays(np.float64, (n, d), elements=st.sampled_from(HARD)))
        elif kind == "scaled":
            X = X * draw(st.sampled_from((1e-300, 1e-160, 1.0, 1e150, 1e300)))
        elif kind == "equal":
            X = np.repeat(X[:1], n, axis=0)
        elif kind == "one":
            X[draw(st.integers(0, n - 1))] *= draw(st.sampled_from(HARD))
        else:
            X = np.frombuffer(rng.bytes(8 * n * d)).reshape(n, d)
        return X.astype(draw(st.sampled_from((np.float16, np.float32, np.float64))))


@given(
    st.lists(st.sampled_from(sorted(PREAGGREGATIONS)), max_size=2),
    st.sampled_from(NAMES),
    matrices(),
    st.sampled_from(("exact", "sketch", CountSketch(2))),
    st.sampled_from((None, 0, 1, 2, 5, 0.0, 0.4999)),
    st.sampled_from((1, 3, 1000)),
)
def test_every_rule_decides_or_says_why(
    before: list[str], name: str, updates: Any, gram: Any, f: Any, apart: int
) -> None:
    n, d = updates.shape
    beside: dict[str, Any] = {
        "losses": np.arange(1.0, n + 1),
        "root": np.cos(np.arange(float(d))),
        "sizes": np.arange(n) + 1,
        "steps": np.arange(n) % 3 + 1,
        "gram": gram,
        "clients": apart * np.arange(n)[::-1],  # some of many take part
    }
    whole = "+".join([*before, name])
    try:
        rule = make(whole)
        if f is not None and "f=0.25" in repr(rule):
            rule = make(whole, f=f)
        decision, state = rule(updates, **beside)
        rule(updates, state, **beside)
    except HewError:
        return
    assert decision.weights.shape == (n,)
    assert np.isfinite(decision.weights).all()
    assert decision.step.shape == (d,)
    assert np.isfinite(decision.step).all()
    lost = ~np.isfinite(updates).all(axis=1)
    assert (decision.weights[lost] == 0).all()


@given(st.data(), matrices(), st.sampled_from((1e-300, 1e-8, 1.0, 1e300)))
def test_weights_are_on_the_simplex_or_refused(
    data: st.DataObject, updates: Any, curvature: float
) -> None:
    reference = data.draw(matrices(1, updates.shape[1]))[0]
    for gram in ("exact", CountSketch(2)):
        try:
            found = post_local_weights(updates, reference, curvature, gram=gram)
        except HewError:
            continue
        assert found.weights.min() >= 0
        assert abs(found.weights.sum() - 1) < 1e-9
        assert np.isfinite(float(found.gap))
        assert np.isfinite(found.multipliers).all()
        combine(updates, found.weights)
        data_gap(updates, reference, curvature, found.weights)


@given(st.data(), SIZES)
def test_a_matrix_is_solved_or_refused(data: st.DataObject, n: int) -> None:
    A = data.draw(matrices(n, n)).astype(np.float64)
    with np.errstate(all="ignore"):
        gram = data.draw(st.sampled_from((A, A @ A.T)))
    try:
        found = solve_simplex_qp(gram, data.draw(matrices(1, n))[0])
    except HewError:
        return
    assert found.weights.min() >= 0
    assert abs(found.weights.sum() - 1) < 1e-9


@st.composite
def damage(draw: st.DrawFn, content: bytes) -> bytes:
    """Some bytes changed, lost, doubled, or a text of other numbers put between."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        end = min(len(content), at + draw(st.integers(0, 12)))
        new = draw(
            st.binary(max_size=3)
            | st.sampled_from((b"-1", b"nan", b"[", b'"', b"\n", b"1e999", b"{}"))
            | st.just(content[at:end] * 2)
        )
        content = content[:at] + new + content[end:]
    return content


WRITTEN = write_spec(spec_from_table(table())).encode()


@given(damage(WRITTEN))
def test_a_spec_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.mktemp("spec") / "spec.toml"
    file.write_bytes(content)
    with contextlib.suppress(HewError):
        assert isinstance(read_spec(file), Spec)


METHODS = [
    FedAvg(0.05),
    Method(LocalSGD(0.05), Trust(), ServerStep(momentum=0.9)),
]


def run(rounds: int, folder: Path | None) -> Any:
    problem = random_quadratic(seed=0, n=4, d=3)
    federation = Federation(FixedSteps(2), batch_size=2)
    return simulate(
        problem, federation, METHODS, rounds=rounds, seed=0, checkpoint=folder
    ).anchors


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run of three rounds, and the models of all six."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    run(3, folder)
    return folder, run(6, None)


@given(st.data())
def test_a_damaged_checkpoint_is_refused_or_goes_on(
    tmp_path_factory: pytest.TempPathFactory,
    stopped: tuple[Path, Any],
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(stopped[0], folder)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    file = data.draw(st.sampled_from(files))
    file.write_bytes(data.draw(damage(file.read_bytes())))
    try:
        found = run(6, folder)
    except HewError:
        return
    for one, other in zip(found, stopped[1], strict=True):
        np.testing.assert_array_equal(one, other)
