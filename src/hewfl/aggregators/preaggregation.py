"""Pre-aggregation: linear maps of the updates, composed with any aggregator.

    Pipeline(Clip(), GeometricMedian())

Each map is found from the products of the updates. The rule at the end sees the mapped
updates AΔ, and its weights w become Aᵀw on the updates themselves
(`hewfl.displacements.mapped`).
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import numpy as np

from hewfl.aggregators.aggregator import Aggregator
from hewfl.core.algorithm import Informed, Need, Truth
from hewfl.core.array_types import Float64
from hewfl.core.displacements import Displacements
from hewfl.core.round import Decision, Round
from hewfl.core.validation import (
    Array,
    Positive,
    Validated,
    check_fields,
    format_value,
    invalid,
)
from hewfl.displacements.mapped import MappedDisplacements
from hewfl.errors import RuleError


class PreAggregation(Validated):
    """Base of all pre-aggregations: `linear_map` gives A from the updates."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """What tables call it."""
        return type(self).__name__

    def linear_map(self, displacements: Displacements) -> Float64[Array, "n n"]:
        """The matrix A: mapped update i is Σ_j A_ijΔ_j.

        Args:
            displacements: Δ_i.

        Returns:
            One row for each client.

        Raises:
            NotImplementedError: a subclass has no `linear_map`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `linear_map`")


@final
@dataclass(frozen=True, slots=True)
class Clip(PreAggregation):
    """Updates longer than a bound are shortened to it.

        A = diag(min{1, τ/‖Δ_i‖}),   τ = `max_norm`, or `ratio` · median_j ‖Δ_j‖

    The median is over the clients that moved. A client that did more local steps has a
    longer update: clip by a given length, or share a total step among the local steps,
    where fast clients must not be shortened.

    Attributes:
        max_norm: τ; None for the median length.
        ratio: factor of the median length, where no `max_norm` is given.
    """

    max_norm: Positive | None = None
    ratio: Positive = 1.0

    name: ClassVar[str] = "clipped"

    def __post_init__(self) -> None:
        """Check ranges, and that one of the two bounds is given."""
        check_fields(self)
        if self.max_norm is not None and self.ratio != 1:
            raise invalid("ratio", "left out beside `max_norm`", self.ratio)

    def linear_map(self, displacements: Displacements) -> Float64[Array, "n n"]:
        """diag(min{1, τ/‖Δ_i‖})."""
        products = displacements.products()
        # lengths in the unit of the products, which neither overflow nor vanish
        gram = replace(products, exponent=0).uncentred_gram()
        lengths = np.sqrt(np.diagonal(gram))
        if self.max_norm is not None:
            bound = float(np.ldexp(self.max_norm, -products.exponent // 2))
        else:
            moved = lengths[lengths > 0]
            bound = self.ratio * float(np.median(moved)) if len(moved) else 1.0
        return np.diag(bound / np.maximum(lengths, bound))


@final
@dataclass(frozen=True, slots=True, init=False)
class Pipeline(Aggregator):
    """Pre-aggregations in order, then an aggregator on the mapped updates.

    Attributes:
        parts: the pre-aggregations and, last, the aggregator.

    Raises:
        InvalidInputError: a part is not of its kind.

    Examples:
        >>> import numpy as np
        >>> from hewfl.aggregators import Clip, Mean, Pipeline
        >>> updates = np.array([[1.0, 0.0], [0.0, 1.0], [60.0, 80.0]])
        >>> decision, _ = Pipeline(Clip(), Mean())(updates)
        >>> decision.step.round(3)
        array([0.533, 0.6  ])
    """

    parts: tuple[Any, ...]

    def __init__(self, *parts: Any) -> None:
        if not parts or not isinstance(parts[-1], Aggregator):
            rule = "pre-aggregations and, last, an aggregator"
            raise invalid("parts", rule, format_value(parts))
        for part in parts[:-1]:
            if not isinstance(part, PreAggregation):
                raise invalid(
                    "parts", "pre-aggregations before the last", format_value(part)
                )
        object.__setattr__(self, "parts", parts)

    def __repr__(self) -> str:
        """As it is written."""
        return f"Pipeline({', '.join(map(repr, self.parts))})"

    @property
    def rule(self) -> Aggregator:
        """The aggregator at the end."""
        rule: Aggregator = self.parts[-1]
        return rule

    @property
    def name(self) -> str:
        """The rule's name, and what comes before it."""
        return ", ".join([self.rule.name, *(part.name for part in self.parts[:-1])])

    @property
    def needs(self) -> frozenset[Need]:
        """The rule's."""
        return self.rule.needs

    def init(self, n: int, d: int) -> Any:
        """The rule's state."""
        return self.rule.init(n, d)

    def with_truth(self, state: Any, truth: Truth) -> Any:
        """The rule's state with what a simulation knows."""
        if not isinstance(self.rule, Informed):
            return state
        return self.rule.with_truth(state, truth)

    def decide(self, round_: Round, state: Any) -> tuple[Decision, Any]:
        """The rule's decision on AΔ, with weights Aᵀw.

        Nothing is certified: the model of an inner rule is about the mapped updates.

        Raises:
            RuleError: a map is not a finite matrix with a row for each client.
        """
        n = round_.displacements.n
        A: Array = np.eye(n)
        mapped: Displacements = round_.displacements
        for part in self.parts[:-1]:
            A = _checked_map(part, part.linear_map(mapped), n) @ A
            mapped = MappedDisplacements(round_.displacements, A)
        decision, state = self.rule.decide(replace(round_, displacements=mapped), state)
        return replace(decision, weights=A.T @ decision.weights), state


def _checked_map(part: PreAggregation, A: Any, n: int) -> Float64[Array, "n n"]:
    """Require an n × n matrix of finite numbers."""
    if np.shape(A) != (n, n) or not np.isfinite(A).all():
        got = f"shape {np.shape(A)}" if np.shape(A) != (n, n) else "nan or inf"
        rule = f"`linear_map` must be a finite matrix of shape ({n}, {n}); got {got}"
        raise RuleError(f"{type(part).__name__}: {rule}")
    return np.asarray(A, dtype=np.float64)
