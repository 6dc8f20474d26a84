"""Every algorithm of hewfl by its name, for specs and for runs that are resumed."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hewfl import aggregators as baselines
from hewfl.algorithms.fixed import HewFixed
from hewfl.algorithms.hew_control import HewControl
from hewfl.algorithms.hew_het import HewHet
from hewfl.algorithms.hew_hom import HewHom
from hewfl.algorithms.mean import HewMean
from hewfl.core.algorithm import Algorithm
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import invalid, shown
from hewfl.displacements.dense import matrix_round
from hewfl.errors import HewError
from hewfl.server.checkpoint import flatten
from hewfl.server.state import check_algorithm

METHODS: dict[str, type[Any]] = {
    method.__name__: method
    for method in (
        *(HewHom, HewHet, HewMean, HewFixed, HewControl),
        *(getattr(baselines, name) for name in baselines.__all__),
    )
}


# ------------------ The rules that can be chosen by name, without any constant

# None of them asks how a client trained: they look at where clients went from the model
# they were sent. Local SGD, momentum, AdamW, any number of epochs are all the same to
# them; only FedNova asks how many steps were taken.

RULES: dict[str, Callable[[], Algorithm[Any]]] = {
    "fedavg": lambda: baselines.FedAvg(1.0, 1.0),
    "mean": lambda: HewMean(1.0, 1.0, kappa=1.0, cross_fit=True),
    "sieve": lambda: baselines.Sieve(1.0, 1.0),
    "agreement": lambda: baselines.Agreement(1.0, 1.0, power=1.0),
    "disagreement": lambda: baselines.Disagreement(1.0, 1.0),
    "geometric-median": lambda: baselines.GeometricMedian(1.0, 1.0),
    "median": lambda: baselines.CoordinateMedian(1.0, 1.0),
    "trimmed-mean": lambda: baselines.TrimmedMean(1.0, 1.0),
    "krum": lambda: baselines.Krum(1.0, 1.0),
    "multi-krum": lambda: baselines.MultiKrum(1.0, 1.0),
    "centred-clipping": lambda: baselines.CentredClipping(1.0, 1.0),
    "fednova": lambda: baselines.FedNova(1.0, 1.0),
}


def rule_of(rule: str | Algorithm[Any]) -> Algorithm[Any]:
    """A rule by its name, or any method that needs to know no client by name."""
    if isinstance(rule, str):
        if rule not in RULES:
            known = f"one of {', '.join(RULES)}, or a method"
            raise invalid("rule", known, shown(rule))
        return RULES[rule]()
    check_algorithm("rule", rule)
    wants = rule.demands
    if wants.losses or wants.oracle:
        text = "a method that needs neither losses nor the true state"
        raise invalid("rule", text, rule.name)
    if wants.variates or wants.gradients or _names_clients(rule):
        text = "a method that knows no client by name"
        raise invalid("rule", text, rule.name)
    return rule


def _names_clients(rule: Algorithm[Any]) -> bool:
    """Whether it knows something of clients by name.

    Its state then grows with their number, or it takes another number of them ill.
    """
    try:
        two, three = (flatten(rule.init(n, 1, None)) for n in (2, 3))
    except HewError:
        return True
    return [a.shape for a in two.values()] != [a.shape for a in three.values()]


def reads(rule: Algorithm[Any]) -> tuple[bool, bool, bool]:
    """Whether a rule asks for local steps, for step sizes, and for every coordinate.

    Nothing in the contract says so: a small round is decided three times, and the rule
    asks for what makes a difference. One that gives a step of its own, and not only
    weights, looks at more than products.
    """
    rows = np.array([[1.0, 0.2], [0.6, -0.4], [0.3, 0.9]])
    one, uneven = np.ones(3, dtype=np.int64), np.array([1, 2, 5])
    found = []
    for steps, sizes in ((one, np.ones(3)), (uneven, np.ones(3)), (one, 0.1 / uneven)):
        cohort = Cohort(np.arange(3), steps, one, one, 3)
        round_ = matrix_round(np.zeros(2), rows, cohort, LocalPlan(sizes))
        decision, _ = rule.decide(round_, rule.init(3, 2, None))
        found.append(decision.weights)
    by_steps, by_sizes = (not np.allclose(found[0], w) for w in found[1:])
    return by_steps, by_sizes, decision.step is not None
