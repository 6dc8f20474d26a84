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
from hewfl.core.displacements import Displacements
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import (
    ArrayLike,
    Faulty,
    Ints,
    PerClient,
    Validated,
    as_float64,
    invalid,
    positives,
    real_vector,
    wholes,
)
from hewfl.displacements.backend import to_host
from hewfl.displacements.dense import as_dense
from hewfl.displacements.estimated_products import (
    EstimatedProducts,
    GramSource,
    gram_source,
)
from hewfl.errors import SolverError

FAULTY = 0.25
"""Default of `f` in every rule and pre-aggregation; papers take f as known."""
MAX_CLIENTS = 10_000_000
"""Client numbers are places in the memory of a rule: they must be small."""


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

    @property
    def optional(self) -> frozenset[Need]:
        """Those of `needs` without which it works, if less well."""
        return frozenset()

    @property
    def clips(self) -> bool:
        """Whether it shortens long updates itself, however long they are."""
        return False

    def init(self, n: int, d: int) -> Any:
        """The state before the first round; None for rules without memory.

        Args:
            n: clients in all.
            d: parameters.

        Returns:
            A value that `decide` takes and returns.
        """
        del n, d
        return None

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

    @np.errstate(all="ignore")  # what is not finite is an error below, not a warning
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
        round_number: int = 0,
        gram: GramSource = "exact",
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
            round_number: rounds before this one, for hyper-parameters that change.
            gram: "sketch" gives the rule products of sketches of 2¹⁴ numbers a client,
                or of another `CountSketch`; entries and the step stay exact.

        Returns:
            The decision with its `weights`, `step` (a NumPy vector) and `status`, and
            the state for the next call.

        Raises:
            InvalidInputError: an argument has a wrong shape or range, or one that the
                rule needs is absent.
            SolverError: weights or step are not finite, as for entries near 1e300.
        """
        rows = as_dense("updates", updates)
        n, d = rows.n, rows.d
        if not self.needs.isdisjoint(("truth", "variate")):
            rule = "one that needs neither the truth nor control variates"
            raise invalid("aggregator", rule, self.name)
        given = {"losses": losses, "root": root}
        for need in sorted(self.needs & given.keys()):
            if given[need] is None:
                raise invalid(need, f"given for {self.name}", "None")
        if root is not None:
            root = as_float64(
                "root", to_host(root) if hasattr(root, "__dlpack__") else root
            )
            if root.shape != (d,):
                raise invalid("root", f"of shape ({d},)", root.shape)
        ids = _client_numbers(clients, n)
        require_minority("aggregator", self, int(ids.max()) + 1)
        finite = [_is_finite(rows.xp, rows.row(i)) for i in range(n)]
        order = np.argsort(ids)
        order = order[np.array(finite)[order]]
        if len(order) == 0:
            raise invalid("updates", "finite in at least one row", "none")
        cohort = Cohort(
            ids[order],
            _counts("steps", steps, n)[order],
            np.ones(len(order), dtype=np.int64),
            _counts("sizes", sizes, n)[order],
            int(ids.max()) + 1,
            round_number,
        )
        rates = _per_client("step_sizes", 1.0 if step_sizes is None else step_sizes, n)
        values = None if losses is None else _per_client("losses", losses, n)[order]
        present: Displacements = rows
        if not np.array_equal(order, np.arange(n)):
            present = rows.take(order)
        sketch = gram_source(gram)
        if sketch is not None and sketch.size < d:
            present = EstimatedProducts(present, sketch)
        round_ = Round(
            np.zeros(d),
            present,
            cohort,
            LocalPlan(positives("step_sizes", rates)[order]),
            values,
            root=root,
        )
        before = self.init(cohort.population, d)
        if state is not None:
            _check_state(state, before)
            before = grow_state(state, before)
        decision, after = self.decide(round_, before)
        chosen = real_vector(
            f"the weights of {self.name}", decision.weights, len(order)
        )
        weights = np.zeros(n)
        weights[order] = chosen
        step, status = decision.step, decision.status
        if step is None:
            step = round_.displacements.combine(chosen)
        if len(order) < n:
            status += f"; {n - len(order)} of {n} updates are not finite: weight zero"
        step = to_host(step)
        if not (np.isfinite(weights).all() and np.isfinite(step).all()):
            raise SolverError(f"{self.name}: the step is not finite; scale the updates")
        return replace(decision, weights=weights, step=step, status=status), after


def _is_finite(xp: Any, row: Any) -> bool:
    """Whether all entries are finite; a finite sum of squares shows it fastest."""
    is_plain = isinstance(row, np.ndarray) and row.dtype in (np.float32, np.float64)
    if is_plain and np.isfinite(np.dot(row, row)):
        return True
    return bool(xp.all(xp.isfinite(row)))


def _per_client(name: str, value: ArrayLike, n: int) -> PerClient:
    """One finite number for each client; a single number serves all."""
    array = as_float64(name, value)
    if array.shape not in ((), (n,)):
        raise invalid(name, f"of shape ({n},)", array.shape)
    return np.broadcast_to(array, (n,))


def _counts(name: str, value: ArrayLike | None, n: int) -> Int64[Ints, " n"]:
    """One whole number of at least 1 for each client; 1 where none is given."""
    numbers = _per_client(name, 1 if value is None else value, n)
    return wholes(name, numbers, least=1).astype(np.int64)


def _client_numbers(clients: ArrayLike | None, n: int) -> Int64[Ints, " n"]:
    if clients is None:
        return np.arange(n)
    numbers = wholes("clients", clients)
    if numbers.size and numbers.max() >= MAX_CLIENTS:
        rule = f"below {MAX_CLIENTS:,}: number the clients"
        raise invalid("clients", rule, f"{numbers.max():g}")
    ids = numbers.astype(np.int64)
    if ids.shape != (n,) or len(np.unique(ids)) != n:
        raise invalid("clients", f"{n} different numbers", ids.tolist())
    return ids


def _check_state(state: Any, fresh: Any) -> None:
    """Require a state of this rule, for vectors of the same length."""
    if type(state) is not type(fresh):
        got = type(state).__name__
        raise invalid("state", "one that this rule returned", got)
    if is_dataclass(state) and not isinstance(state, type):
        for f in fields(state):
            _check_state(getattr(state, f.name), getattr(fresh, f.name))
    elif isinstance(state, tuple):
        if len(state) != len(fresh):
            raise invalid("state", "one that this rule returned", "another length")
        for one, other in zip(state, fresh, strict=True):
            _check_state(one, other)
    elif isinstance(state, np.ndarray) and state.shape[1:] != fresh.shape[1:]:
        raise invalid("state", "of updates of this length", f"shape {state.shape}")


def faulty_count(f: int | float, round_: Round, most: int) -> tuple[int, str]:
    """How many clients of a round a rule takes for faulty.

    The one meaning of `f` in all rules and pre-aggregations: a whole number is a count;
    a fraction φ < ½ means that at most a share φ of the clients present is faulty, so
    ⌊φ n⌋ are (0.29 · 100 counts as 29 in spite of rounding). Where fewer clients are
    present than a rule needs for that, it takes the largest f that it can, and its
    status says so. A count that is no minority of all clients is an error where all are
    known (`require_minority`).

    Args:
        f: a count of type int, or a fraction of type float.
        round_: whose clients are counted; buckets stand for their clients.
        most: the largest f that the rule can be used with.

    Returns:
        The number f, never below zero; and the end of a status, empty where this is
        what was asked for.
    """
    n = round_.displacements.n if round_.present is None else round_.present
    asked = assumed_count(f, n)
    count = max(0, min(asked, most))
    note = f"; f = {count}, not {asked}: {n} clients allow no more"
    return count, note if count < asked else ""


def require_minority(name: str, rule: Any, n: int) -> None:
    """Require that every count of type `Faulty` is below half of n, also in parts.

    Fractions always are. In a single round fewer clients may take part.

    Args:
        name: of the argument that an error names.
        rule: an aggregator, a pre-aggregation, a method or a tuple of them.
        n: clients in all.

    Raises:
        InvalidInputError: a count is half of all clients or more.
    """
    if isinstance(rule, tuple):
        for part in rule:
            require_minority(name, part, n)
        return
    if not is_dataclass(rule) or isinstance(rule, type):
        return
    for part in fields(rule):
        value = getattr(rule, part.name)
        if part.type is not Faulty:
            require_minority(name, value, n)
        elif hasattr(value, "__index__") and value and 2 * value >= n:
            half = f"below half of the {n} clients"
            got = f"{value} in {type(rule).__name__}"
            raise invalid(f"{name}.{part.name}", half, got)


def assumed_count(f: int | float, n: int) -> int:
    """F itself, or ⌊f n⌋ of a fraction of n clients."""
    return int(f) if hasattr(f, "__index__") else int(f * n + 1e-9)


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
