"""Radii: how far a branch moves from its anchor, and its drift.

    Δ_i = −(θ/L)(∇F + δ_i) + r_i + noise                                (lem:endpoint)

with the mismatch δ_i of the control variates and the drift r_i. The radius lemmas of
appendices B, C and D bound max_ℓ E‖y_i^(ℓ) − x‖² in three forms: as stated, as their
proofs give them, and sharp. Amplitudes θ_i have the clients last; states are those of
`one_step_bound.situation`.
"""

from typing import TYPE_CHECKING, Literal

import numpy as np

from hewfl.control.certificate import Situation
from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import (
    Array,
    ArrayLike,
    invalid,
    nonnegatives,
    wholes,
)
from hewfl.theory.statement import Bound, at_most

if TYPE_CHECKING:
    RadiusForm = Literal["sharp", "stated", "proved"]
else:  # run-time type checks pass a wrong name on to the error that lists the choices
    RadiusForm = str
Factors = tuple[int, int, int]
"""Of U/L, Q/L² and M/L²."""
_CORRECTED: dict[RadiusForm, Factors] = {"stated": (24, 48, 8), "sharp": (8, 16, 2)}
_PLAIN: dict[RadiusForm, Factors] = {"stated": (16, 0, 4), "sharp": (4, 0, 2)}


@broadcasting
def branch_sq_radius(
    amplitudes: ArrayLike, at: Situation, *, form: RadiusForm = "sharp"
) -> Bound:
    """Squared radius of a corrected branch: max_ℓ E‖y_i^(ℓ) − x‖² (lem:radius).

        θ²(8U/L + 16Q/L² + 2M/L²)              sharp, θ ≤ 2H (T1)
        θ²(24U/L + 48Q/L² + 8M/L²)             stated
        e^{2θ}θ²(8U/L + 16Q/L² + 2M/L²)        proved, any θ

    The proof gives the third form, which is within the second only for θ ≤ ln(3)/2; the
    second is true all the same, because the first is (E-03). The lemma is the same for
    (u, χ) (lem:sur-radius) and (g, q) (lem:direct-radius, the largest over clients).
    """
    label, k = "lem:radius", _CORRECTED
    return _radius(label, k, nonnegatives("amplitudes", amplitudes), at, form)


@broadcasting
def plain_sq_radius(
    amplitudes: ArrayLike, at: Situation, *, form: RadiusForm = "sharp"
) -> Bound:
    """Squared radius of a branch without control variates (lem:realized-hom-radius).

        θ²(4U/L + 2M/L²)            sharp, θ ≤ 2H (T1)
        θ²(16U/L + 4M/L²)           stated
        e^{2θ}θ²(4U/L + 2M/L²)      proved, any θ; within the second for θ ≤ ln(2)/2

    Q plays no part.
    """
    label, k = "lem:realized-hom-radius", _PLAIN
    return _radius(label, k, nonnegatives("amplitudes", amplitudes), at, form)


@broadcasting
def mismatch_sq_norm(tracking: ArrayLike, *, n: ArrayLike | None = None) -> Bound:
    """Squared error of a client's correction: ‖δ_i‖² ≤ 4Q (lem:delta).

        δ_i = ∇F_i − ∇F − (c_i − c) = (1/n)Σ_j e_j − e_i
        4Q                   stated
        4(1 − 1/n)² Q        where n is given: the triangle inequality keeps e_i's share

    The lemma is the same for E‖δ_i‖² and χ (lem:delta-sur).

    Q bounds ‖e_i‖² for all i, χ bounds E‖e_i‖².
    """
    Q = nonnegatives("tracking", tracking)
    share = 1.0 if n is None else 1 - 1 / wholes("n", n, least=1)
    return Bound("lem:delta", np.asarray(4 * share**2 * Q), ())


@broadcasting
def drift_sq_norm(
    amplitudes: ArrayLike, at: Situation, *, form: RadiusForm = "stated"
) -> Bound:
    """Squared drift of the local steps: E‖r_i‖² ≤ θ²R_i² (lem:rbar).

        r_i = −η Σ_ℓ (∇F_i(y_i^(ℓ)) − ∇F_i(x))
        θ⁴(24U/L + 48Q/L² + 8M/L²)              stated
        θ² times `branch_sq_radius`             the other forms

    It bounds the squared mean drift too, by Jensen. The lemma is the same for (u, χ)
    (lem:sur-rbar).
    """
    theta = nonnegatives("amplitudes", amplitudes)
    radius = branch_sq_radius(theta, at, form=form)
    return Bound("lem:rbar", np.asarray(theta**2 * radius.value), radius.hypotheses)


def _radius(
    label: str,
    factors: dict[RadiusForm, Factors],
    theta: Array,
    at: Situation,
    form: RadiusForm,
) -> Bound:
    if form not in ("sharp", "stated", "proved"):
        raise invalid("form", "one of sharp, stated, proved", repr(form))
    k = factors["stated" if form == "stated" else "sharp"]
    L, U, Q, M = at.smoothness, at.gap, at.tracking, at.noise
    growth = np.exp(2 * theta) if form == "proved" else 1.0
    value = growth * theta**2 * (k[0] / L * U + k[1] / L / L * Q + k[2] / L / L * M)
    short = at_most("θ ≤ 2H", theta, 2 * at.horizon)
    return Bound(label, np.asarray(value), () if form == "proved" else (short,))
