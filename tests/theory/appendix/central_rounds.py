"""Comparisons of a round that was run with the statements of Appendix G."""

import numpy as np

from hewfl.core.round import Cohort, Round
from hewfl.core.validation import ArrayLike, as_float64
from hewfl.displacements.control_variates import ControlVariates
from hewfl.theory.appendix.special_cases import CentralPath
from hewfl.theory.statement import Hypothesis, at_most

ROUNDING = 1e-12
"""Two vectors are the same if they differ by this much of the longer one."""


def symmetric_exact_hypotheses(
    cohort: Cohort,
    gradients: ArrayLike,
    *,
    used: ArrayLike | None = None,
    variates: ControlVariates | None = None,
) -> tuple[Hypothesis, ...]:
    """The regime of this module, as far as numbers show it.

    (ass:symmetric_exact_regime)

    `gradients` are ∇F_i at some points, shape (*points, n, d): equal over i. `used` are
    the stochastic gradients taken there: equal to ∇F_i. `variates` are equal over i.
    """
    exact = as_float64("gradients", gradients)
    n, S = cohort.population, len(cohort.clients)
    H = cohort.horizons.astype(np.float64)
    hypotheses = [
        at_most("full participation", n, S),
        at_most("max H_i ≤ min H_i", H.max(initial=0.0), H.min(initial=np.inf)),
        _equality("∇F_i all equal", exact, exact[..., :1, :]),
    ]
    if used is not None:
        hypotheses.append(_equality("g_i = ∇F_i", as_float64("used", used), exact))
    if variates is not None:
        first = variates.clients[:1]
        hypotheses.append(_equality("c_i all equal", variates.clients, first))
    return tuple(hypotheses)


def central_round_hypotheses(
    round_: Round,
    weights: ArrayLike,
    path: CentralPath,
    *,
    variates: ControlVariates | None = None,
    reference: ArrayLike | None = None,
) -> tuple[Hypothesis, ...]:
    """One round is the central path and the weights do not matter.

    (prop:corrected_exact_microsteps, prop:plain_exact_microsteps)

    All displacements equal z_H − x, so Ψ is constant on the simplex and every weight
    vector minimises it; the step is z_H − x too.

    `path` starts from the same anchor. All `variates` after a round of corrected
    branches equal its mean gradient, and so does the `reference` ḡ of plain ones.
    """
    moved, step = round_.displacements.matrix(), path.displacement
    w = as_float64("weights", weights)
    hypotheses = [
        _equality("Δ_i = z_H − x", moved, step),
        _equality("Σ w_iΔ_i = z_H − x", w @ moved, step),
    ]
    if variates is not None:
        both = np.vstack([variates.clients, variates.server])
        hypotheses.append(
            _equality("c_i = c = mean gradient", both, path.mean_gradient)
        )
    if reference is not None:
        g = as_float64("reference", reference)
        hypotheses.append(_equality("ḡ = mean gradient", g, path.mean_gradient))
    return tuple(hypotheses)


def _equality(name: str, one: ArrayLike, other: ArrayLike) -> Hypothesis:
    """Largest distance between vectors, against what rounding may do to them."""
    left, right = np.broadcast_arrays(as_float64(name, one), as_float64(name, other))
    away = np.linalg.norm(left - right, axis=-1).max(initial=0.0)
    size = np.linalg.norm(np.stack([left, right]), axis=-1).max(initial=0.0)
    return at_most(name, away, ROUNDING * size)
