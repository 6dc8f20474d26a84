"""A method in three parts: local work, an aggregator, and a server step.

    local work     what clients do: step sizes, proximal term, control variates
    aggregator     weights, or a step, from the updates that arrived
    server step    what the server does with the step: momentum, Adam, averages

A `Method` implements the contract of transports (`hewfl.core.algorithm.Algorithm`), as
the paper's Algorithms 1 to 3 do, which stay whole.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, final, runtime_checkable

import numpy as np

from hewfl.aggregators.aggregator import Aggregator
from hewfl.core.algorithm import (
    Demands,
    FirstGradients,
    Informed,
    Modelled,
    RoundModel,
    Traffic,
    Truth,
)
from hewfl.core.array_types import Float64
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import (
    Array,
    BelowOne,
    Nonnegative,
    Schedule,
    Validated,
    at_round,
    check_fields,
    format_value,
    invalid,
)
from hewfl.displacements.control_variates import (
    Start,
    Variates,
    correction,
    start_variates,
)
from hewfl.server.server_step import ServerStep

Unit = Literal["steps", "epochs"]
"""What local work is counted in."""


@runtime_checkable
class LocalWork(Protocol):
    """What clients do in a round, decided by the server or by the clients."""

    @property
    def variates(self) -> Start | None:
        """Where control variates start; None without them."""

    @property
    def is_shared(self) -> bool:
        """Whether a total step, one number for all, travels to the clients."""

    @property
    def is_planned(self) -> bool:
        """Whether the server plans the local steps."""

    def plan(self, cohort: Cohort, variates: Variates | None) -> LocalPlan:
        """The instructions for the clients of a round.

        Args:
            cohort: the clients of the round.
            variates: control variates, None without them.

        Returns:
            Step sizes, a correction, a proximal term.
        """

    def as_counted(self, round_: Round) -> Round:
        """The round with step sizes in the unit of local work.

        Args:
            round_: as it arrived.

        Returns:
            The round that the aggregator sees.
        """


@final
@dataclass(frozen=True, slots=True)
class LocalSGD(Validated):
    """Local steps of SGD: y ← y − η_i (g − correction_i + μ (y − x)).

        LocalSGD(0.1)              η_i = 0.1 for every client and step
        LocalSGD(total=0.5)        η_i = 0.5/H_i: one total step η_iH_i for all

    With one learning rate a client that does eight steps moves about eight times as far
    as one that does one, and rules that compare distances take that for a difference in
    quality. With a total step updates differ by direction and noise alone, as in
    Algorithms 2 and 3.

    Attributes:
        learning_rate: η > 0, a number or a function of the round.
        total: s > 0 in place of it, shared among the local steps of a client.
        prox: μ ≥ 0, pull towards the model that was sent (FedProx).
        variates: control variates that correct every gradient, as in SCAFFOLD and
            Algorithm 2; they start at "zero" or at a minibatch "gradient".
        at_anchor: all gradients are taken at the model that was sent (minibatch SGD).
        unit: what `total` is shared among: local "steps", or "epochs" H_ib_i/m_i. An
            aggregator that divides by η_iH_i then divides by the step per epoch, but
            for control variates, which are means over steps.
        worker_momentum: 0 ≤ β < 1: a client sends m_i ← βm_i + (1 − β)Δ_i, a mean of
            its displacements over the rounds that it took part in [Karimireddy2021].
            m_i starts at zero, so that first steps are short. It averages the noise
            that attackers hide in. The paper's m_i is a mean of gradients.

    Raises:
        InvalidInputError: a number is out of range, not exactly one of `learning_rate`
            and `total` is given, or `worker_momentum` is given beside `variates`, which
            are computed from what one branch sends.

    Examples:
        >>> import numpy as np
        >>> from hewfl import Cohort, LocalSGD
        >>> steps = np.array([1, 4])
        >>> cohort = Cohort(np.arange(2), steps, steps, steps, population=2)
        >>> LocalSGD(total=0.5).plan(cohort, None).step_sizes
        array([0.5  , 0.125])
    """

    learning_rate: Schedule | None = None
    total: Schedule | None = field(default=None, kw_only=True)
    prox: Nonnegative = field(default=0.0, kw_only=True)
    variates: Start | None = field(default=None, kw_only=True)
    at_anchor: bool = field(default=False, kw_only=True)
    unit: Unit = field(default="steps", kw_only=True)
    worker_momentum: BelowOne = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        """Check ranges, and that one of the two step sizes is given."""
        check_fields(self)
        if self.learning_rate is None and self.total is None:
            raise invalid("learning_rate", "given, or `total` in place of it", "None")
        if self.learning_rate is not None and self.total is not None:
            raise invalid("total", "left out beside `learning_rate`", self.total)
        if self.variates is not None and self.worker_momentum > 0:
            rule = "left out beside `variates`"
            raise invalid("worker_momentum", rule, self.worker_momentum)

    @property
    def is_shared(self) -> bool:
        """Whether a total step travels to the clients."""
        return self.total is not None

    @property
    def is_planned(self) -> bool:
        """The server plans every step."""
        return True

    def step_sizes(self, cohort: Cohort) -> Float64[Array, " s"]:
        """η_i of the clients of a round.

        Args:
            cohort: the clients, with their local steps.

        Returns:
            One step size for each.
        """
        if self.learning_rate is not None:
            eta = at_round("learning_rate", self.learning_rate, cohort.round)
            return np.full(len(cohort.clients), eta)
        assert self.total is not None, "checked when it was made"
        total = at_round("total", self.total, cohort.round)
        return np.asarray(total / (cohort.horizons * self._per_step(cohort)))

    def plan(self, cohort: Cohort, variates: Variates | None) -> LocalPlan:
        """Step sizes, the correction c_i − c, and the proximal term."""
        return LocalPlan(
            self.step_sizes(cohort),
            None if variates is None else correction(variates, cohort),
            self.prox,
            self.at_anchor,
        )

    def as_counted(self, round_: Round) -> Round:
        """The round with η_i per unit of work, so that η_iH_i counts the unit."""
        if self.unit == "steps" or self.variates is not None:
            return round_
        eta = round_.plan.step_sizes * self._per_step(round_.cohort)
        return replace(round_, plan=replace(round_.plan, step_sizes=eta))

    def _per_step(self, cohort: Cohort) -> Float64[Array, " s"]:
        """Units of work in one step: 1, or b_i/m_i epochs."""
        if self.unit == "steps":
            return np.ones(len(cohort.clients))
        return np.asarray(cohort.batch_sizes / cohort.data_sizes)


@final
@dataclass(frozen=True, slots=True)
class ClientTraining:
    """Clients choose their own training, with any optimiser; the server plans none.

    The local work of a Flower federation or a torch job. Step sizes and steps that an
    aggregator needs are reported by the transport. Worker momentum is theirs, too: a
    client that keeps m ← βm + (1 − β)Δ sends m in place of Δ.
    """

    variates: ClassVar[None] = None
    is_shared: ClassVar[bool] = False
    is_planned: ClassVar[bool] = False

    def plan(self, cohort: Cohort, variates: Variates | None) -> LocalPlan:
        """Step sizes of one, which no client uses."""
        del variates
        return LocalPlan(np.ones(len(cohort.clients)))

    def as_counted(self, round_: Round) -> Round:
        """The round as it arrived."""
        return round_


@final
@dataclass(frozen=True, slots=True)
class MethodState:
    """State of a method with control variates: theirs, and the aggregator's."""

    variates: Variates
    aggregator: Any


@final
@dataclass(frozen=True, slots=True)
class Method:
    """Local work × aggregator × server step.

        Method(LocalSGD(0.1), Mean(by="size"), ServerStep(momentum=0.9), name="FedAvgM")

    Attributes:
        local: what clients do.
        aggregator: weights, or a step, from the updates.
        server_step: what the server does with the step; plain addition by default.
        name: what tables call it; made of the parts by default.

    Raises:
        InvalidInputError: a part is not of its kind.

    Examples:
        >>> from hewfl import LocalSGD, Method
        >>> from hewfl.aggregators import GeometricMedian
        >>> Method(LocalSGD(total=0.5), GeometricMedian()).name
        'Geometric median, total step'
    """

    local: LocalWork
    aggregator: Aggregator
    server_step: ServerStep = field(default_factory=ServerStep)
    name: str = ""

    def __post_init__(self) -> None:
        """Check the parts, and name the method."""
        for part, kind, example in (
            ("local", LocalWork, "local work, such as LocalSGD(0.1)"),
            ("aggregator", Aggregator, 'an aggregator, such as Mean(by="size")'),
            ("server_step", ServerStep, "a ServerStep"),
        ):
            value = getattr(self, part)
            if isinstance(value, type) or not isinstance(value, kind):
                raise invalid(part, example, format_value(value))
        if "variate" in self.aggregator.needs and self.local.variates is None:
            rule = "local work with control variates, such as LocalSGD(variates=…)"
            raise invalid("local", rule, format_value(self.local))
        if not isinstance(self.name, str):
            raise invalid("name", "text", format_value(self.name))
        if not self.name:
            total = ", total step" if self.local.is_shared else ""
            beta = getattr(self.local, "worker_momentum", 0.0)
            memory = f", worker momentum {beta:g}" if beta > 0 else ""
            words = f"{self.aggregator.name}{total}{memory}{self.server_step.words}"
            object.__setattr__(self, "name", words)

    @property
    def demands(self) -> Demands:
        """What the parts need, and what travels."""
        needs, start = self.aggregator.needs, self.local.variates
        # A total step is planned for known H_i: no step counts travel up. It travels
        # down once, unless gradients at the anchor leave the scaling to the server.
        is_shared = self.local.is_shared
        scalars = int("steps" in needs and not is_shared) + int("losses" in needs)
        sent = int(is_shared and not getattr(self.local, "at_anchor", False))
        traffic = Traffic(up_scalars=scalars, common_scalars=sent)
        if start is not None:
            traffic = replace(traffic, down=2, paper_up=2)
        return Demands(
            traffic,
            needs,
            gradients=start == "gradient",
            variates=start is not None,
            worker_momentum=getattr(self.local, "worker_momentum", 0.0),
            optional=self.aggregator.optional,
            clips=self.aggregator.clips,
        )

    def init(self, n: int, d: int, gradients: FirstGradients) -> Any:
        """The aggregator's state, beside control variates where there are any."""
        state, start = self.aggregator.init(n, d), self.local.variates
        if start is None:
            return state
        return MethodState(start_variates(n, d, start, gradients), state)

    def with_truth(self, state: Any, truth: Truth) -> Any:
        """The state of an aggregator that uses the truth."""
        if not isinstance(self.aggregator, Informed):
            return state
        return self._with(
            state, self.aggregator.with_truth(self._aggregator_state(state), truth)
        )

    def variates(self, state: Any) -> Variates | None:
        """The control variates in a state, None without them."""
        return state.variates if isinstance(state, MethodState) else None

    def plan(self, cohort: Cohort, state: Any) -> LocalPlan:
        """The plan of the local work."""
        return self.local.plan(cohort, self.variates(state))

    def model(self, round_: Round, state: Any) -> RoundModel | None:
        """The quadratic that the aggregator minimises, None where it has none."""
        if not isinstance(self.aggregator, Modelled):
            return None
        return self.aggregator.model(
            self._round_for_rule(round_, state), self._aggregator_state(state)
        )

    def decide(self, round_: Round, state: Any) -> tuple[Decision, Any]:
        """The aggregator's decision; then the control variates of the next round."""
        decision, following = self.aggregator.decide(
            self._round_for_rule(round_, state), self._aggregator_state(state)
        )
        if isinstance(state, MethodState):
            return decision, MethodState(state.variates.after(round_), following)
        return decision, following

    def _round_for_rule(self, round_: Round, state: Any) -> Round:
        """The round as the aggregator sees it."""
        counted, variates = self.local.as_counted(round_), self.variates(state)
        return (
            counted if variates is None else replace(counted, variate=variates.server)
        )

    def _aggregator_state(self, state: Any) -> Any:
        return state.aggregator if isinstance(state, MethodState) else state

    def _with(self, state: Any, following: Any) -> Any:
        if isinstance(state, MethodState):
            return replace(state, aggregator=following)
        return following
