"""The contract of an aggregator: from the updates of a round to weights or a step.

An aggregator is a frozen record of hyper-parameters. It declares what it looks at
beside the updates (`needs`), so that a transport can supply it or refuse. It does not
know how clients train and what the server does with the step: a `hewfl.methods.Method`
puts the three parts together.

    @final
    @dataclass(frozen=True, slots=True)
    class Shortest(Aggregator):
        name: ClassVar[str] = "Shortest update"

        def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
            sq_norms = np.diagonal(round_.displacements.gram())
            weights = np.zeros(len(sq_norms))
            weights[sq_norms.argmin()] = 1.0
            return Decision(weights, "the shortest update"), state
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from hewfl.core.algorithm import Need
from hewfl.core.array_types import Int64
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import (
    ArrayLike,
    Ints,
    PerClient,
    Validated,
    as_float64,
    invalid,
    positives,
    wholes,
)
from hewfl.displacements.backend import to_host
from hewfl.displacements.dense import as_dense


class Aggregator(Validated):
    """Base of all aggregators: `decide`, and a call on plain arrays.

    A subclass gives `name` and `decide`; `needs` where it looks at more than the
    updates, and `init` where it remembers something from round to round.

    Examples:
        >>> import numpy as np
        >>> from hewfl.aggregators import GeometricMedian
        >>> updates = np.array([[1.0, 0.0], [1.1, 0.0], [0.9, 0.0], [-50.0, 9.0]])
        >>> decision, state = GeometricMedian()(updates)
        >>> bool(decision.weights[3] < 0.02)
        True
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """What tables call it."""
        return type(self).__name__

    @property
    def needs(self) -> frozenset[Need]:
        """What it looks at beside the products of the updates."""
        return frozenset()

    def init(self, n: int, d: int) -> Any:
        """The state before the first round; None for rules without memory.

        Args:
            n: clients in all.
            d: parameters.

        Returns:
            A value that `decide` takes and returns.
        """
        del n, d

    def decide(self, round_: Round, state: Any) -> tuple[Decision, Any]:
        """Weights of the updates, or a step, and the state of the next round.

        Args:
            round_: all that the rule may look at.
            state: before the round.

        Returns:
            The decision, and the state after the round.

        Raises:
            NotImplementedError: a subclass has no `decide`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `decide`")

    def __call__(  # noqa: PLR0913 - what a rule may need, all optional
        self,
        updates: Any,
        state: Any = None,
        *,
        sizes: ArrayLike | None = None,
        steps: ArrayLike | None = None,
        step_sizes: ArrayLike | None = None,
        losses: ArrayLike | None = None,
        root: Any = None,
        clients: ArrayLike | None = None,
    ) -> tuple[Decision, Any]:
        """Aggregate updates that are at hand as arrays.

        Updates with NaN or infinite entries get weight zero, and the status says so.

        Args:
            updates: Δ_i = y_i − x, shape (n, d) or n vectors, of any array library.
            state: from the call before; None at the start.
            sizes: data sizes m_i; equal by default.
            steps: local steps H_i; 1 by default.
            step_sizes: local step sizes η_i; 1 by default.
            losses: F_i(x), for rules that need them.
            root: a gradient at x that the server trusts, for rules that need one.
            clients: a number for each client, for rules that remember clients; rows
                are numbered by default.

        Returns:
            The decision with its `weights`, `step` (a NumPy vector) and `status`, and
            the state for the next call.

        Raises:
            InvalidInputError: an argument has a wrong shape or range, or one that the
                rule needs is absent.
        """
        rows = as_dense("updates", updates)
        n, d = rows.n, rows.d
        absent = {"losses": losses, "root": root}
        for need in sorted(self.needs & absent.keys()):
            if absent[need] is None:
                raise invalid(need, f"given for {self.name}", "None")
        ids = _client_numbers(clients, n)
        order = np.argsort(ids)
        finite = np.array(
            [bool(np.isfinite(to_host(rows.row(int(i)))).all()) for i in order]
        )
        order = order[finite]
        if len(order) == 0:
            raise invalid("updates", "finite in at least one row", f"{n} rows, none is")

        def per_client(name: str, value: ArrayLike | None) -> PerClient:
            array = np.ones(n) if value is None else positives(name, value)
            if array.shape != (n,):
                raise invalid(name, f"of shape ({n},)", array.shape)
            return array[order]

        whole = wholes("steps", 1 if steps is None else steps, least=1)
        horizons = np.broadcast_to(whole, (n,)) if whole.ndim == 0 else whole
        population = int(ids.max()) + 1
        cohort = Cohort(
            ids[order],
            per_client("steps", horizons).astype(np.int64),
            np.ones(len(order), dtype=np.int64),
            per_client("sizes", sizes).astype(np.int64),
            population,
        )
        plan = LocalPlan(per_client("step_sizes", step_sizes))
        values = None if losses is None else as_float64("losses", losses)
        if values is not None and values.shape != (n,):
            raise invalid("losses", f"of shape ({n},)", values.shape)
        round_ = Round(
            np.zeros(d),
            rows
            if (order == np.arange(n)).all() and len(order) == n
            else rows.take(order),
            cohort,
            plan,
            None if values is None else values[order],
            root=root,
        )
        before = grow_state(state, self.init(population, d))
        decision, after = self.decide(round_, before)
        weights = np.zeros(n)
        weights[order] = decision.weights
        step, status = decision.step, decision.status
        if step is None:
            step = round_.displacements.combine(decision.weights)
        if len(order) < n:
            status += f"; {n - len(order)} of {n} updates are not finite: weight zero"
        return replace(
            decision, weights=weights, step=to_host(step), status=status
        ), after


def _client_numbers(clients: ArrayLike | None, n: int) -> Int64[Ints, " n"]:
    if clients is None:
        return np.arange(n)
    ids = wholes("clients", clients).astype(np.int64)
    if ids.shape != (n,) or len(np.unique(ids)) != n:
        raise invalid("clients", f"{n} different numbers", ids.tolist())
    return ids


def grow_state(state: Any, fresh: Any) -> Any:
    """A state for more clients than before: what is known, then fresh entries.

    Args:
        state: of the round before, None where there is none.
        fresh: the first state for the new number of clients.

    Returns:
        The state, with rows of `fresh` behind the rows of every array that has fewer.
    """
    if state is None or fresh is None:
        return fresh
    if isinstance(state, np.ndarray):
        if state.ndim == 0 or len(state) >= len(fresh):
            return state
        return np.concatenate([state, fresh[len(state) :]])
    if isinstance(state, tuple):
        return tuple(grow_state(a, b) for a, b in zip(state, fresh, strict=True))
    if is_dataclass(state) and not isinstance(state, type):
        parts = {
            f.name: grow_state(getattr(state, f.name), getattr(fresh, f.name))
            for f in fields(state)
        }
        return replace(state, **parts)
    return state
