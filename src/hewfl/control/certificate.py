"""The one-step certificate: the guaranteed gain of a round, client by client.

    J(w, θ) = U♯ − Σ_i w_i μ_i(θ_i) + (L/2) Σ_i w_i² κ_i(θ_i)  (th:predictive-majorant)
    A descent, s decrease, ρ mean penalty, κ variance, μ = s − ρ

J bounds the expected objective gap after the round for θ ≤ 1 (erratum E-03). Three sets
of constants share this form; at any (w, θ) each gives a smaller J than the one before:

* "paper": the constants as printed.
* "sharp": no exponentials, horizon factors, a quarter of Young's constant (T1 to T3).
* "absorbed": those of "sharp", but the drift 8h₁θ³U, which bounds (4h₁θ³/L)‖∇F‖², is
  set off against the descent −(θ/2L)‖∇F‖² before either is bounded.

`round_bound` takes the records of one round and checks them. The formulas take a
`Situation` and amplitudes, arrays that broadcast, and are evaluated beyond θ ≤ 1 too:
`hewfl.theory` evaluates them for many rounds at once.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from hewfl.core.records import ClientProfile, ProblemBounds, UpperState
from hewfl.core.validation import ArrayLike, Reals, as_float64, invalid

if TYPE_CHECKING:
    Variant = Literal["paper", "sharp", "absorbed"]
else:  # a wrong name passes run-time type checks, to `check_variant` and its error
    Variant = str
VARIANTS: tuple[Variant, ...] = ("paper", "sharp", "absorbed")


def check_variant(variant: Variant) -> Variant:
    """Require the name of one of the three sets of constants."""
    if variant not in VARIANTS:
        raise invalid("variant", f"one of {', '.join(VARIANTS)}", repr(variant))
    return variant


def check_amplitudes(amplitudes: ArrayLike) -> Reals:
    """Amplitudes as float64, required to lie where the certificate is proved.

    Raises:
        InvalidInputError: an amplitude is outside [0, 1] (erratum E-03).
    """
    theta = as_float64("amplitudes", amplitudes)
    outside = (theta < 0) | (theta > 1)
    if outside.any():
        raise invalid("amplitudes", "in [0, 1] (erratum E-03)", theta[outside].flat[0])
    return theta


@final
@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """The data of the coefficients before a round, except θ.

    Fields broadcast against each other and against the amplitudes.

    Attributes:
        smoothness: L > 0.
        radius: R > 0.
        gap: U ≥ 0.
        tracking: Q ≥ 0.
        noise: M = v²/(Hb) ≥ 0.
        horizon: H ≥ 1.
        count: number of equal clients in an entry; they share its weight.
    """

    smoothness: Reals
    radius: Reals
    gap: Reals
    tracking: Reals
    noise: Reals
    horizon: Reals
    count: Reals = field(default_factory=lambda: np.ones(()))

    @property
    def cap(self) -> Reals:
        """f̄ = LR²/2, the largest gap on the ball."""
        return np.asarray(self.smoothness * self.radius * self.radius / 2)


def situation_of(
    profiles: ClientProfile, state: UpperState, bounds: ProblemBounds
) -> Situation:
    """The situation of one round from its records.

    Returns:
        L, R, U, Q as numbers; M and H with the shape of the profile's fields.
    """
    numbers = (bounds.smoothness, bounds.radius, state.gap, state.tracking)
    L, R, U, Q = (np.asarray(x, dtype=np.float64) for x in numbers)
    H = as_float64("horizon", profiles.horizon)
    return Situation(L, R, U, Q, noise(profiles), H)


def clipped_gap(state: UpperState, bounds: ProblemBounds) -> float:
    """U♯ = min(U, f̄) with f̄ = LR²/2, the largest gap on the ball.

    Only s uses U♯ as printed. To have it in ρ and κ too, which is valid and tighter
    (E-25), pass `UpperState(clipped_gap(state, bounds), state.tracking)` as the state.
    """
    return min(state.gap, bounds.smoothness * bounds.radius * bounds.radius / 2)


def noise(profiles: ClientProfile) -> Reals:
    """M = v²/(Hb), the variance of a branch's mean gradient.

    Args:
        profiles: H_i, b_i, v_i² of the clients.
    """
    H, b = profiles.horizon, profiles.batch_size
    samples = as_float64("horizon", H) * as_float64("batch_size", b)
    return np.asarray(as_float64("variance", profiles.variance) / samples)


def horizon_factors(horizon: Reals) -> tuple[Reals, Reals]:
    """Drift of H local steps, zero for one step (T3).

    h₁ = (H − 1)(2H − 1)/(6H²) ≤ 1/3,     h₂ = (H − 1)/(2H) ≤ 1/2
    """
    # beyond 1e100 both are at their limits in float64; H² would overflow from 1e155 on
    H = np.minimum(horizon, 1e100)
    h1, h2 = (H - 1) * (2 * H - 1) / (6 * H**2), (H - 1) / (2 * H)
    return np.asarray(h1), np.asarray(h2)


def flow_decrease(a: Reals, u: Reals) -> Reals:
    """The decrease of u by the flow T_a(u) = u/(1 + a u), for a, u ≥ 0.

    u − T_a(u) = u × x/(1 + x),     x = a u
    """
    # A subtraction of T_a(u) would cancel all digits where x is small (E-32), a u² in
    # the numerator would underflow, and x/(1 + x) is ∞/∞ where x overflows.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        x = np.asarray(a * u)
        return np.asarray(u * np.where(x > 1, 1 / (1 + 1 / x), x / (1 + x)))


def descent_coefficient(theta: Reals, at: Situation, variant: Variant) -> Reals:
    """Curvature A of the certified descent u − A u².

    A = θ / (2LR²)                     paper, sharp
    A = θ(1 − 8h₁θ²) / (2LR²)          absorbed; negative for θ² > 1/(8h₁)
    """
    L, R = at.smoothness, at.radius
    if check_variant(variant) == "absorbed":
        h1, _ = horizon_factors(at.horizon)
        return np.asarray(theta * (1 - 8 * h1 * theta**2) / (2 * L * R * R))
    return np.asarray(theta / (2 * L * R * R))


def certified_decrease(theta: Reals, at: Situation, variant: Variant) -> Reals:
    """The decrease of the gap u by descent, u = U♯ = min(U, f̄).

        s = u − T_A(u) = A u² / (1 + A u)     A ≥ 0
        s = 4 f̄ A u                           A < 0, absorbed only

    Where A < 0 drift outweighs descent. Then f − A R²‖∇F‖² has to be bounded with
    ‖∇F‖² ≤ 2L f, not with ‖∇F‖² ≥ f²/R²: u − T_A(u) would be no bound. As a function of
    A, s increases and is concave (at A = 0 its slope falls from 4f̄u to u²), and A is
    concave in θ ≥ 0; so s is concave in θ for every variant.
    """
    A = descent_coefficient(theta, at, variant)
    u = np.asarray(np.minimum(at.gap, at.cap))
    descent = flow_decrease(np.asarray(np.maximum(A, 0)), u)
    return np.where(A < 0, 4 * at.cap * A * u, descent)


def mean_penalty(theta: Reals, at: Situation, variant: Variant) -> Reals:
    """Mean cost of drift, stale control variates and noise (eq:rho-main).

    ρ = 32e^{2θ}θ³ U + (16θ + 64e^{2θ}θ³) Q/L + 8e^{2θ}θ³ M/L     paper
    ρ = 8h₁θ³ U + (4θ + 16h₁θ³) Q/L + 2h₂θ³ M/L                   sharp
    ρ = (4θ + 16h₁θ³) Q/L + 2h₂θ³ M/L                             absorbed
    """
    L, U, Q, M = at.smoothness, at.gap, at.tracking, at.noise
    if check_variant(variant) == "paper":
        e = np.exp(2 * theta)
        stale = (16 * theta + 64 * e * theta**3) / L * Q
        return np.asarray(32 * e * theta**3 * U + stale + 8 * e * theta**3 / L * M)
    h1, h2 = horizon_factors(at.horizon)
    stale = (4 * theta + 16 * h1 * theta**3) / L * Q
    drift = 8 * h1 * theta**3 * U if variant == "sharp" else 0.0
    return np.asarray(drift + stale + 2 * h2 * theta**3 / L * M)


def variance_bound(theta: Reals, at: Situation, variant: Variant) -> Reals:
    """Bound on the variance of a client's displacement (eq:kappa-main).

    κ = 16e^{2θ}θ⁴ U/L + 32e^{2θ}θ⁴ Q/L² + (2θ² + 4e^{2θ}θ⁴) M/L²     paper
    κ = θ² M/L²                                                       the others
    """
    L, U, Q, M = at.smoothness, at.gap, at.tracking, at.noise
    if check_variant(variant) == "paper":
        e = np.exp(2 * theta)
        drift = 16 * e * theta**4 / L * U
        stale = 32 * e * theta**4 / L / L * Q  # L² may leave the number range, /L/L not
        noisy = (2 * theta**2 + 4 * e * theta**4) / L / L * M
        return np.asarray(drift + stale + noisy)
    return np.asarray(theta**2 / L / L * M)


def gain(theta: Reals, at: Situation, variant: Variant) -> Reals:
    """Certified gain of one client with all the weight, noise aside: μ = s − ρ."""
    s, rho = certified_decrease(theta, at, variant), mean_penalty(theta, at, variant)
    return np.asarray(s - rho)


def certified_change(w: Reals, theta: Reals, at: Situation, variant: Variant) -> Reals:
    """Change of the bound, J − U♯ = Σ_i (−w_i μ_i + (L/2) w_i² κ_i), clients last."""
    mu, kappa = gain(theta, at, variant), variance_bound(theta, at, variant)
    # m equal clients with weight w together: m (w/m)² κ = w (w/m) κ
    risk = at.smoothness / 2 * (w / at.count) * kappa
    return np.asarray((w * (risk - mu)).sum(-1))


def round_bound(
    weights: ArrayLike,
    amplitudes: ArrayLike,
    profiles: ClientProfile,
    state: UpperState,
    bounds: ProblemBounds,
    *,
    variant: Variant = "paper",
) -> Reals:
    """The certificate of a round; clients are the last axis, and the one summed over.

        J(w, θ) = U♯ − Σ_i w_i μ_i(θ_i) + (L/2) Σ_i w_i² κ_i(θ_i)

    Args:
        weights: w, nonnegative and summing to one over the last axis.
        amplitudes: θ in [0, 1].
        profiles: H_i, b_i, v_i² of the clients.
        state: (U, Q).
        bounds: L and R.
        variant: which constants.

    Returns:
        J, one number for each round that the leading axes hold.

    Raises:
        InvalidInputError: weights, amplitudes or the variant break a rule above.
    """
    w, theta = as_float64("weights", weights), check_amplitudes(amplitudes)
    if w.ndim == 0 or (w < 0).any() or not np.allclose(w.sum(-1), 1, rtol=0, atol=1e-9):
        raise invalid("weights", "nonnegative and summing to one", repr(weights)[:80])
    at = situation_of(profiles, state, bounds)
    change = certified_change(w, theta, at, check_variant(variant))
    return np.asarray(clipped_gap(state, bounds) + change)
