"""What a theorem takes: the constants of a federation, and what else is known of it.

`System` holds L, R and the constants of the clients, for one configuration or many.
`Case` adds the start and the constants that single theorems need.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from hewfl.core.array_types import Bool, Float64
from hewfl.core.broadcasting import broadcasting
from hewfl.core.records import ClientProfile, ProblemBounds
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Ints,
    Mask,
    Nonnegatives,
    Positives,
    Reals,
    as_float64,
    broadcast,
    check_fields,
    invalid,
    nonnegatives,
    positives,
    wholes,
)

if TYPE_CHECKING:
    Sampling = Literal["one objective", "fresh draws", "fixed shards"]
else:  # run-time type checks pass a wrong name on to the error that lists the choices
    Sampling = str
_SAMPLINGS = {"one objective": True, "fresh draws": True, "fixed shards": False}


@final
@dataclass(frozen=True, slots=True, eq=False)
class System:
    """Constants of the objective and of all n clients.

    Leading axes are configurations, so that one call evaluates a statement for all of
    them; the last axis of the clients' fields is the client. Fields are stored as
    float64 arrays, broadcast against each other.

    Attributes:
        smoothness: L > 0, shape (*c).
        radius: R > 0, shape (*c).
        horizon: H_i ≥ 1, whole numbers, shape (*c, n).
        batch_size: b_i ≥ 1, whole numbers, shape (*c, n).
        variance: v_i² ≥ 0 or proxies not below it, shape (*c, n).
        count: how many identical clients each entry stands for, shape (kinds); None if
            an entry is one client. With counts, weights have one entry for each kind:
            the total weight of its clients, who share it equally.
    """

    smoothness: ArrayLike
    radius: ArrayLike
    horizon: ArrayLike
    batch_size: ArrayLike
    variance: ArrayLike
    count: ArrayLike | None = None

    def __post_init__(self) -> None:
        """Check ranges; store broadcast float64 arrays."""
        L = positives("smoothness", self.smoothness)
        R = positives("radius", self.radius)
        H = wholes("horizon", self.horizon, least=1)
        b = wholes("batch_size", self.batch_size, least=1)
        v2 = nonnegatives("variance", self.variance)
        values = {"smoothness": L[..., None], "radius": R[..., None]}
        values |= {"horizon": H, "batch_size": b, "variance": v2}
        fields = broadcast(values, rule="arrays that broadcast, clients last")
        for name, value in fields.items():
            if not value.size:
                raise invalid(", ".join(fields), "nonempty", value.shape)
            scalar = name in ("smoothness", "radius")
            object.__setattr__(self, name, value[..., 0] if scalar else value)
        if self.count is not None:
            m = np.atleast_1d(wholes("count", self.count, least=1))
            if m.shape != (self.kinds,):
                raise invalid("count", f"one for each of {self.kinds} kinds", m.shape)
            object.__setattr__(self, "count", m)

    @property
    def kinds(self) -> int:
        """Entries of the clients' fields: kinds of clients, or clients."""
        return int(np.asarray(self.horizon).shape[-1])

    @property
    def n(self) -> int:
        """Number of clients."""
        return self.kinds if self.count is None else int(np.asarray(self.count).sum())

    @property
    def multiplicity(self) -> Reals:
        """How many clients each entry stands for; 1 where an entry is a client."""
        return np.ones(()) if self.count is None else np.asarray(self.count)

    @property
    def L(self) -> Float64[Array, "*c"]:  # noqa: N802 - the paper's letter
        """Smoothness L."""
        return np.asarray(self.smoothness)

    @property
    def R(self) -> Float64[Array, "*c"]:  # noqa: N802 - the paper's letter
        """Radius R."""
        return np.asarray(self.radius)

    @property
    def cap(self) -> Float64[Array, "*c"]:
        """f̄ = LR²/2, the largest gap on the ball (lem:gap)."""
        return np.asarray(self.L * self.R * self.R / 2)

    @property
    def noise(self) -> Float64[Array, "*c n"]:
        """M_i = v_i²/(H_i b_i)."""
        H, b = np.asarray(self.horizon), np.asarray(self.batch_size)
        return np.asarray(np.asarray(self.variance) / (H * b))


@broadcasting
def system_of(profiles: ClientProfile, bounds: ProblemBounds, *, n: int = 1) -> System:
    """The system of the solvers' records; n copies where a profile is scalar."""
    n = int(wholes("n", n, least=1))
    fields = (profiles.horizon, profiles.batch_size, profiles.variance)
    arrays = np.broadcast_arrays(*(as_float64("profiles", f) for f in fields))
    H, b, v2 = (np.broadcast_to(a, (n,)) if a.ndim == 0 else a for a in arrays)
    return System(bounds.smoothness, bounds.radius, H, b, v2)


def is_homogeneous(sampling: Sampling, *, printed: bool = False) -> bool:
    """Whether plain branches see ∇F itself (lem:postlocal-hom-sufficient).

    "one objective": F_i = F for all clients. "fresh draws": every batch is drawn anew
    from the pool that F averages. "fixed shards": the pool is shuffled and dealt once;
    given its shard a client sees ∇F_i ≠ ∇F, and no number of rounds averages that out
    (erratum E-14). The printed lemma counts shards as sufficient.
    """
    if sampling not in _SAMPLINGS:
        raise invalid("sampling", f"one of {', '.join(_SAMPLINGS)}", repr(sampling))
    return printed or _SAMPLINGS[sampling]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What is known of a federation; a field that is None is not known.

    Attributes:
        system: the constants.
        gap: g_0 or a bound on it; by default f̄, which lem:gap always allows. A larger
            bound is read as f̄.
        tracking: bound on E‖c_i,0 − ∇F_i(x_0)‖²; by default max v_i²/b_i, true if every
            c_i,0 is a minibatch gradient at x_0. It depends on the data if c_i,0 = 0.
        pl_constant: μ of ‖∇F‖² ≥ 2μ(F − F*).
        similarity: S ≥ ‖∇²F_i − ∇²F‖.
        hessian_lipschitz: Lipschitz constant of the Hessians.
        sampling: the source of the batches; "fixed shards" assumes nothing.
        active: clients that take part in a round; by default all.
        dimension: d, parameters of the model, to count the numbers sent.
        rotation: the clients of each round, by number from 0, in place of `active`;
            after the last round the first one follows.
        absence: K, the most rounds in a row that any client is absent where `active` is
            below n; by default there is no limit.
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
    rotation: tuple[tuple[int, ...], ...] | None = None
    absence: int | None = None

    def __post_init__(self) -> None:
        """Check ranges, and that there are no more participants than clients."""
        is_homogeneous(self.sampling)
        check_fields(self)
        n, S = self.system.n, self.active
        if S is not None and not 1 <= S <= n:
            raise invalid("active", f"between 1 and the number of clients, {n}", S)
        if self.absence is not None:
            _check_absence(self.absence, self.participants, n)
        if self.rotation is not None:
            self._check_rotation(self.rotation)

    def _check_rotation(self, rotation: tuple[tuple[int, ...], ...]) -> None:
        n = self.system.n
        require_single_clients(self.system)
        if self.active is not None or self.absence is not None:
            raise invalid("rotation", "given without `active` and `absence`", rotation)
        if not any(rotation):
            raise invalid("rotation", "rounds, some of them with clients", rotation)
        for clients in rotation:
            if len(set(clients)) < len(clients) or not set(clients) <= set(range(n)):
                rule = f"of rounds with different clients from 0 to {n - 1}"
                raise invalid("rotation", rule, list(clients))

    @property
    def participants(self) -> int:
        """S, the clients that take part in a round; of a rotation, the most."""
        if self.rotation is not None:
            return max(map(len, self.rotation))
        return self.system.n if self.active is None else self.active

    @property
    def is_partial(self) -> bool:
        """Whether some client is absent in some round."""
        if self.rotation is not None:
            return min(map(len, self.rotation)) < self.system.n
        return self.participants < self.system.n

    @property
    def start(self) -> tuple[Reals, Reals]:
        """Bounds on gap and tracking error at the start; the gap is at most f̄."""
        v2, b = np.asarray(self.system.variance), np.asarray(self.system.batch_size)
        cap = self.system.cap
        gap = cap if self.gap is None else np.minimum(self.require("gap"), cap)
        tracking = (
            (v2 / b).max(-1) if self.tracking is None else self.require("tracking")
        )
        return np.asarray(gap), np.asarray(tracking)

    def require(self, name: str) -> Reals:
        """The value of a field that a statement needs, which must not be None."""
        value = getattr(self, name)
        if value is None:
            raise invalid(name, "given", value)
        return as_float64(name, value)


def _check_absence(absence: int, active: int, n: int) -> None:
    """Require that S clients a round can leave no client out for more than K."""
    least = -(-n // active) - 1
    if absence < least:
        rule = f"at least {least}, where {active} of {n} clients take part in a round"
        raise invalid("absence", rule, absence)


def require_single_clients(system: System) -> None:
    """Require a system whose entries are single clients."""
    if system.count is not None:
        rule = "without `count`: this statement distinguishes single clients"
        raise invalid("system", rule, f"{system.kinds} kinds of client")


def client_mask(system: System, active: ArrayLike) -> Bool[Mask, "*c n"]:
    """Which clients take part: booleans, clients last.

    A number is no mask: neither a count of clients nor a list of their indices.
    """
    S = np.asarray(active)
    require_single_clients(system)
    if S.dtype != np.bool_ or S.shape[-1:] != (system.n,):
        rule = f"booleans, one for each of {system.n} clients"
        raise invalid("active", rule, f"{S.dtype} of shape {S.shape}")
    return S


def group_clients(system: System) -> System:
    """The system with identical clients counted instead of listed, in first order.

    Bounds that give identical clients equal weight do not change. A system without
    identical clients is returned as it is.
    """
    place, kind = _kinds_of(system)
    if place.size == system.kinds:
        return system
    m = np.bincount(kind, np.broadcast_to(system.multiplicity, kind.shape))
    fields = (system.horizon, system.batch_size, system.variance)
    H, b, v2 = (np.asarray(field)[..., place] for field in fields)
    return System(system.L, system.R, H, b, v2, m)


def coarsen(system: System, most: int) -> System:
    """A system of about `most` kinds, none of them better than those they replace.

    A kind stands for clients of similar H, b and M: it has their longest horizon and
    their largest M, with which every bound grows. So what is certified for it is
    certified for them (a proxy not below the variance). A system with no more kinds,
    or of several configurations, is returned as it is.
    """
    if system.kinds <= most or system.cap.ndim:
        return system
    H, b = np.asarray(system.horizon), np.asarray(system.batch_size)
    side = max(2, int(most ** (1 / 3)))
    h, s = _bin_index(H, side), _bin_index(b, side)
    rest = max(2, most // (np.unique(h).size * np.unique(s).size))
    with np.errstate(divide="ignore"):
        label = (h * side + s) * rest + _bin_index(system.noise, rest)
    label, cell = np.unique(label, return_inverse=True)
    tops = [np.zeros(label.size) for _ in range(3)]
    for top, value in zip(tops, (H, b, system.noise), strict=True):
        np.maximum.at(top, cell, value)
    longest, batch, noise = tops
    m = np.bincount(cell, np.broadcast_to(system.multiplicity, cell.shape))
    variance = noise * longest * batch * (1 + 2.0**-50)  # rounding must not lower M
    return System(system.L, system.R, longest, batch, variance, m)


def _kinds_of(system: System) -> tuple[Ints, Ints]:
    """Where each kind of client first appears, and the kind of every client."""
    fields = (system.horizon, system.batch_size, system.variance)
    rows = [np.reshape(f, (-1, system.kinds)) for f in fields]
    # rows with a single value distinguish no clients
    differ = (row[(row != row[:, :1]).any(1)] for row in rows)
    keys = np.concatenate([rows[0][:1], *differ])
    order = np.lexsort(keys)
    sorted_keys = keys[:, order]
    new = np.r_[True, (sorted_keys[:, 1:] != sorted_keys[:, :-1]).any(0)]
    label = np.empty(system.kinds, dtype=np.int64)
    label[order] = np.cumsum(new) - 1
    first = order[new]  # lexsort is stable: the first of each kind comes first
    rank = np.argsort(first)
    renamed = np.empty_like(rank)
    renamed[rank] = np.arange(rank.size)
    return first[rank], renamed[label]


def _bin_index(values: Array, bins: int) -> Ints:
    """Bins of about equal logarithmic width; exact where there are few values."""
    levels, index = np.unique(values, return_inverse=True)
    if levels.size <= bins:
        return index
    x = np.log(np.maximum(levels, levels[levels > 0].min()))
    width = (x[-1] - x[0]) / bins
    cells: Ints = np.minimum(((x - x[0]) / width).astype(np.int64), bins - 1)
    return cells[index]
