"""Pre-aggregation: linear maps of the updates, composed with any aggregator.

    Pipeline(Clip(), NNM(f=4), GeometricMedian())
    make("clip+nnm+geometric-median", f=4)          the same by name

Each map A is found from the products of the updates. The rule at the end sees the
mapped updates AΔ, and its weights w become Aᵀw on the updates themselves
(`hewfl.displacements.mapped`). `WorkerMomentum` has a memory: what follows it sees the
clients' momenta.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import numpy as np

from hewfl.aggregators.aggregator import FAULTY, Aggregator, faulty_count
from hewfl.aggregators.distance import (
    distance_error,
    lengths_of,
    lowest,
    sq_distances,
)
from hewfl.core.algorithm import Informed, Need, Truth
from hewfl.core.array_types import Float64
from hewfl.core.median import median
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import (
    Array,
    BelowOne,
    Count,
    Faulty,
    PerClient,
    Positive,
    Validated,
    check_fields,
    format_value,
    invalid,
    whole,
)
from hewfl.displacements.backend import to_host
from hewfl.displacements.count_sketch import CountSketch
from hewfl.displacements.mapped import MappedDisplacements
from hewfl.displacements.sketched_displacements import SketchedDisplacements
from hewfl.errors import RuleError


class PreAggregation(Validated):
    """Base of all pre-aggregations: `linear_map` gives A from a round."""

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
    def merges(self) -> bool:
        """Whether A has fewer rows than there are clients."""
        return False

    def linear_map(self, round_: Round) -> Float64[Array, "m n"]:
        """The matrix A: mapped update i is Σ_j A_ijΔ_j.

        Args:
            round_: all that it may look at; random numbers must be a function of
                `round_.cohort.round`.

        Returns:
            One row for each client; fewer where the class `merges`.

        Raises:
            NotImplementedError: a subclass has no `linear_map`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `linear_map`")

    def note(self, round_: Round) -> str:
        """The end of the status of a round; empty by default.

        Args:
            round_: as in `linear_map`.

        Returns:
            Text that begins with "; ".
        """
        del round_
        return ""


class _Minority(PreAggregation):
    """Base of pre-aggregations that assume f of the clients to be faulty."""

    __slots__ = ()
    f: Faulty

    def count(self, round_: Round) -> tuple[int, str]:
        """The number f in a round, and the end of a status."""
        return faulty_count(self.f, round_, (round_.displacements.n - 1) // 2)

    def note(self, round_: Round) -> str:
        """Whether f is fewer than was asked for."""
        return self.count(round_)[1]


class Memory(PreAggregation):
    """Base of pre-aggregations that put other vectors in place of the updates."""

    __slots__ = ()

    @property
    def is_step(self) -> bool:
        """Whether the step is made of its vectors; else of the updates before it."""
        raise NotImplementedError

    def init(self, n: int, d: int) -> Any:
        """The state before the first round, of n clients and d parameters."""
        raise NotImplementedError

    def recall(self, round_: Round, state: Any) -> tuple[Any, Any]:
        """The vectors that the next part sees, and the state after the round."""
        raise NotImplementedError


def median_length(lengths: PerClient) -> float:
    """Of the clients that moved; 1 where none did."""
    moved = lengths[lengths > 0]
    return median(moved) if len(moved) else 1.0


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

    def linear_map(self, round_: Round) -> Float64[Array, "n n"]:
        """diag(min{1, τ/‖Δ_i‖})."""
        lengths, exponent = lengths_of(round_.displacements)
        if self.max_norm is not None:
            bound = float(np.ldexp(self.max_norm, -exponent))
        else:
            bound = self.ratio * median_length(lengths)
        return np.diag(bound / np.maximum(lengths, bound))


@final
@dataclass(frozen=True, slots=True)
class ARC(_Minority):
    """Adaptive robust clipping: the longest updates get the next length [Allouah2024].

        A = diag(min{1, C/‖Δ_i‖}),   C = the (k+1)-th largest length,
        k = ⌊2 (f/n) (n − f)⌋

    Attributes:
        f: faulty clients, a count or a fraction below ½ of those present.
    """

    f: Faulty = FAULTY

    name: ClassVar[str] = "ARC"

    def linear_map(self, round_: Round) -> Float64[Array, "n n"]:
        """diag(min{1, C/‖Δ_i‖})."""
        lengths, _ = lengths_of(round_.displacements)
        n = len(lengths)
        f, _ = self.count(round_)
        k = 2 * f * (n - f) // n
        bound = float(np.sort(lengths)[n - 1 - k])
        # a bound of zero: all that are longer become zero
        longer = lengths > bound
        return np.diag(np.divide(bound, lengths, out=np.ones(n), where=longer))


@final
@dataclass(frozen=True, slots=True)
class NNM(_Minority):
    """Nearest-neighbour mixing: the mean of the n − f nearest updates [Allouah2023].

        A_ij = 1/(n − f) for the n − f clients j nearest to i, itself included

    Clients that tie for the last place share it.

    Attributes:
        f: faulty clients, a count or a fraction below ½ of those present.
    """

    f: Faulty = FAULTY

    name: ClassVar[str] = "NNM"

    def linear_map(self, round_: Round) -> Float64[Array, "n n"]:
        """Equal weights on the nearest."""
        gram = round_.displacements.products().gram
        n = len(gram)
        f, _ = self.count(round_)
        count = n - f
        A = lowest(sq_distances(gram), count, distance_error(gram))
        return np.asarray(A / count)


@final
@dataclass(frozen=True, slots=True)
class Bucketing(PreAggregation):
    """Means of random groups of clients [Karimireddy2022].

        mapped update k = mean of Δ_π(i) over the k-th group of s,   k = 1, …, ⌈n/s⌉

    The rule that follows sees ⌈n/s⌉ vectors that differ less than the clients do. It
    can therefore look at nothing that belongs to one client (sizes, steps, losses, who
    it is), but its `f` still counts clients, each of which spoils one bucket. The
    permutation π is a function of seed and round alone: a run that continues after a
    stop has the same. Who knows the seed knows the buckets.

    Attributes:
        size: s ≥ 1 clients in each bucket; the last may have fewer. 2 in the paper's
            experiments.
        seed: of the permutations.
    """

    size: Count = 2
    seed: int = 0

    name: ClassVar[str] = "bucketing"
    merges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check ranges."""
        check_fields(self)
        whole("seed", self.seed, least=0)

    def linear_map(self, round_: Round) -> Float64[Array, "m n"]:
        """Rows of 1/s."""
        n = round_.displacements.n
        random = np.random.default_rng([self.seed, _BUCKETS, round_.cohort.round])
        bucket = np.empty(n, dtype=np.int64)
        bucket[random.permutation(n)] = np.arange(n) // self.size
        A = np.equal.outer(np.arange(-(-n // self.size)), bucket).astype(np.float64)
        return np.asarray(A / A.sum(axis=1, keepdims=True))


_BUCKETS = 7
"""Stream of its random numbers, beside those of `hewfl.federation.rng`."""


@final
@dataclass(frozen=True, slots=True)
class SoftMix(PreAggregation):
    """Updates clipped at the median length, then means of near ones; nothing to tune.

        s_i = min{1, median_j ‖Δ_j‖/‖Δ_i‖},   d_ij = ‖s_iΔ_i − s_jΔ_j‖
        M_ij ∝ exp(−d_ij²/median d²),   rows of M sum to one
        A = M diag(s)

    A pre-aggregation of this library, to be used before a geometric median:
    `make("softmix+geometric-median")`. The median of d² is over pairs of different
    clients; where it is zero, a client is averaged with its equals.
    """

    name: ClassVar[str] = "SoftMix"

    def linear_map(self, round_: Round) -> Float64[Array, "n n"]:
        """M diag(s)."""
        s = np.diagonal(Clip().linear_map(round_))
        clipped = MappedDisplacements(round_.displacements, np.diag(s))
        apart = sq_distances(clipped.products().gram)
        pairs = apart[np.triu_indices(len(apart), 1)]
        scale = median(pairs) if len(pairs) else 0.0
        # over the median first: both may be near the least number there is
        M = np.exp(-(apart / scale)) if scale > 0 else (apart == 0).astype(np.float64)
        return np.asarray(M / M.sum(axis=1, keepdims=True) * s)


@final
@dataclass(frozen=True, slots=True)
class MomentumState:
    """What is remembered of all clients.

    Attributes:
        momenta: Σ_r (1 − β) β^r Δ_i of r participations ago, or their sketches.
        rounds: number of rounds in which each client took part.
    """

    momenta: Float64[Array, "n k"]
    rounds: PerClient


@final
@dataclass(frozen=True, slots=True)
class WorkerMomentum(Memory):
    """Rules see averages of each client's updates over rounds [Karimireddy2021].

        v_i ← β v_i + (1 − β) Δ_i,      m_i = v_i/(1 − β^k_i)

    k_i counts the rounds of client i, this one included, so that m_i is a weighted mean
    of its updates from the first round on (the paper has k_i = ∞, and equal
    participation). Clients that are away keep their memory. The clients need not know:
    the server keeps v_i.

    `memory="whole"` keeps n·d numbers; the rule and the step are on m_i. With "sketch"
    it keeps `size` numbers of each client: the rule weighs the clients by sketches of
    m_i, and the step is made of this round's updates with these weights. That is for
    rules that look at products alone.

    Attributes:
        beta: β from 0 to below 1; 0.9 in the paper.
        memory: "whole" or "sketch".
        size: numbers of a sketch; products are off by about 1/√size. Sketches of
            updates with fewer entries are exact.
    """

    beta: BelowOne = 0.9
    memory: Literal["whole", "sketch"] = "whole"
    size: Count = 2**12

    name: ClassVar[str] = "worker momentum"
    needs: ClassVar[frozenset[Need]] = frozenset({"clients", "entries"})

    @property
    def is_step(self) -> bool:
        """The momenta are, sketches cannot be."""
        return self.memory == "whole"

    def init(self, n: int, d: int) -> MomentumState:
        """No client was seen."""
        k = d if self.memory == "whole" else self.size
        return MomentumState(np.zeros((n, k)), np.zeros(n))

    def recall(self, round_: Round, state: MomentumState) -> tuple[Any, MomentumState]:
        """The momenta of the clients of the round, and the memory after it."""
        D, S, beta = round_.displacements, round_.cohort.clients, self.beta
        is_whole = self.memory == "whole"
        rows = D.matrix() if is_whole else sketches_of(D, self.size)
        v, k = state.momenta.copy(), state.rounds.copy()
        k[S] += 1
        v[S] = beta * v[S] + (1 - beta) * rows
        m = v[S] / (1 - beta ** k[S])[:, None]
        if is_whole:
            return D.from_matrix(m), MomentumState(v, k)
        sketches = SketchedDisplacements(D.n, D.d, m)
        return MappedDisplacements(sketches, np.eye(D.n)), MomentumState(v, k)


def sketches_of(displacements: Any, size: int) -> Float64[Array, "n k"]:
    """Sketches of the updates, from one pass over their entries.

    Raises:
        RuleError: this process has some of the entries only.
    """
    sketch, begin = CountSketch(size), 0
    totals = np.zeros((displacements.n, size))
    for block in displacements.blocks():
        for total, row in zip(totals, block, strict=True):
            sketch.add(total, row, begin)
        begin += block.shape[1]
    if begin != displacements.d:
        rule = f"sketches need all {displacements.d} entries in one process"
        raise RuleError(f'WorkerMomentum: {rule}; use memory="whole"')
    return totals


@final
@dataclass(frozen=True, slots=True)
class PipelineState:
    """States of the parts.

    Attributes:
        parts: of each pre-aggregation, None for those without memory.
        rule: of the aggregator.
    """

    parts: tuple[Any, ...]
    rule: Any


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
        _check_order(parts)
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
        """What the parts look at."""
        return frozenset().union(*(part.needs for part in self.parts))

    @property
    def optional(self) -> frozenset[Need]:
        """What no part insists on."""
        first = (part.needs for part in self.parts[:-1])
        return self.rule.optional.difference(*first)

    @property
    def clips(self) -> bool:
        """Whether the rule shortens long updates itself."""
        return self.rule.clips

    def init(self, n: int, d: int) -> PipelineState:
        """The states of the parts."""
        return PipelineState(
            tuple(
                part.init(n, d) if isinstance(part, Memory) else None
                for part in self.parts[:-1]
            ),
            self.rule.init(n, d),
        )

    def with_truth(self, state: PipelineState, truth: Truth) -> PipelineState:
        """The rule's state with what a simulation knows."""
        if not isinstance(self.rule, Informed):
            return state
        return replace(state, rule=self.rule.with_truth(state.rule, truth))

    def decide(
        self, round_: Round, state: PipelineState
    ) -> tuple[Decision, PipelineState]:
        """The rule's decision on AΔ, with weights Aᵀw.

        Nothing is certified: the model of an inner rule is about the mapped updates.

        Raises:
            RuleError: a map is not a finite matrix with a row for each client.
        """
        seen, base = round_, round_.displacements
        A: Array = np.eye(base.n)  # from `base` to what the next part sees
        maps, bases, notes, states = [], [], [], list(state.parts)
        for i, part in enumerate(self.parts[:-1]):
            if isinstance(part, Memory):
                maps.append(A)
                base, states[i] = part.recall(seen, states[i])
                bases.append(base if part.is_step else None)
                A, seen = np.eye(base.n), replace(seen, displacements=base)
            else:
                A = _checked_map(part, part.linear_map(seen), len(A)) @ A
                notes.append(part.note(seen))
                mapped = MappedDisplacements(base, A)
                seen = replace(_merged(seen, len(A)), displacements=mapped)
        decision, following = self.rule.decide(seen, state.rule)
        weights, step = A.T @ decision.weights, decision.step
        for A_before, momenta in zip(reversed(maps), reversed(bases), strict=True):
            if momenta is not None and step is None:
                step = to_host(momenta.combine(weights))
            weights = A_before.T @ weights
        # parts that share one f say the same
        status = decision.status + "".join(
            note for note in dict.fromkeys(notes) if note not in decision.status
        )
        decision = replace(decision, weights=weights, step=step, status=status)
        return decision, PipelineState(tuple(states), following)


_OF_CLIENTS: frozenset[Need] = frozenset(
    {"sizes", "steps", "step_sizes", "losses", "clients", "variate", "truth"}
)
"""What belongs to single clients, or is only known of them."""


def _check_order(parts: tuple[Any, ...]) -> None:
    """Require that each part can be given what it needs after those before it."""
    for i, part in enumerate(parts[:-1]):
        needs = frozenset().union(*(later.needs for later in parts[i + 1 :]))
        if part.merges and needs & _OF_CLIENTS:
            rule = f"without a need of {', '.join(sorted(needs & _OF_CLIENTS))}"
            raise invalid("parts", f"{rule} after {part!r}", repr(parts))
        lost = needs & {"entries", "root", "variate"}
        if isinstance(part, Memory) and not part.is_step and lost:
            rule = f"without a need of {', '.join(sorted(lost))}"
            raise invalid("parts", f"{rule} after {part!r}", repr(parts))


def _merged(round_: Round, m: int) -> Round:
    """The round of m vectors that stand for its clients."""
    n = round_.displacements.n
    if m == n:
        return round_
    ones = np.ones(m, dtype=np.int64)
    cohort = Cohort(np.arange(m), ones, ones, ones, m, round_.cohort.round)
    return replace(
        round_,
        cohort=cohort,
        plan=LocalPlan(np.ones(m)),
        losses=None,
        gradients=None,
        present=n if round_.present is None else round_.present,
    )


def _checked_map(part: PreAggregation, A: Any, n: int) -> Float64[Array, "m n"]:
    """Require a matrix of finite numbers, with a row for each client or fewer."""
    shape = np.shape(A)
    fits = shape == (n, n) or (
        part.merges and len(shape) == 2 and 1 <= shape[0] <= n and shape[1] == n
    )
    if not fits or not np.isfinite(A).all():
        got = "nan or inf" if fits else f"shape {shape}"
        rule = f"`linear_map` must be a finite matrix of shape ({n}, {n}); got {got}"
        raise RuleError(f"{type(part).__name__}: {rule}")
    return np.asarray(A, dtype=np.float64)
