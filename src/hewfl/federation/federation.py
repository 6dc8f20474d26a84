"""The federation of a run: the clients of each round, their local steps, the root set.

Everything here is a function of (seed, round) alone. So all methods of a comparison
have the same clients with the same work, and so has a resumed run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, final

import numpy as np

from hewfl.core.array_types import Float, Float64, Int64
from hewfl.core.round import Cohort
from hewfl.core.validation import (
    Array,
    Count,
    Ints,
    check_fields,
    format_value,
    invalid,
    wholes,
)
from hewfl.federation.local_steps import (
    LocalSteps,
    check_wholes,
)
from hewfl.federation.participation import (
    AnyParticipation,
    FullParticipation,
    History,
    draw_clients,
    draw_history,
)
from hewfl.federation.rng import ROOT, generator
from hewfl.federation.scenario import Labelled, Scenario


def _classes(name: str, value: Sequence[int]) -> None:
    """Require class numbers, none of them twice."""
    given: object = value
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise invalid(name, "a list of classes", format_value(value))
    if len(set(wholes(name, value, least=0).tolist())) < len(value):
        raise invalid(name, "a list of different classes", list(value))


@final
@dataclass(frozen=True, slots=True)
class RootSet:
    """Samples that the server owns and trusts, for rules that need a root gradient.

    They are drawn without replacement from the samples of all clients, with their true
    labels, as in [Cao2021]; the clients keep them. They depend on the seed alone. The
    gradient of a round is the mean of the problem's minibatch gradients on them at the
    model of the round, the same samples in every round.

    Attributes:
        size: number of samples; fewer where the clients hold fewer.
        without: classes that the server has no samples of.
    """

    size: Count = 100
    without: Annotated[Sequence[int], _classes] = ()

    def __post_init__(self) -> None:
        """Check ranges; classes are kept as a tuple, so that records compare."""
        check_fields(self)
        object.__setattr__(self, "without", tuple(map(int, self.without)))

    def draw(self, seed: int, problem: Any) -> "RootSample":
        """The root samples of a run.

        Args:
            seed: of the run.
            problem: with the clients' true labels.

        Returns:
            The samples, by client.

        Raises:
            InvalidInputError: the problem has no such classes, or no sample is left.
        """
        sizes = np.asarray(problem.data_sizes, dtype=np.int64)
        client = np.repeat(np.arange(len(sizes)), sizes)
        first = np.asarray(problem.offsets) - (np.cumsum(sizes) - sizes)
        rows = np.arange(len(client)) + first[client]
        # a sample that several clients share is drawn as one
        rows, places = np.unique(rows, return_index=True)
        client = client[places]
        if len(self.without):
            if not isinstance(problem, Labelled):
                rule = "left out for a problem without classes"
                raise invalid("root.without", rule, list(self.without))
            labels, classes = problem.class_labels()
            if max(self.without) >= classes:
                raise invalid("root.without", f"below {classes}", list(self.without))
            kept = ~np.isin(labels[rows], list(self.without))
            rows, client = rows[kept], client[kept]
        if len(rows) == 0:
            rule = "such that a sample is left"
            raise invalid("root.without", rule, list(self.without))
        size = min(self.size, len(rows))
        drawn = np.sort(generator(seed, ROOT).choice(len(rows), size, replace=False))
        return RootSample(problem, rows[drawn], client[drawn])


@final
@dataclass(frozen=True, slots=True, eq=False)
class RootSample:
    """The root samples of a run.

    Attributes:
        problem: that they are samples of, with true labels.
        rows: of its pooled arrays.
        clients: the client whose loss each is a sample of.
    """

    problem: Any
    rows: Int64[Ints, " k"]
    clients: Int64[Ints, " k"]

    def gradients(self, models: Float[Array, "models d"]) -> Float64[Array, "models d"]:
        """The mean gradient on the samples at each model."""
        _, counts = np.unique(self.clients, return_counts=True)
        samples = np.zeros((len(counts), counts.max()), dtype=np.int64)
        order, start = np.argsort(self.clients, kind="stable"), 0
        for a, count in enumerate(counts):
            mine = self.rows[order[start : start + count]]
            samples[a] = mine[0]  # padding must be a valid row
            samples[a, :count] = mine
            start += count
        points = np.repeat(models[:, None], len(counts), axis=1)
        each = self.problem.minibatch_gradients(points, samples, counts)
        shares = counts / counts.sum()
        means = np.einsum("a,mad->md", shares, np.asarray(each, dtype=np.float64))
        return np.asarray(means)


@final
@dataclass(frozen=True, slots=True)
class Federation:
    """The clients of a run: local steps, batch sizes, participation, faults.

    Args:
        local_steps: sampler of the local steps H_i.
        batch_size: b_i, one number or one per client.
        participation: sampler of the clients of a round.
        scenario: faults of some of the clients, hidden from every algorithm.
        root: samples of the server; None: it has none, and rules that need a root
            gradient are refused.

    Raises:
        InvalidInputError: an argument is of a wrong type, or out of its range.
    """

    local_steps: LocalSteps
    batch_size: int | Sequence[int] = 32
    participation: AnyParticipation = field(default_factory=FullParticipation)
    scenario: Scenario = field(default_factory=Scenario)
    root: RootSet | None = None

    def __post_init__(self) -> None:
        """Check types and ranges."""
        if isinstance(self.local_steps, type) or not isinstance(
            self.local_steps, LocalSteps
        ):
            rule = "a local-step sampler, such as FixedSteps(4)"
            raise invalid("local_steps", rule, format_value(self.local_steps))
        who = self.participation
        if isinstance(who, type) or not isinstance(who, AnyParticipation):
            rule = "a client sampler, such as SampledParticipation(2)"
            raise invalid("participation", rule, format_value(who))
        check_wholes("batch_size", self.batch_size)
        if not isinstance(self.scenario, Scenario):
            rule = "a Scenario, such as Scenario((RandomLabels(0.25),))"
            raise invalid("scenario", rule, format_value(self.scenario))
        if not isinstance(self.root, RootSet | None):
            rule = "a RootSet, such as RootSet(100), or None"
            raise invalid("root", rule, format_value(self.root))

    def past(self, seed: int, t: int, n: int) -> History:
        """The participants of the rounds before t, from the seed alone.

        Args:
            seed: of the run.
            t: the round.
            n: number of clients.

        Returns:
            The history; empty for a sampler that does not depend on it.
        """
        return draw_history(self.participation, seed, t, n)

    def batches(self, n: int) -> Int64[Ints, " n"]:
        """The nominal b_i of n clients.

        Args:
            n: number of clients.

        Returns:
            One batch size for each.

        Raises:
            InvalidInputError: neither one nor n numbers are given.
        """
        given = np.asarray(self.batch_size, dtype=np.int64)
        if given.ndim and given.shape != (n,):
            raise invalid("batch_size", f"one number or {n} of them", given.tolist())
        return np.broadcast_to(given, n).copy()

    def cohort(
        self,
        seed: int,
        t: int,
        sizes: Int64[Ints, " n"],
        history: History | None = None,
    ) -> Cohort:
        """The clients of round t, from (seed, t) alone.

        Args:
            seed: of the run.
            t: the round.
            sizes: m_i of all clients.
            history: of the rounds before, drawn again by default.

        Returns:
            The participants with their steps, batch sizes and data sizes.

        Raises:
            InvalidInputError: a sampler returns invalid numbers.
        """
        n = len(sizes)
        batches = self.batches(n)
        steps = np.asarray(self.local_steps.draw(seed, t, sizes, batches))
        if steps.shape != (n,) or steps.dtype.kind not in "iu" or steps.min() < 1:
            raise invalid("local_steps", f"{n} whole numbers of at least 1", steps)
        clients = draw_clients(self.participation, seed, t, n, history)
        H, b, m = steps[clients], batches[clients], sizes[clients].copy()
        return Cohort(clients, H, b, m, n, t)
