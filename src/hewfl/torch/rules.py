"""The weights of a round from gathered products, by the pure algorithms of hewfl."""

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Int64

from hewfl.aggregate.from_products import isometric_copy
from hewfl.aggregate.variates import ControlVariates
from hewfl.baselines import FedAvg, FedNova, StepWeighted, UniformLocalSGD
from hewfl.controllers.het import HewHet
from hewfl.controllers.hom import HewHom
from hewfl.core.algorithm import Algorithm
from hewfl.core.checks import Ints, invalid, positive
from hewfl.core.displacements import RoundProducts
from hewfl.core.round import Decision, LocalPlan, Roster, Round
from hewfl.torch.work import Arrivals

NAMES = ("hom", "het", "equal", "steps", "tokens", "fednova")


@final
@dataclass(frozen=True, slots=True)
class Rule:
    """How ranks are weighted.

    Attributes:
        choice: "hom" (Algorithm 3), "het" (Algorithm 2, control variates), "equal",
            "steps", "tokens", "fednova", or an algorithm of hewfl that is stateless or
            keeps control variates.
        smoothness: L for "hom" and "het". None takes the step sizes at their word: the
            amplitude ϑ = L·(mean of η_iH_i) is the largest the paper's rates allow,
            Λϑ = L/2. Weights then do not depend on the scale of the learning rates.
        curvature_ratio: Λ/L for "hom" and "het".
    """

    choice: str | Algorithm[Any]
    smoothness: float | None = None
    curvature_ratio: float = 1.25

    def __post_init__(self) -> None:
        """Check that the rule can be had from products."""
        if self.smoothness is not None:
            positive("smoothness", self.smoothness)
        positive("curvature_ratio", self.curvature_ratio)
        probe = self.at(1.0)
        if probe.needs_losses:
            raise invalid("rule", "one that needs no losses", probe.name)
        gradients = np.zeros((1, 1)) if probe.needs_gradients else None
        state = probe.init(1, 1, gradients)
        if not (state is None or isinstance(state, ControlVariates)):
            kind = type(state).__name__
            rule = "an algorithm without state or with control variates"
            raise invalid("rule", rule, f"{probe.name}, which keeps a {kind}")

    @property
    def is_corrected(self) -> bool:
        """Whether branches are corrected by control variates."""
        probe = self.at(1.0)
        return probe.init(1, 1, np.zeros((1, 1))) is not None

    @property
    def starts_at_gradients(self) -> bool:
        """Whether the control variates start at the first gradients."""
        return self.at(1.0).needs_gradients

    def at(self, travelled: float) -> Algorithm[Any]:
        """The algorithm for a round in which ranks travelled η_iH_i on average."""
        if not isinstance(self.choice, str):
            return self.choice
        L = self.smoothness
        if L is None:
            L = 1 / (2 * self.curvature_ratio * travelled)
        given = (L, 1.0, self.curvature_ratio)
        choices: dict[str, Algorithm[Any]] = {
            "hom": HewHom(*given),
            "het": HewHet(*given),
            "equal": UniformLocalSGD(L, 1.0),
            "steps": StepWeighted(L, 1.0),
            "tokens": FedAvg(L, 1.0),
            "fednova": FedNova(L, 1.0),
        }
        if self.choice not in choices:
            names = f"one of {', '.join(NAMES)} or an algorithm"
            raise invalid("rule", names, repr(self.choice))
        return choices[self.choice]


def decide(
    rule: Rule, products: RoundProducts, heard: Int64[Ints, " s"], arrivals: Arrivals
) -> Decision:
    """Weights of the ranks heard, from the products of displacements and reference.

    Args:
        rule: how.
        products: of one vector per rank; with control variates, of c_t after them.
        heard: ranks that did a step and came back finite.
        arrivals: what they did.

    Raises:
        InvalidInputError: tokens are asked for and were not counted, or the step is no
            combination of displacements.
    """
    n = len(arrivals.steps)
    kept = np.append(heard, np.arange(n, len(products.linear)))
    G = products.gram[np.ix_(kept, kept)]
    part = RoundProducts(G, products.linear[kept], products.offset, 0)
    copy, s = isometric_copy(part), len(heard)
    H, travelled = arrivals.steps[heard], arrivals.travelled[heard]
    tokens = arrivals.tokens[heard]
    if rule.choice == "tokens" and tokens.min() < 1:
        raise invalid("tokens", "counted on every rank", tokens.tolist())
    sizes = np.where(tokens.min() > 0, tokens, 1)
    roster = Roster(heard, H, np.ones_like(H), sizes, n)
    origin = np.zeros(copy.shape[1])
    round_ = Round(origin, copy[:s], roster, LocalPlan(travelled / H))
    state = None
    if len(copy) > s:
        state = ControlVariates(copy[s], np.zeros((n, copy.shape[1])))
    decision, _ = rule.at(float(travelled.mean())).decide(round_, state)
    if decision.step is not None:
        raise invalid("rule", "a combination of displacements", decision.status)
    return decision
