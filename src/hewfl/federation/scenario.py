"""A scenario: which clients are not what they seem, drawn by seed and told to no rule.

    scenario   what can be wrong, part of a `Federation`
    roles   who it falls on in a run with a seed: known to the simulator and the trace

A rule sees displacements, the cohort and the plan; none of them says who is bad, and
the cohort tells the batch size that the server believes in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, final, runtime_checkable

import numpy as np

from hewfl.core.array_types import Float, Int64
from hewfl.core.round import Cohort
from hewfl.core.validation import Array, Ints, PerClient, check_fields, invalid, shown
from hewfl.federation.attacks import (
    Fault,
    HiddenBatches,
    LabelFault,
    StaleUpdates,
    UpdateFault,
)
from hewfl.federation.rng import WORLD, generator

_ROLES, _LABELS, _BATCHES, _OWN, _COMMON = 0, 1, 2, 3, 4
"""Streams within that of scenarios."""


@runtime_checkable
class Labelled(Protocol):
    """A problem whose samples have classes, which a scenario may get wrong."""

    @property
    def offsets(self) -> Int64[Ints, " n"]:
        """First sample of each client."""

    @property
    def data_sizes(self) -> Int64[Ints, " n"]:
        """How many samples each client holds."""

    def class_labels(self) -> tuple[Int64[Ints, " m"], int]:
        """Classes of all samples, in memory of their own, and how many there are.

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
    """What is wrong with some of the clients.

    Attributes:
        faults: laws, each on clients of its own; none by default.
        objective: whose mean loss the run measures: of the `honest` clients, or of
            `all`, bad labels included.

    Raises:
        InvalidInputError: a fault is none of the known kinds, or the shares leave
            nobody honest.
    """

    faults: tuple[Fault, ...] = ()
    objective: Literal["honest", "all"] = "honest"

    def __post_init__(self) -> None:
        """Check that there are laws, and what is measured."""
        if not isinstance(self.faults, tuple):
            raise invalid("faults", "a tuple of laws", shown(self.faults))
        for fault in self.faults:
            if isinstance(fault, type) or not isinstance(fault, Fault):
                rule = "laws such as RandomLabels(0.25)"
                raise invalid("faults", rule, shown(fault))
        if sum(isinstance(fault, HiddenBatches) for fault in self.faults) > 1:
            raise invalid("faults", "of one HiddenBatches at most", "two")
        check_fields(self)

    def roles(self, seed: int, batches: Int64[Ints, " n"]) -> "FaultAssignment":
        """Who plays what in a run: from the seed alone.

        Args:
            seed: of the run.
            batches: b_i that the server believes in.

        Returns:
            Who is bad and how, and the true batch sizes.

        Raises:
            InvalidInputError: the laws leave nobody honest.
        """
        n, first = len(batches), 0
        order = generator(seed, WORLD, _ROLES).permutation(n)
        bad: dict[int, LabelFault | UpdateFault] = {}
        true = batches
        for fault in self.faults:
            if isinstance(fault, HiddenBatches):
                true = fault.drawn(n, generator(seed, WORLD, _BATCHES))
                continue
            count = round(fault.share * n)
            if first + count >= n:
                raise invalid("faults", f"such that one of {n} is honest", self.faults)
            chosen = order[first : first + count]
            bad |= dict.fromkeys(sorted(map(int, chosen)), fault)
            first += count
        return FaultAssignment(self, seed, true, bad)


@final
@dataclass(frozen=True, slots=True, eq=False)
class FaultAssignment:
    """The clients of a run as they truly are.

    Attributes:
        scenario: that they live in.
        seed: of the run.
        batches: true b_i.
        bad: bad clients and what is wrong with each.
    """

    scenario: Scenario
    seed: int
    batches: Int64[Ints, " n"]
    bad: Mapping[int, LabelFault | UpdateFault]

    @property
    def honest(self) -> Int64[Ints, " h"]:
        """Those who are not bad."""
        everybody = np.arange(len(self.batches))
        return np.setdiff1d(everybody, np.array(sorted(self.bad), dtype=np.int64))

    @property
    def measured(self) -> Int64[Ints, " k"]:
        """Those whose losses make the objective."""
        whole = self.scenario.objective == "all"
        return np.arange(len(self.batches)) if whole else self.honest

    @property
    def quality(self) -> PerClient:
        """True b_i of honest clients, zero of bad ones: what yardsticks are told."""
        found = np.zeros(len(self.batches))
        found[self.honest] = self.batches[self.honest]
        return found

    @property
    def stale(self) -> tuple[int, ...]:
        """Those who send old updates again, which somebody must keep."""
        bad = self.bad.items()
        return tuple(i for i, fault in bad if isinstance(fault, StaleUpdates))

    def note(self) -> dict[str, tuple[int, ...]]:
        """What the trace says of the scenario; nothing where all is as it seems."""
        found = {}
        if self.bad:
            found["bad"] = tuple(sorted(self.bad))
        if any(isinstance(fault, HiddenBatches) for fault in self.scenario.faults):
            found["batch_sizes"] = tuple(map(int, self.batches))
        return found

    def true(self, cohort: Cohort) -> Cohort:
        """The cohort with the batch sizes that clients really use."""
        return replace(cohort, batch_sizes=self.batches[cohort.clients])

    def relabelled(self, problem: Any) -> Any:
        """The problem with the labels that bad clients have."""
        wrong = {i: f for i, f in self.bad.items() if isinstance(f, LabelFault)}
        if not wrong:
            return problem
        if not isinstance(problem, Labelled):
            rule = "on labels of a problem that has classes"
            raise invalid("faults", rule, type(problem).__name__)
        spans = {
            i: (int(problem.offsets[i]), int(problem.data_sizes[i])) for i in wrong
        }
        _check_own(spans, problem)
        labels, classes = problem.class_labels()
        for i, fault in wrong.items():
            here = slice(spans[i][0], sum(spans[i]))
            rng = generator(self.seed, WORLD, _LABELS, i)
            labels[here] = fault.relabelled(labels[here], classes, rng)
        return problem.with_labels(labels)

    def sent(
        self,
        displacements: Float[Array, "entries s d"],
        cohort: Cohort,
        kept: Float[Array, "entries k d"] | None = None,
    ) -> Float[Array, "entries s d"]:
        """What the server hears in place of honest displacements.

        Args:
            displacements: changed in place, and returned.
            cohort: who they are of.
            kept: what stale clients sent last, NaN before they ever did; changed in
                place.
        """
        t = cohort.round
        for place, i in enumerate(map(int, cohort.clients)):
            fault = self.bad.get(i)
            if not isinstance(fault, UpdateFault):
                continue
            own = generator(self.seed, WORLD, _OWN, t, i)
            common = generator(self.seed, WORLD, _COMMON)
            rows = fault.sent(displacements[:, place], t, own, common)
            if isinstance(fault, StaleUpdates) and kept is not None:
                old = kept[:, self.stale.index(i)]
                works = np.isnan(old[:, :1]) | (t % fault.every == 0)
                rows = np.where(works, rows, old).astype(rows.dtype)
                old[:] = rows
            displacements[:, place] = rows
        return displacements


def _check_own(spans: Mapping[int, tuple[int, int]], problem: Any) -> None:
    """Require that clients with wrong labels share no sample with others."""
    begin, end = problem.offsets, problem.offsets + problem.data_sizes
    for lo, m in spans.values():
        meets = np.flatnonzero((begin < lo + m) & (end > lo))
        if len(meets) > 1:
            rule = "on labels of clients that share no samples"
            raise invalid("faults", rule, f"clients {meets[:2].tolist()}, which do")
