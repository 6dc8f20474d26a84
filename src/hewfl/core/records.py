"""Inputs and results of the solvers, as frozen records."""

from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.core.array_types import Bool, Float64, Int64
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Ints,
    Mask,
    Nonnegative,
    PerClient,
    Positive,
    Validated,
    check_fields,
    invalid,
    nonnegatives,
    wholes,
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class SimplexSolution:
    """Weights on the simplex with the proof that they are optimal.

    For a problem  min f(w) over w ∈ Δ_n  with gradient ∇ = ∇f(w):

        multipliers_i = ∇_i − min_j ∇_j ≥ 0,     gap = Σ_i w_i multipliers_i.

    For convex f this is the Frank-Wolfe gap max_i ⟨∇, w − e_i⟩, so f(w) − min f ≤ gap;
    anyone can recompute it from w and the data.

    Leading batch dimensions of the problem are leading dimensions of every field but
    `status`; without them `value`, `gap` and `iterations` have shape ().

    Attributes:
        weights: w, nonnegative, summing to one.
        value: f(w).
        gap: certified bound on f(w) − min f.
        multipliers: dual variables of w ≥ 0; all zero on the support up to rounding.
        support: which weights are positive.
        iterations: pivots (factorisations or exchanges of the active set).
        status: one sentence.

    Examples:
        >>> import numpy as np
        >>> from hewfl import solve_simplex_qp
        >>> solution = solve_simplex_qp(np.eye(2), np.array([0.0, 3.0]))
        >>> solution.weights, solution.support
        (array([1., 0.]), array([ True, False]))
        >>> float(solution.gap)
        0.0
    """

    weights: Float64[Array, "*batch n"]
    value: Float64[Array, "*batch"]
    gap: Float64[Array, "*batch"]
    multipliers: Float64[Array, "*batch n"]
    support: Bool[Mask, "*batch n"]
    iterations: Int64[Ints, "*batch"]
    status: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class ControlSolution:
    """Weights and amplitudes of the predictive controller, with a rigorous lower bound.

    Attributes:
        weights: w ∈ Δ_n.
        amplitudes: θ in its box, one per client.
        value: J(w, θ), the certified bound on the next expected objective gap.
        lower_bound: D(λ) ≤ min J by weak duality; value − lower_bound bounds the miss.
        sweeps: steps of the dual search, or sweeps of Algorithm 4.
        status: one sentence.

    Examples:
        >>> from hewfl import predictive_control
        >>> solution = predictive_control(
        ...     ClientProfile([1, 8], 8, 1e-4),
        ...     UpperState(gap=0.5, tracking=1e-4),
        ...     ProblemBounds(1.0, 1.0, 1e-6, 1.0),
        ... )
        >>> bool(solution.weights[1] > solution.weights[0])
        True
        >>> bool(solution.value - solution.lower_bound < 1e-12)
        True
    """

    weights: PerClient
    amplitudes: PerClient
    value: float
    lower_bound: float
    sweeps: int
    status: str


@final
@dataclass(frozen=True, slots=True)
class ClientProfile:
    """Clients as described before a round: H_i, b_i, v_i² or its proxy.

    Each field is a number, or an array with one entry per client; fields broadcast
    against each other, so one profile can describe a whole federation.

    Attributes:
        horizon: H_i ≥ 1, local steps (a whole number).
        batch_size: b_i ≥ 1, samples per step (a whole number).
        variance: v_i² ≥ 0, or an executable proxy not below it.

    Raises:
        InvalidInputError: a field is out of its range, or fields do not broadcast.
    """

    horizon: ArrayLike
    batch_size: ArrayLike
    variance: ArrayLike

    def __post_init__(self) -> None:
        """Check ranges and that the fields broadcast."""
        H = wholes("horizon", self.horizon, least=1)
        b = wholes("batch_size", self.batch_size, least=1)
        shapes = [H.shape, b.shape, nonnegatives("variance", self.variance).shape]
        fields = "horizon, batch_size, variance"
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError as error:
            rule = "numbers or arrays of one common length"
            raise invalid(fields, rule, shapes) from error
        if len(shape) > 1 or 0 in shape:
            rule = "numbers or nonempty one-dimensional arrays"
            raise invalid(fields, rule, f"shapes {shapes}")


@final
@dataclass(frozen=True, slots=True)
class ProblemBounds:
    """Constants of the objective and the amplitude box.

    Attributes:
        smoothness: L > 0, of every sample loss.
        radius: R > 0, of the ball around a minimiser that holds all iterates.
        amplitude_min: θ lower end, positive.
        amplitude_max: θ upper end; at most 1, where the certificate is proved (E-03).

    Raises:
        InvalidInputError: a constant is not positive, or the box is empty or ends
            above 1.
    """

    smoothness: Positive
    radius: Positive
    amplitude_min: Positive
    amplitude_max: Positive

    def __post_init__(self) -> None:
        """Check that L, R and the box of amplitudes are in range."""
        check_fields(self)
        low, high = self.amplitude_min, self.amplitude_max
        if high > 1:
            raise invalid("amplitude_max", "at most 1 (erratum E-03)", high)
        if low > high:
            raise invalid("amplitude_min", f"at most `amplitude_max` = {high}", low)


@final
@dataclass(frozen=True, slots=True)
class UpperState(Validated):
    """Certified bounds on the state of a run: (U_t, Q_t).

    Attributes:
        gap: U_t ≥ F(x_t) − F*.
        tracking: Q_t ≥ max_i ‖c_i − ∇F_i(x_t)‖².

    Examples:
        >>> UpperState(gap=0.5, tracking=0.0)
        UpperState(gap=0.5, tracking=0.0)
    """

    gap: Nonnegative
    tracking: Nonnegative
