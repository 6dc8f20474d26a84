"""The rules that a stock Flower app may choose by name.

None of these needs a constant, and none asks how a client trained: they look at where
clients went from the model they were sent. Local SGD, momentum, AdamW, other losses,
any number of epochs are all the same to them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from hewfl import baselines as rules
from hewfl.aggregate.rows import matrix_round
from hewfl.core.algorithm import Algorithm
from hewfl.core.checks import invalid, shown
from hewfl.core.round import LocalPlan, Roster
from hewfl.errors import HewError
from hewfl.server.checkpoint import flatten
from hewfl.server.state import check_algorithm

DEFAULT = "agreement"
"""The best safe one on three stock apps: the table in docs/flower.md."""
RULES: dict[str, Callable[[], Algorithm[Any]]] = {
    "fedavg": lambda: rules.FedAvg(1.0, 1.0),
    "agreement": lambda: rules.Agreement(1.0, 1.0, power=1.0),
    "disagreement": lambda: rules.Disagreement(1.0, 1.0),
    "geometric-median": lambda: rules.GeometricMedian(1.0, 1.0),
    "median": lambda: rules.CoordinateMedian(1.0, 1.0),
    "trimmed-mean": lambda: rules.TrimmedMean(1.0, 1.0),
    "krum": lambda: rules.Krum(1.0, 1.0),
    "multi-krum": lambda: rules.MultiKrum(1.0, 1.0),
    "centred-clipping": lambda: rules.CentredClipping(1.0, 1.0),
    "fednova": lambda: rules.FedNova(1.0, 1.0),
}


def rule_of(rule: str | Algorithm[Any]) -> Algorithm[Any]:
    """A rule by its name, or any method that needs to know no client by name.

    Raises:
        InvalidInputError: there is no such rule, or it is none for stock clients.
    """
    if isinstance(rule, str):
        if rule not in RULES:
            raise invalid("rule", f"one of {', '.join(RULES)}, or a method", shown(rule))
        return RULES[rule]()
    check_algorithm("rule", rule)
    wants = rule.demands
    if wants.losses or wants.oracle:
        text = "a method that needs neither losses nor the true state"
        raise invalid("rule", text, rule.name)
    if wants.variates or wants.gradients or _names_clients(rule):
        text = "a method that knows no client by name: take AlgorithmStrategy for it"
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
    return {k: v.shape for k, v in two.items()} != {k: v.shape for k, v in three.items()}


def reads(rule: Algorithm[Any]) -> tuple[bool, bool]:
    """Whether a rule asks for local steps, and for step sizes.

    Nothing in the contract says so: a small round is decided twice, and the rule asks
    for what makes a difference.
    """
    rows = np.array([[1.0, 0.2], [0.6, -0.4], [0.3, 0.9]])
    one, uneven = np.ones(3, dtype=np.int64), np.array([1, 2, 5])
    found = []
    for steps, sizes in ((one, np.ones(3)), (uneven, np.ones(3)), (one, 0.1 / uneven)):
        roster = Roster(np.arange(3), steps, one, one, 3)
        round_ = matrix_round(np.zeros(2), rows, roster, LocalPlan(sizes))
        found.append(rule.decide(round_, rule.init(3, 2, None))[0].weights)
    steps_count, sizes_count = (not np.allclose(found[0], w) for w in found[1:])
    return steps_count, sizes_count
