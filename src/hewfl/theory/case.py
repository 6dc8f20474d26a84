"""What is known of a federation, for theorems to be evaluated at."""

from dataclasses import dataclass
from typing import final

import numpy as np

from hewfl.core.validation import (
    Nonnegatives,
    Positives,
    Reals,
    as_float64,
    check_fields,
    invalid,
)
from hewfl.theory.homogeneous import Sampling, is_homogeneous
from hewfl.theory.systems import System


@final
@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What is known of a federation; what is None is not known.

    Attributes:
        system: the constants.
        gap: g_0 or a bound on it; by default f̄, which lem:gap always allows. A larger
            bound is read as f̄.
        tracking: bound on E‖c_i,0 − ∇F_i(x_0)‖²; by default max v_i²/b_i, true if every
            c_i,0 is a minibatch gradient at x_0. It depends on the data if c_i,0 = 0.
        pl_constant: μ of ‖∇F‖² ≥ 2μ(F − F*).
        similarity: S ≥ ‖∇²F_i − ∇²F‖.
        hessian_lipschitz: Lipschitz constant of the Hessians.
        sampling: what the clients draw from; "fixed shards" promises nothing.
        active: clients that take part in a round; by default all.
        dimension: d, parameters of the model, to count what is sent.

    Raises:
        InvalidInputError: a constant is out of its range, or the sampling is unknown.
    """

    system: System
    gap: Nonnegatives | None = None
    tracking: Nonnegatives | None = None
    pl_constant: Positives | None = None
    similarity: Nonnegatives | None = None
    hessian_lipschitz: Nonnegatives | None = None
    sampling: Sampling = "fixed shards"
    active: int | None = None
    dimension: int | None = None

    def __post_init__(self) -> None:
        """Refuse what is out of range, and more participants than clients."""
        is_homogeneous(self.sampling)
        check_fields(self)
        n, S = self.system.n, self.active
        if S is not None and not 1 <= S <= n:
            raise invalid("active", f"between 1 and the number of clients, {n}", S)

    @property
    def participants(self) -> int:
        """S, the clients that take part in a round."""
        return self.system.n if self.active is None else self.active

    @property
    def start(self) -> tuple[Reals, Reals]:
        """Bounds on gap and tracking error to start from; the gap is at most f̄."""
        v2, b = np.asarray(self.system.variance), np.asarray(self.system.batch_size)
        cap = self.system.cap
        gap = cap if self.gap is None else np.minimum(self.known("gap"), cap)
        tracking = (v2 / b).max(-1) if self.tracking is None else self.known("tracking")
        return np.asarray(gap), np.asarray(tracking)

    def known(self, name: str) -> Reals:
        """A field that a statement cannot do without.

        Args:
            name: of a field.

        Returns:
            Its value.

        Raises:
            InvalidInputError: it is None.
        """
        value = getattr(self, name)
        if value is None:
            raise invalid(name, "given", value)
        return as_float64(name, value)
