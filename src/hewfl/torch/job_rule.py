"""The rule of a job: which algorithm of hewfl decides, and whether it can here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from hewfl.aggregators import (
    Aggregator,
    Agreement,
    Disagreement,
    ExactWeights,
    GeometricMedian,
    Mean,
    NormalizedMean,
    Sieve,
    Trust,
)
from hewfl.aggregators.quadratic_model import RATIO
from hewfl.algorithms.hew_het import HewHet
from hewfl.algorithms.hew_hom import HewHom
from hewfl.core.algorithm import Algorithm, Certified, Demands
from hewfl.core.round import Cohort
from hewfl.core.validation import invalid, positive
from hewfl.displacements.control_variates import ControlVariates, map_records
from hewfl.methods.method import ClientTraining, LocalSGD, Method
from hewfl.server.server_step import ServerStep
from hewfl.server.state import Entry, check_algorithm
from hewfl.torch.options import SyncOptions

DEFAULT = "sieve"
"""The rule of a job that names none. In the table of docs/torch.md it was nowhere
significantly worse than equal weights, and better in 10 of 16 cases of a bad rank."""
KAPPA = 1.0
"""κ of "hom" and "het" where no L is given."""


def _trained(aggregator: Aggregator) -> Algorithm[Any]:
    return Method(ClientTraining(), aggregator, name=aggregator.name)


NAMED: dict[str, Callable[[float | None, float], Algorithm[Any]]] = {
    "hom": lambda L, ratio: (
        _trained(ExactWeights(kappa=KAPPA, normalize="length", cross_fit=False))
        if L is None
        else HewHom(L, 1.0, ratio)
    ),
    "het": lambda L, ratio: (
        Method(
            LocalSGD(total=1.0, variates="gradient"),
            ExactWeights("variate", kappa=KAPPA),
        )
        if L is None
        else HewHet(L, 1.0, ratio)
    ),
    "equal": lambda _L, _: _trained(Mean()),
    "steps": lambda _L, _: _trained(Mean(by="steps")),
    "tokens": lambda _L, _: _trained(Mean(by="size")),
    "fednova": lambda _L, _: _trained(NormalizedMean()),
    "agreement": lambda _L, _: _trained(Agreement()),
    "disagreement": lambda _L, _: _trained(Disagreement()),
    "median": lambda _L, _: _trained(GeometricMedian()),
    "sieve": lambda _L, _: _trained(Sieve(tolerance=0.2)),
    "trust": lambda _L, _: _trained(Trust()),
}


@final
@dataclass(frozen=True, slots=True)
class Rule:
    """How ranks are weighted.

    Attributes:
        choice: "sieve", "hom" (Algorithm 3), "het" (Algorithm 2, control variates),
            "equal", "steps", "tokens", "fednova", "agreement", "disagreement", "median"
            (the geometric one), "trust", or an algorithm of hewfl or one's own.
        smoothness: L for "hom" and "het". Without one their Λ is by `kappa`, which has
            no unit, and "hom" takes displacements by their lengths: weights depend
            neither on the scale of the learning rates nor on the optimiser.
        curvature_ratio: Λ/L for "hom" and "het".
    """

    choice: str | Algorithm[Any]
    smoothness: float | None = None
    curvature_ratio: float = RATIO

    def __post_init__(self) -> None:
        """Check that the rule exists and can decide in a job."""
        if self.smoothness is not None:
            positive("smoothness", self.smoothness)
        if positive("curvature_ratio", self.curvature_ratio) <= 1:
            rule = "above 1 (Λ > L)"
            raise invalid("curvature_ratio", rule, self.curvature_ratio)
        if self.smoothness is None and self.curvature_ratio != RATIO:
            rule = "left out without `smoothness`, which it is a multiple of"
            raise invalid("curvature_ratio", rule, self.curvature_ratio)
        if isinstance(self.choice, str) and self.choice not in NAMED:
            names = f"one of {', '.join(NAMED)} or an algorithm"
            raise invalid("rule", names, repr(self.choice))
        if not isinstance(self.choice, str):
            check_algorithm("rule", self.choice)
        _check(self.algorithm)

    def check_plan(self, ranks: int) -> None:
        """Require that the rule leaves local steps alone.

        Raises:
            InvalidInputError: its plan has a proximal term or holds the anchor, or it
                is not for so many ranks.
        """
        algorithm = self.algorithm
        clients, ones = np.arange(ranks), np.ones(ranks, dtype=np.int64)
        given = np.zeros((ranks, 1)) if algorithm.demands.gradients else None
        cohort = Cohort(clients, ones, ones, ones, ranks)
        plan = algorithm.plan(cohort, algorithm.init(ranks, 1, given))
        if plan.proximal > 0 or plan.hold:
            rule = "one that leaves local steps alone: here the training loop takes"
            raise invalid("rule", f"{rule} them", algorithm.name)

    @property
    def demands(self) -> Demands:
        """What the algorithm wants of a round."""
        return self.algorithm.demands

    @property
    def algorithm(self) -> Algorithm[Any]:
        """What decides."""
        if not isinstance(self.choice, str):
            return self.choice
        return NAMED[self.choice](self.smoothness, self.curvature_ratio)

    def initial_state(self, ranks: int, entries: int, kept: Any) -> Any:
        """The rule's state before the first round, on one rank.

        Args:
            ranks: n.
            entries: of a vector that this rank is responsible for.
            kept: control variates as this rank keeps them; not looked at for rules
                without.
        """
        algorithm, state = self.algorithm, None
        demands = algorithm.demands
        if demands.variates:  # c and all c_i of length zero: they are kept elsewhere
            given = np.zeros((ranks, 0)) if demands.gradients else None
            state = algorithm.init(ranks, 0, given)
        if not isinstance(state, ControlVariates):  # more than c: vectors have a length
            given = np.zeros((ranks, entries)) if demands.gradients else None
            state = algorithm.init(ranks, entries, given)
        return map_records(
            state, lambda p: kept if isinstance(p, ControlVariates) else p
        )


def rule_of(
    rule: str | Algorithm[Any] | Entry, options: SyncOptions | None
) -> tuple[Rule, SyncOptions]:
    """The rule of a job and its options; what is not given is left as it is.

    Args:
        rule: a name, an algorithm, or a entry such as `FedAvgM(…)`, which is an
            algorithm with an server step.
        options: of the job.

    Raises:
        InvalidInputError: the rule cannot decide in a job, or a entry comes with an
            server step and the options with another.
    """
    options = SyncOptions() if options is None else options
    if isinstance(rule, Entry):
        if options.server_step not in (ServerStep(), rule.server_step):
            text = "left out, or that of the rule, which has one of its own"
            raise invalid("options.server_step", text, options.server_step)
        options = replace(options, server_step=rule.server_step)
        rule = rule.algorithm
    return Rule(rule, options.smoothness, options.curvature_ratio), options


def _check(algorithm: Algorithm[Any]) -> None:
    """Require what a training loop with an optimiser of its own can give.

    Raises:
        InvalidInputError: the method wants losses or the true state, or sets the
            amplitudes of its own certificate.
    """
    demands, name = algorithm.demands, algorithm.name
    if "losses" in demands.needs or demands.oracle:
        rule = "one that needs neither losses nor the true state, which no rank tells"
        raise invalid("rule", rule, name)
    if isinstance(algorithm, Certified):
        rule = "one that takes step sizes as they are: here the optimiser sets them"
        raise invalid("rule", rule, f"{name}, which certifies its own")
