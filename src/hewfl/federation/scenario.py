"""A scenario: faulty clients, assigned by seed and hidden from every algorithm.

    Scenario          the types of faults and attacks, part of a `Federation`
    FaultAssignment   the faulty clients of a run with a seed: simulator and trace only

An algorithm sees displacements, the cohort and the plan. None of them shows which
clients are faulty, and the cohort has the nominal batch sizes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, final, runtime_checkable

import numpy as np

from hewfl.core.array_types import Float, Int64
from hewfl.core.round import Cohort
from hewfl.core.validation import (
    Array,
    Ints,
    PerClient,
    check_fields,
    format_value,
    invalid,
    nonnegative,
    wholes,
)
from hewfl.federation.adversary import Attack, Remembering
from hewfl.federation.attacks import (
    Fault,
    HiddenBatches,
    LabelFault,
    StaleUpdates,
    UpdateFault,
)
from hewfl.federation.rng import SCENARIO, generator

_ASSIGNMENT, _LABELS, _BATCHES, _CLIENT, _COMMON = 0, 1, 2, 3, 4
"""Streams within that of scenarios."""


@runtime_checkable
class Labelled(Protocol):
    """A problem whose samples have class labels, which a scenario may change."""

    @property
    def offsets(self) -> Int64[Ints, " n"]:
        """First sample of each client."""

    @property
    def data_sizes(self) -> Int64[Ints, " n"]:
        """How many samples each client holds."""

    def class_labels(self) -> tuple[Int64[Ints, " m"], int]:
        """A copy of the classes of all samples, and the number of classes.

        Returns:
            The classes, and their number.
        """

    def with_labels(self, labels: Int64[Ints, " m"]) -> Any:
        """The same problem with other classes.

        Args:
            labels: the classes that its samples get.

        Returns:
            Another problem; this one is as it was.
        """


@final
@dataclass(frozen=True, slots=True)
class Scenario:
    """Faults and attacks of some of the clients.

    Attributes:
        faults: each falls on clients of its own; none by default. Attacks act in this
            order: each sees the updates that those before it send.
        objective: the clients whose mean loss is the objective: "honest", or "all"
            with wrong labels included.

    Raises:
        InvalidInputError: a fault is of no known type, or no client is honest.
    """

    faults: tuple[Fault | Attack, ...] = ()
    objective: Literal["honest", "all"] = "honest"

    def __post_init__(self) -> None:
        """Check the types of the faults, and the objective."""
        if not isinstance(self.faults, tuple):
            raise invalid("faults", "a tuple of faults", format_value(self.faults))
        for fault in self.faults:
            given: object = fault
            if isinstance(given, type) or not isinstance(given, Fault | Attack):
                rule = "faults such as RandomLabels(0.25)"
                raise invalid("faults", rule, format_value(fault))
            share = getattr(fault, "share", 0.0)
            if nonnegative(f"the share of {type(fault).__name__}", share) >= 1:
                rule = "of shares from 0 to below 1"
                raise invalid("faults", rule, format_value(fault))
        if sum(isinstance(fault, HiddenBatches) for fault in self.faults) > 1:
            raise invalid("faults", "of one HiddenBatches at most", "two")
        check_fields(self)

    def assign(self, seed: int, batches: Int64[Ints, " n"]) -> "FaultAssignment":
        """The faulty clients of a run, from the seed alone.

        Args:
            seed: of the run.
            batches: nominal b_i.

        Returns:
            The faulty clients, and the true batch sizes.

        Raises:
            InvalidInputError: no client is honest, or a fault falls on no client.
        """
        n, first = len(batches), 0
        order = generator(seed, SCENARIO, _ASSIGNMENT).permutation(n)
        faulty: dict[int, LabelFault | UpdateFault | Attack] = {}
        true = batches
        for fault in self.faults:
            if isinstance(fault, HiddenBatches):
                true = fault.draw(n, generator(seed, SCENARIO, _BATCHES))
                continue
            count = round(fault.share * n)
            if count == 0 and fault.share > 0:
                rule = f"on at least one of {n} clients, or of share 0"
                got = f"{format_value(fault)}, which is on none"
                raise invalid("faults", rule, got)
            if first + count >= n:
                raise invalid("faults", f"such that one of {n} is honest", self.faults)
            chosen = order[first : first + count]
            faulty |= dict.fromkeys(sorted(map(int, chosen)), fault)
            first += count
        return FaultAssignment(self, seed, true, faulty)


@final
@dataclass(frozen=True, slots=True, eq=False)
class FaultAssignment:
    """The true quality of the clients of a run.

    Attributes:
        scenario: of the run.
        seed: of the run.
        batches: true b_i.
        faulty: faulty clients and their faults or attacks.
    """

    scenario: Scenario
    seed: int
    batches: Int64[Ints, " n"]
    faulty: Mapping[int, LabelFault | UpdateFault | Attack]

    @property
    def honest(self) -> Int64[Ints, " h"]:
        """Clients without a fault."""
        clients = np.arange(len(self.batches))
        return np.setdiff1d(clients, np.array(sorted(self.faulty), dtype=np.int64))

    @property
    def evaluated_clients(self) -> Int64[Ints, " k"]:
        """Clients whose losses make the objective."""
        whole = self.scenario.objective == "all"
        return np.arange(len(self.batches)) if whole else self.honest

    @property
    def quality(self) -> PerClient:
        """True b_i of honest clients, zero of faulty ones: what oracle rules use."""
        quality = np.zeros(len(self.batches))
        quality[self.honest] = self.batches[self.honest]
        return quality

    @property
    def attacks(self) -> tuple[tuple[int, Attack, tuple[int, ...]], ...]:
        """Attacks: place in the scenario, the attack, its clients, increasing."""
        return tuple(
            (k, fault, clients)
            for k, fault in enumerate(self.scenario.faults)
            if isinstance(fault, Attack)
            and fault not in self.scenario.faults[:k]
            and (clients := tuple(i for i, f in self.faulty.items() if f == fault))
        )

    @property
    def attackers(self) -> tuple[int, ...]:
        """Clients that attack, increasing."""
        return tuple(sorted(i for _, _, clients in self.attacks for i in clients))

    def first_memory(self, d: int) -> tuple[Any, ...]:
        """The memory of each attack before the first round, None where it has none."""
        n = len(self.batches)
        return tuple(
            attack.init(n, d) if isinstance(attack, Remembering) else None
            for _, attack, _ in self.attacks
        )

    @property
    def stale(self) -> tuple[int, ...]:
        """Clients that send old updates again; the state remembers these updates."""
        faulty = self.faulty.items()
        return tuple(i for i, fault in faulty if isinstance(fault, StaleUpdates))

    @property
    def corrupts(self) -> bool:
        """Whether some client changes its update."""
        return any(isinstance(f, UpdateFault) for f in self.faulty.values())

    @property
    def uncertified(self) -> str:
        """Why a certificate that assumes honest clients is void; empty if it is not."""
        if self.corrupts or self.attacks:
            return "some updates are not the clients' own"
        if len(self.evaluated_clients) < len(self.batches):
            return "the objective leaves out some clients"
        if any(isinstance(fault, HiddenBatches) for fault in self.scenario.faults):
            return "batch sizes are not those declared"
        return ""

    def trace_fields(self) -> dict[str, tuple[int, ...]]:
        """The scenario in the trace: who is faulty, who attacks, hidden batch sizes."""
        fields = {}
        if self.faulty:
            fields["faulty"] = tuple(sorted(self.faulty))
        if self.attackers:
            fields["attackers"] = self.attackers
        if any(isinstance(fault, HiddenBatches) for fault in self.scenario.faults):
            fields["batch_sizes"] = tuple(map(int, self.batches))
        return fields

    def true_cohort(self, cohort: Cohort) -> Cohort:
        """The cohort with the true batch sizes."""
        return replace(cohort, batch_sizes=self.batches[cohort.clients])

    def relabel(self, problem: Any) -> Any:
        """The problem with the labels of the faulty clients."""
        wrong = {i: f for i, f in self.faulty.items() if isinstance(f, LabelFault)}
        if not wrong:
            return problem
        if not isinstance(problem, Labelled):
            rule = "on labels of a problem that has classes"
            raise invalid("faults", rule, type(problem).__name__)
        spans = {
            i: (int(problem.offsets[i]), int(problem.data_sizes[i])) for i in wrong
        }
        _check_disjoint(spans, problem)
        labels, classes = problem.class_labels()
        for i, fault in wrong.items():
            here = slice(spans[i][0], sum(spans[i]))
            rng = generator(self.seed, SCENARIO, _LABELS, i)
            wrong_labels = fault.relabel(labels[here].copy(), classes, rng)
            labels[here] = _checked_labels(fault, wrong_labels, spans[i][1], classes)
        return problem.with_labels(labels)

    def corrupt(
        self,
        displacements: Float[Array, "entries s d"],
        cohort: Cohort,
        last_sent: Float[Array, "entries k d"] | None = None,
    ) -> tuple[Float[Array, "entries s d"], Float[Array, "entries k d"] | None]:
        """The vectors that the server receives, and the new memory of stale clients.

        Args:
            displacements: of honest branches.
            cohort: their clients.
            last_sent: the last vectors of stale clients, NaN before the first one.
        """
        t, sent = cohort.round, displacements.copy()
        after = None if last_sent is None else last_sent.copy()
        for place, i in enumerate(map(int, cohort.clients)):
            fault = self.faulty.get(i)
            if not isinstance(fault, UpdateFault):
                continue
            client = generator(self.seed, SCENARIO, _CLIENT, t, i)
            common = generator(self.seed, SCENARIO, _COMMON)
            honest = displacements[:, place]
            answer = fault.corrupt(honest.copy(), t, client, common)
            rows = _checked_rows(fault, answer, honest)
            if isinstance(fault, StaleUpdates) and after is not None:
                k = self.stale.index(i)
                old = after[:, k]
                is_fresh = np.isnan(old[:, :1]) | (t % fault.every == 0)
                rows = np.where(is_fresh, rows, old).astype(rows.dtype)
                after[:, k] = rows
            sent[:, place] = rows
        return sent, after


def _checked_labels(
    fault: LabelFault, labels: Any, m: int, classes: int
) -> Int64[Ints, " m"]:
    """The labels of a faulty client, which must be classes of the problem."""
    name = f"the labels of {type(fault).__name__}"
    values = wholes(name, labels)
    if values.shape != (m,) or values.max(initial=0) >= classes:
        rule = f"{m} whole numbers below {classes}"
        raise invalid(name, rule, format_value(labels))
    return values.astype(np.int64)


def _checked_rows(
    fault: Any, rows: Any, honest: Float[Array, "entries d"]
) -> Float[Array, "entries d"]:
    """The updates of a faulty client, of the shape of the honest ones."""
    values = np.asarray(rows)
    if values.shape != honest.shape or values.dtype.kind not in "iuf":
        rule = f"real numbers of shape {honest.shape}"
        got = f"dtype {values.dtype}, shape {values.shape}"
        raise invalid(f"the updates of {type(fault).__name__}", rule, got)
    return values.astype(honest.dtype, copy=False)


def _check_disjoint(spans: Mapping[int, tuple[int, int]], problem: Any) -> None:
    """Require that clients with wrong labels share no sample with others."""
    begin, end = problem.offsets, problem.offsets + problem.data_sizes
    for lo, m in spans.values():
        sharing = np.flatnonzero((begin < lo + m) & (end > lo))
        if len(sharing) > 1:
            rule = "on labels of clients that share no samples"
            raise invalid("faults", rule, f"clients {sharing[:2].tolist()}, which do")
