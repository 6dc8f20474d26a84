"""The attack protocol: attackers that see everything and know each other.

An attack is a frozen record. In each round it is given an `AttackView`: the updates of
all clients of the round, the attackers among them, the rule under attack and its state.
It returns the updates that the attackers send. The server sees nothing of the view.

    @final
    @dataclass(frozen=True, slots=True)
    class Opposite:
        share: float

        def attack(self, view: AttackView) -> Float64[Array, "b d"]:
            return np.tile(-view.mean, (view.b, 1))

An attack is a pure function of its view. Random numbers come from the seed, the round
and the place of the attack in its scenario; an attack that remembers earlier rounds
implements `Remembering`, and its memory is part of a checkpoint. So a run that is
resumed has the same bits.

`AttackView.probe` asks the rule what it would do. The answers need the Gram matrix of
the updates and of a few directions, computed once: a search over strengths costs a few
calls of the rule at any d, and the state of the rule never changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hewfl.core.array_types import Float64, Int64
from hewfl.core.displacements import (
    Displacements,
    LinearCombination,
    RoundProducts,
)
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, Ints, PerClient, invalid
from hewfl.displacements.backend import to_host
from hewfl.displacements.control_variates import read_only
from hewfl.displacements.dense import DenseDisplacements
from hewfl.displacements.mapped import MappedDisplacements
from hewfl.federation.rng import SCENARIO, generator

_ATTACK_RUN, _ATTACK_ROUND = 10, 11
"""Streams within that of scenarios."""


@runtime_checkable
class Attack(Protocol):
    """An attack that depends on the other clients' updates, and perhaps on the rule."""

    @property
    def share(self) -> float:
        """Share of the clients that attack."""

    def attack(self, view: "AttackView") -> Float64[Array, "b d"]:
        """The updates that the attackers send.

        Args:
            view: all that is known in this round.

        Returns:
            One row for each attacker of the round, in the order of `view.attackers`.
        """


@runtime_checkable
class Remembering(Protocol):
    """An attack with a memory: `AttackView.memory` is that of the rounds before."""

    def init(self, n: int, d: int) -> Any:
        """The memory before the first round.

        Args:
            n: clients in all.
            d: parameters.

        Returns:
            Arrays, numbers, tuples and dataclasses of them.
        """

    def remember(self, view: "AttackView") -> Any:
        """The memory after a round.

        Args:
            view: all that is known in this round.

        Returns:
            A memory of the same structure.
        """


@final
@dataclass(frozen=True, eq=False)  # no slots: of `cached_property`
class AttackView:
    """All that attackers know in a round.

    Attributes:
        round: what the server would receive if the attackers were honest: anchor,
            updates, cohort and plan of the round, losses where the rule needs them.
        honest: places in the cohort of the clients without a fault, increasing. Where
            none takes part these are the attackers.
        attackers: places of the clients of this attack, increasing.
        algorithm: the method under attack.
        state: of the method, before the round.
        decide: the decision of the method on a round; None where it refuses.
        seed: of the run.
        index: place of the attack in its scenario.
        memory: of the attack, None where it has none.
    """

    round: Round
    honest: Int64[Ints, " h"]
    attackers: Int64[Ints, " b"]
    algorithm: Any
    state: Any
    decide: Callable[[Round], Decision | None]
    seed: int
    index: int = 0
    memory: Any = None

    @property
    def t(self) -> int:
        """The round, counted from 0."""
        return self.round.cohort.round

    @property
    def n(self) -> int:
        """Clients of the round."""
        return len(self.round.cohort.clients)

    @property
    def b(self) -> int:
        """Attackers of the round."""
        return len(self.attackers)

    @property
    def d(self) -> int:
        """Parameters."""
        return self.round.displacements.d

    @property
    def clients(self) -> Int64[Ints, " n"]:
        """Numbers of the clients of the round."""
        return self.round.cohort.clients

    @property
    def _dense(self) -> DenseDisplacements:
        rows = self.round.displacements
        assert isinstance(rows, DenseDisplacements), "a simulation has a matrix"
        return rows

    def rows(self, places: NDArray[np.int64]) -> Float64[Array, "k d"]:
        """Updates of some clients, by their places.

        Args:
            places: in the cohort.

        Returns:
            A matrix.
        """
        rows: Array = self._dense.take(places).matrix()
        return rows

    @cached_property
    def honest_rows(self) -> Float64[Array, "h d"]:
        """Updates of the honest clients."""
        return self.rows(self.honest)

    @cached_property
    def own_rows(self) -> Float64[Array, "b d"]:
        """What the attackers computed honestly."""
        return self.rows(self.attackers)

    @cached_property
    def mean(self) -> Float64[Array, " d"]:
        """μ, the mean of the honest updates."""
        return np.asarray(self.honest_rows.mean(axis=0))

    @cached_property
    def std(self) -> Float64[Array, " d"]:
        """σ, the sample standard deviation of each entry; 0 of a single client."""
        X = self.honest_rows
        if len(X) == 1:
            return np.zeros(X.shape[1])
        return np.asarray(np.sqrt(((X - self.mean) ** 2).sum(axis=0) / (len(X) - 1)))

    @cached_property
    def length(self) -> float:
        """Median length of the honest updates."""
        X = self.honest_rows
        return float(np.median(np.sqrt(np.einsum("ij,ij->i", X, X))))

    def run_rng(self) -> np.random.Generator:
        """Random numbers common to all rounds; each call starts them again."""
        return generator(self.seed, SCENARIO, _ATTACK_RUN, self.index)

    def round_rng(self) -> np.random.Generator:
        """Random numbers of this round; each call starts them again."""
        return generator(self.seed, SCENARIO, _ATTACK_ROUND, self.index, self.t)

    def probe(self, *directions: Float64[Array, " d"]) -> "Probe":
        """What the rule would do with updates made of a few vectors.

        Args:
            directions: vectors beside the updates of the round.

        Returns:
            A probe of the rule under attack.
        """
        rows = self._dense
        for vector in directions:
            rows = rows.append(np.asarray(vector, dtype=rows.row(0).dtype))
        return Probe(self, _CachedProducts(rows))


@final
@dataclass(frozen=True, slots=True)
class Response:
    """A step of the rule under attack, compared with the mean μ of the honest updates.

    Attributes:
        decision: of the rule.
        sq_distance: ‖step − μ‖².
        inner: ⟨step, μ⟩.
    """

    decision: Decision
    sq_distance: float
    inner: float


@final
@dataclass(frozen=True, eq=False)  # no slots: of `cached_property`
class Probe:
    """The rule under attack, asked in terms of products.

    Attributes:
        view: of the round.
        basis: the n updates of the round, and the directions after them.
    """

    view: AttackView
    basis: "_CachedProducts"

    @cached_property
    def _mean(self) -> PerClient:
        """Coefficients of μ."""
        weights = np.zeros(self.basis.n)
        weights[self.view.honest] = 1 / len(self.view.honest)
        return weights

    def respond(self, coefficients: Float64[Array, "b m"]) -> Response | None:
        """The step of the rule if the attackers send these combinations.

        Args:
            coefficients: of the n updates of the round, then of the directions; one
                row for each attacker.

        Returns:
            The response; None where the rule refuses the round.
        """
        view, basis = self.view, self.basis
        sent = np.eye(view.n, basis.n)
        sent[view.attackers] = coefficients
        mapped = MappedDisplacements(basis, sent)
        decision = view.decide(replace(view.round, displacements=mapped))
        if decision is None:
            return None
        if decision.step is not None:  # no combination of the updates
            step = np.asarray(to_host(decision.step), dtype=np.float64)
            gap = step - view.mean
            return Response(decision, float(gap @ gap), float(step @ view.mean))
        step = sent.T @ decision.weights
        sq_distance = basis.dot_combinations(step - self._mean, step - self._mean)
        inner = basis.dot_combinations(step, self._mean)
        return Response(decision, max(sq_distance, 0.0), inner)


@final
@dataclass(frozen=True, eq=False)  # no slots: of `cached_property`
class _CachedProducts:
    """Displacements whose products are computed once; the rest is that of the base."""

    base: DenseDisplacements
    _by_reference: dict[int, tuple[Any, RoundProducts]] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return self.base.n

    @property
    def d(self) -> int:
        return self.base.d

    @cached_property
    def plain(self) -> RoundProducts:
        """For g = 0 and Λ = 1."""
        return self.base.products()

    def products(self, reference: Any = None, curvature: float = 1.0) -> RoundProducts:
        """From those for g = 0; one pass over the data for each other vector g."""
        if reference is None:
            return self.plain.with_reference(np.zeros(self.n), curvature)
        if isinstance(reference, LinearCombination):
            return self.plain.with_reference(reference.weights, curvature)
        if curvature != 1.0:
            return self.base.products(reference, curvature)
        if id(reference) not in self._by_reference:
            self._by_reference.clear()  # a rule has one reference in a round
            answer = reference, self.base.products(reference, 1.0)
            self._by_reference[id(reference)] = answer  # keeps the vector, and its id
        return self._by_reference[id(reference)][1]

    def dot_combinations(self, u: PerClient, v: PerClient) -> float:
        """⟨Σ u_jv_j, Σ v_jv_j⟩, without rounding of a part that all vectors share."""
        G, cr, rr = self.plain.gram, self.plain.linear, 2 * self.plain.offset
        U, V = float(u.sum()), float(v.sum())
        value = u @ G @ v + U * (v @ cr) + V * (u @ cr) + U * V * rr
        return float(np.ldexp(value, self.plain.exponent))

    def gram(self) -> Float64[Array, "m m"]:
        return self.plain.uncentred_gram()

    def inner(self, vector: Any) -> PerClient:
        return self.base.inner(vector)

    def combine(self, weights: PerClient) -> Any:
        return self.base.combine(weights)

    def blocks(self) -> Any:
        return self.base.blocks()

    def column_chunks(self) -> Any:
        return self.base.column_chunks()

    def dot(self, u: Any, v: Any) -> float:
        return self.base.dot(u, v)

    def take(self, members: NDArray[np.int64]) -> Displacements:
        return self.base.take(members)

    def append_zero(self) -> Displacements:
        return self.base.append_zero()

    def from_matrix(self, rows: Float64[Array, "k d"]) -> Displacements:
        return self.base.from_matrix(rows)

    def matrix(self) -> Float64[Array, "m d"]:
        return self.base.matrix()


def checked_rows(attack: Attack, view: AttackView) -> Float64[Array, "b d"]:
    """The updates of an attack, of the right shape.

    Args:
        attack: of the scenario.
        view: of the round.

    Returns:
        One row for each attacker.

    Raises:
        InvalidInputError: the attack returns something else.
    """
    rows = np.asarray(attack.attack(view), dtype=np.float64)
    if rows.shape != (view.b, view.d):
        rule = f"of shape ({view.b}, {view.d})"
        raise invalid(f"the updates of {attack!r}", rule, rows.shape)
    return rows


def deciding(
    decide: Callable[[Round, Any], Decision | None], state: Any
) -> Callable[[Round], Decision | None]:
    """A decision rule with a state that is only read, for `AttackView.decide`.

    Args:
        decide: of a method.
        state: of the method, before the round; it does not change.

    Returns:
        The decision on a round.
    """
    fixed = read_only(state)
    return lambda round_: decide(round_, fixed)
