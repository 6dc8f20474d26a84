"""Other methods at the same constants: what is known of them, beside the paper.

With h = Lη the step of a gradient in units of 1/L, σ̄² the mean of v_i²/b_i, and
V_u = (1/n²) Σ v_i²/(H_i b_i), after T rounds

    gradient descent    LR²/(2T)                                        h = 1, no noise
    minibatch SGD       LR²/(2hT) + h(1 + h) V_u/(2L)                   any clients
    Local SGD           LR²/(2hTH) + hσ̄²/(2Ln) + (1 − 1/n)(H − 1)h²σ̄²/(4L)
                                                                        one objective
    every method here   at least LR²/(4ϑT + 2) for some objective       ϑ = hH

for h ≤ 1. The first three are upper bounds and have the best h in them; the last is a
lower bound, true of Algorithms 1 to 3 with any weights on the simplex and any H_i.
docs/theory.md has the proofs and says which published constants could not be read.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.optimize import brentq

from hewfl.core.broadcasting import broadcasting
from hewfl.core.validation import ArrayLike
from hewfl.theory.designer import one_positive, target_below_cap
from hewfl.theory.noise import uniform_noise_of_mean
from hewfl.theory.recursion import Whole, one_whole
from hewfl.theory.statement import Hypothesis, all_hold, at_most
from hewfl.theory.systems import Case, is_homogeneous


@final
@dataclass(frozen=True, slots=True, eq=False)
class OtherMethod:
    """The bound of another method at the constants of a case.

    Where a hypothesis fails, numbers are NaN.
    """

    method: str
    iterate: str
    value: float  # upper bound on the gap after T rounds; of the last row, lower bound
    step: float  # h, the best for T rounds
    rounds_to_target: float  # the fewest; of the last row, fewer never suffice
    hypotheses: tuple[Hypothesis, ...]


@broadcasting
def literature(
    case: Case,
    target: ArrayLike,
    *,
    rounds: Whole = 1000,
    amplitude: ArrayLike = 1.0,
) -> tuple[OtherMethod, ...]:
    """Bounds of other methods, with constants proved in docs/theory.md.

    In a round minibatch SGD draws as many samples as the paper's algorithms, H_i b_i a
    client, all at the anchor. Each row names the iterate it is about: minibatch and
    Local SGD are about averages of iterates, the paper about the last one.

    Args:
        case: what is known, of one configuration.
        target: ε, below the cap f̄.
        rounds: T.
        amplitude: ϑ of the lower bound.

    Returns:
        Gradient descent, minibatch SGD, Local SGD, and the lower bound.

    Examples:
        >>> from hewfl.theory import Case, System, literature
        >>> case = Case(System(1.0, 1.0, [4] * 10, 8, 1e-4), sampling="fresh draws")
        >>> [int(row.rounds_to_target) for row in literature(case, 0.05)[1:3]]
        [11, 3]
    """
    eps = float(target_below_cap(target, case))
    T, theta = (
        one_whole("rounds", rounds, least=1),
        one_positive("amplitude", amplitude),
    )
    system = case.system
    H, m, n = np.asarray(system.horizon), system.multiplicity, system.n
    L, cap = float(system.L), float(system.cap)
    per_step = np.asarray(system.variance) / np.asarray(system.batch_size)
    mean = float((m * np.broadcast_to(per_step, H.shape)).sum() / n)
    drift = (1 - 1 / n) * (float(H.max()) - 1) / 4
    V_u, loudest = float(uniform_noise_of_mean(system)), float(per_step.max())
    everybody = at_most("full participation", n, case.participants)
    quiet = at_most("v² ≤ 0", loudest, 0.0)
    others = 0 if is_homogeneous(case.sampling) else n
    alike = (
        everybody,
        at_most("homogeneous oracle", others, 0),
        at_most("H_i = H", H.max(), H.min()),
    )
    last = "the last iterate"
    # the worst objective is Huber's with slope LR/(2ϑT + 1): it starts at that gap
    worst = 2 * cap / (2 * theta * T + 1) * (1 - 0.5 / (2 * theta * T + 1))
    reachable = at_most("F(x₀) − F* ≤ g₀", worst, case.start[0])
    lower = cap / (2 * theta * T + 1) if all_hold((reachable,)) else np.nan
    fewest = max(0.0, float(np.ceil((cap / eps - 1) / (2 * theta))))
    return (
        _best(
            "gradient descent", last, (cap / T, 0.0, 0.0), eps, T, (everybody, quiet)
        ),
        _best(
            "minibatch SGD",
            "the mean of the iterates",
            (cap / T, V_u / (2 * L), V_u / (2 * L)),
            eps,
            T,
            (everybody,),
        ),
        _best(
            "Local SGD, weights 1/n",
            "the mean of all local iterates",
            (cap / (T * float(H.max())), mean / (2 * L * n), drift * mean / L),
            eps,
            T,
            alike,
        ),
        OtherMethod(
            f"Algorithms 1 to 3 at ϑ = {theta:.3g}, any weights: no less than",
            last,
            lower,
            np.nan,
            fewest,
            (reachable,),
        ),
    )


def _best(
    method: str,
    iterate: str,
    terms: tuple[float, float, float],
    target: float,
    rounds: int,
    hypotheses: tuple[Hypothesis, ...],
) -> OtherMethod:
    """The least value of a/h + c h + d h² over h ≤ 1, and the rounds to a target.

    a is in proportion to 1/T, so that T is the least where h ε − c h² − d h³ is the
    greatest, at the root of ε = 2c h + 3d h².
    """
    if not all_hold(hypotheses):
        return OtherMethod(method, iterate, np.nan, np.nan, np.nan, hypotheses)
    a, c, d = terms
    h = 1.0
    if c + 2 * d > a:  # the value rises at h = 1; below `low` it falls
        low = np.log(a / (2 * c)) / 2
        low = low if d == 0 else min(low, np.log(a / (4 * d)) / 3)
        h = brentq(lambda y: 2 * d * np.exp(3 * y) + c * np.exp(2 * y) - a, low, 0)
        h = float(np.exp(h))
    soon = min(1.0, 2 * target / (2 * c + np.sqrt(4 * c * c + 12 * d * target) or 1.0))
    soon = 1.0 if c == d == 0 else soon
    needed = np.ceil(a * rounds / (soon * (target - c * soon - d * soon**2)))
    return OtherMethod(
        method, iterate, a / h + c * h + d * h * h, h, needed, hypotheses
    )
