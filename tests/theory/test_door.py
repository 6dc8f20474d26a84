"""One door to the statements about many rounds: `theorem`."""

from typing import Any

import numpy as np
import pytest
from tests.theory.cases import RICH, ROWS

from hewfl import InvalidInputError
from hewfl.theory import System, theorem, theorems
from hewfl.theory.post_local import PostLocal
from hewfl.theory.recursion import Recursion
from hewfl.theory.theorem_table import Form, find_theorem, theorem_curve

NEEDED: dict[str, Any] = {
    "pl_constant": RICH.pl_constant,
    "similarity": RICH.similarity,
    "hessian_lipschitz": RICH.hessian_lipschitz,
}


def enter(label: str, variant: Form, amplitude: Any, **more: Any) -> Recursion:
    needs = find_theorem(label, variant).needs
    given = {name: NEEDED[name] for name in needs} | more
    return theorem(label, RICH.system, amplitude=amplitude, variant=variant, **given)


@pytest.mark.parametrize(("label", "variant"), ROWS)
def test_the_door_leads_to_every_statement(label: str, variant: Form) -> None:
    """The same bound as the certificate's, by label and by word, for many at once."""
    theta = np.array([1e-3, 0.01])
    curve = theorem_curve(label, RICH, PostLocal(theta, 2.0), variant)
    word = find_theorem(label, variant).word
    for name in (label, word):
        k = enter(name, variant, theta)
        rate = k.rate(RICH.start, 50, printed=variant == "printed")
        defined = np.isfinite(rate.value)
        assert rate.label == label
        np.testing.assert_array_equal(
            rate.value[defined], curve.rate(50).value[defined]
        )
        assert (k.trajectory(RICH.start, 50).gap[-1] <= RICH.system.cap).all()
        assert {h.name for h in k.hypotheses} <= {h.name for h in rate.hypotheses}
        if curve.recursion is not None:
            np.testing.assert_array_equal(k.floor, curve.recursion.floor)
    letters = (k.a, k.beta, k.gamma, k.delta, k.cap, k.A, k.B, k.C)
    for ours, theirs in zip(letters, k.coefficients, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("label", "variant"), ROWS)
def test_failure_is_a_value_for_one_as_for_many(label: str, variant: Form) -> None:
    """Far outside the hypotheses a number or NaN comes back, and the reason."""
    for theta in (0.4, 1.5, 30.0):
        one = enter(label, variant, theta).rate(RICH.start, 20)
        many = enter(label, variant, np.array([theta, 1e-4])).rate(RICH.start, 20)
        np.testing.assert_array_equal(one.value, many.value[0])
        if (variant, theta) != ("joint", 0.4):  # which allows more
            assert not one.holds
        failed = {h.name for h in one.hypotheses if not h.holds}
        both = many.hypotheses
        assert failed == {h.name for h in both if not np.broadcast_to(h.holds, 2)[0]}


def test_words_and_labels_are_listed() -> None:
    assert len({t.word for t in theorems()} | {t.label for t in theorems()}) == 14


def test_controls_of_ones_own() -> None:
    system, start = System(1.0, 1.0, [1, 2, 4], 8, 1e-4), (0.5, 1e-4)
    w, theta = np.array([0.2, 0.3, 0.5]), np.array([0.01, 0.02, 0.03])
    fixed = theorem("comparator", system, amplitude=theta, weights=w)
    assert fixed.comparator is not None
    np.testing.assert_array_equal(fixed.comparator, w)
    wide = theorem("comparator", system, amplitude=theta, weights=w, box_end=0.1)
    assert wide.C > fixed.C
    best = theorem("hew-het", system, amplitude=0.01)
    own = theorem("hew-het", system, amplitude=0.01, comparator=w, curvature=2.0)
    assert best.delta < own.delta
    assert best.a == own.a
    assert own.rate(start, 9).label == "cor:realized-het-rate"
    pl = theorem("uniform-pl", System(1.0, 1.0, [2] * 3, 8, 0.0), amplitude=0.01,
                 pl_constant=0.1)  # fmt: skip
    assert pl.contraction() == -pl.beta > 0


@pytest.mark.parametrize(
    ("label", "given", "says"),
    [
        ("th:none", {}, "`theorem` must be one of th:sur-cvx"),
        (
            "uniform",
            {"variant": "printed"},
            "`variant` must be one of paper, sharp, abs",
        ),
        ("uniform", {"curvature": 2.0}, "`curvature` must be left out for th:direct"),
        ("hew-hom", {"weights": [1.0]}, "`weights` must be left out for cor:realized"),
        ("uniform-pl", {}, "`pl_constant` must be given"),
        ("uniform", {"amplitude": 0.0}, "`amplitude` must be positive"),
        ("hew-hom", {"curvature": 1.0}, "`curvature` must be above the smoothness"),
    ],
)
def test_bad_input_raises(label: str, given: dict[str, Any], says: str) -> None:
    system = System(1.0, 1.0, [2, 2], 8, 1e-4)
    with pytest.raises(InvalidInputError, match=says):
        theorem(label, system, **({"amplitude": 0.01} | given))
    with pytest.raises(InvalidInputError, match="`pl_constant` must be given for th:d"):
        theorem("uniform", system, amplitude=0.01).contraction()


@pytest.mark.parametrize(("label", "variant"), ROWS)
def test_latex_has_symbols_numbers_and_both_sides(label: str, variant: Form) -> None:
    k = enter(label, variant, 0.02)
    text = k.latex()
    assert text.startswith(r"\begin{align*}")
    assert text.isascii()
    assert text.count("{") == text.count("}")
    assert text.count("&") == text.count(r"\\") + 1
    assert text.count(r"&\colon") == len(k.hypotheses)
    assert text.count(r"\not") == sum(not h.holds for h in k.hypotheses)
    line = next(x for x in text.splitlines() if x.startswith("\\delta"))
    number = line.partition("= ")[2].rstrip(",.\\ ").replace(r" \cdot 10^{", "e")
    assert k.delta <= float(number.replace("}", "")) <= k.delta * 1.01
    with pytest.raises(InvalidInputError, match="`recursion` must be of one config"):
        enter(label, variant, np.array([0.01, 0.02])).latex()
