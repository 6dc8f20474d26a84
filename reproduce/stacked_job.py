"""A job of four unequal ranks in one process, for many rules side by side.

Ranks differ in speed: in the time of one round rank i does H_i steps of b_i samples, so
rounds are equal wall-clock for every rule. Some may be faulty. Each keeps the state of
its optimiser from round to round, as under `hewfl.torch`. All rules see the same
samples. What happens between rounds is hewfl's: the rules decide on a `Round`, the
server step and the
average of iterates are the server's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch

from hewfl import Cohort, LocalPlan, ServerStep
from hewfl.core.algorithm import Algorithm
from hewfl.displacements.dense import matrix_round
from hewfl.server.server_step import add_iterate, average_weight
from reproduce.stacked_models import Stacked, Tensor

BATCH = np.array([8, 8, 4, 8])
"""Samples that each rank takes in a step."""
AVERAGE = ServerStep(average="ema")
RIVALS = ("equal", "tokens", "tokens²/steps", "radial-directional")
"""Rules as published: a rank that did not move counts in them; else it has no part."""
Local = Literal["adamw", "sgd"]
"""Optimisers of the ranks: AdamW, or SGD with momentum 0.9."""
Fault = Literal["none", "labels", "flipped", "rate", "frozen", "noisy", "skewed"]
"""Random labels, gradients times −1, learning rate times ten, no movement though steps
are counted, one sample a step; skewed: all ranks are good, and each has a contiguous
part of the data."""


@final
@dataclass(frozen=True)
class Scenario:
    """How fast ranks are, and what is wrong with some of them.

    Attributes:
        steps: H_i of each rank.
        fault: of the bad ranks.
        bad: which ranks.
    """

    steps: tuple[int, ...] = (16, 4, 2, 1)
    fault: Fault = "none"
    bad: tuple[int, ...] = ()

    def is_bad(self, rank: int, fault: Fault) -> bool:
        """Whether a rank has this fault."""
        return self.fault == fault and rank in self.bad

    def batch(self, rank: int) -> int:
        """Samples that a rank really takes."""
        return 1 if self.is_bad(rank, "noisy") else int(BATCH[rank])

    def factor(self, rank: int) -> tuple[float, float]:
        """Of a rank's gradients, and of its learning rate."""
        gradient = -1.0 if self.is_bad(rank, "flipped") else 1.0
        rate = 10.0 if self.is_bad(rank, "rate") else 1.0
        return gradient, 0.0 if self.is_bad(rank, "frozen") else rate


def decide_weights(
    name: str, algorithm: Algorithm[Any], products: Any, steps: Any, state: Any
) -> tuple[Any, Any]:
    """The weights that a rule gives the ranks, and its next state.

    A rank that is not finite is left out, as in `hewfl.torch`, and where the rule sees
    displacements one that did not move; NaN where none is left.

    Args:
        name: of the rule; one with "tokens" in it gets each rank's number of samples.
        algorithm: one that looks at products of displacements only.
        products: G, their Gram matrix, float64.
        steps: H_i.
        state: of the algorithm.
    """
    weights, lengths = np.zeros(len(products)), np.diagonal(products)
    takes_part = np.isfinite(lengths)
    if name not in RIVALS and (takes_part & (lengths > 0)).any():
        takes_part &= lengths > 0
    chosen = np.flatnonzero(takes_part)
    if len(chosen) == 0:
        return weights * np.nan, state
    # n vectors of n numbers with these products: the model itself stays where it is
    values, vectors = np.linalg.eigh(products[np.ix_(chosen, chosen)])
    rows = vectors * np.sqrt(np.maximum(values, 0.0))
    H, b = np.asarray(steps)[chosen], BATCH[chosen]
    sizes = H * b if name in RIVALS[1:] else np.ones_like(H)
    sizes = sizes * b if name in RIVALS[2:] else sizes  # (H b)²/H
    cohort = Cohort(chosen, H, b, sizes, len(products))
    plan = LocalPlan(np.ones(len(chosen)))
    round_ = matrix_round(np.zeros(len(chosen)), rows, cohort, plan)
    decision, state = algorithm.decide(round_, state)
    weights[chosen] = decision.weights
    return weights, state


class Optimiser:
    """AdamW, or SGD with momentum, on flat rows of all replicas."""

    def __init__(self, kind: Local, rate: float, like: Tensor):
        self.kind, self.rate = kind, rate
        self.first = torch.zeros_like(like)
        self.second = torch.zeros_like(like) if kind == "adamw" else None
        self.count = torch.zeros(len(like), 1, device=like.device)

    def step(
        self, rows: Tensor, chosen: Tensor, gradient: Tensor, factor: Tensor
    ) -> None:
        """Move some of the rows, in place; learning rates times factors of them."""
        rate = self.rate * factor
        if self.second is None:
            self.first[chosen] = moved = 0.9 * self.first[chosen] + gradient
            rows[chosen] -= rate * moved
            return
        self.count[chosen] = t = self.count[chosen] + 1
        self.first[chosen] = m = 0.9 * self.first[chosen] + 0.1 * gradient
        self.second[chosen] = v = 0.99 * self.second[chosen] + 0.01 * gradient**2
        scaled = (m / (1 - 0.9**t)) / ((v / (1 - 0.99**t)).sqrt() + 1e-8)
        rows[chosen] -= rate * (scaled + 0.01 * rows[chosen])

    def without_lost(self, away: Tensor) -> Tensor:
        """Displacements, NaN for a rank that is not finite; its state is dropped."""
        lost = ~away.isfinite().all(dim=-1)
        for held in (self.first, self.second, self.count):
            if held is not None:
                held[lost.flatten()] = 0
        return torch.where(lost[..., None], torch.nan, away)


@final
@dataclass(frozen=True)
class Job:
    """What is run: the model, how ranks train, how long, and what is wrong."""

    model: Stacked
    optimiser: Local
    rate: float
    rounds: int
    scenario: Scenario
    seed: int

    def run(
        self,
        rules: Mapping[str, Algorithm[Any]],
        outers: Mapping[str, ServerStep],
        device: str,
    ) -> dict[str, dict[str, Any]]:
        """Test scores, and the weights given, of every rule under every server step.

        All of them train side by side, as entries of one stack.
        """
        H = self.scenario.steps
        ranks, each = len(H), len(rules)
        entries = [(rule, server_step) for server_step in outers for rule in rules]
        spans = [slice(k * each, (k + 1) * each) for k in range(len(outers))]
        x = self.model.start(self.seed).to(device).repeat(len(entries), 1)
        y = x.repeat_interleave(ranks, dim=0)
        memory, average = torch.zeros_like(x), x
        optimiser = Optimiser(self.optimiser, self.rate, y)
        states = [rules[rule].init(ranks, ranks, None) for rule, _ in entries]
        used = np.full((self.rounds, len(entries), ranks), np.nan)
        for t in range(self.rounds):
            self._local(y, optimiser, t)
            away = y.view(len(entries), ranks, -1) - x[:, None]
            away = optimiser.without_lost(away)
            for k, products in enumerate(products_of(away)):
                name = entries[k][0]
                used[t, k], states[k] = decide_weights(
                    name, rules[name], products, H, states[k]
                )
            given = torch.as_tensor(used[t], dtype=away.dtype, device=device)
            finite = torch.where(away.isnan(), 0.0, away)  # 0 · NaN is NaN
            step = torch.bmm(given[:, None], finite)[:, 0]
            for span, server_step in zip(spans, outers.values(), strict=True):
                moved, memory[span] = server_step.apply(step[span], memory[span])
                x[span] += moved
            average = add_iterate(average_weight(AVERAGE, t), average, x)
            y = x.repeat_interleave(ranks, dim=0)
        scores = [self.model.scores(z).cpu().numpy() for z in (x, average)]
        return {
            f"{rule} | {server_step}": _cell_scores(
                scores[0][k], scores[1][k], used[:, k]
            )
            for k, (rule, server_step) in enumerate(entries)
        }

    def _local(self, y: Tensor, optimiser: Optimiser, t: int) -> None:
        """The steps of one round; every rank stops when its time is over."""
        scenario, device = self.scenario, y.device
        ranks = len(scenario.steps)
        for step in range(max(scenario.steps)):
            group = [i for i in range(ranks) if scenario.steps[i] > step]
            samples = torch.as_tensor(self._samples(t, step, group), device=device)
            bad = [scenario.is_bad(i, "labels") for i in group]
            bad = torch.tensor(bad, device=device)
            factors = torch.tensor([scenario.factor(i) for i in group], device=device)
            share = torch.as_tensor(self._shares(group), device=device)
            torch.manual_seed(1_000_003 * self.seed + 64 * t + step)  # of bad labels
            places = np.arange(len(y)).reshape(-1, ranks)[:, group].ravel()
            places = torch.as_tensor(places, device=device)
            rows = y[places].requires_grad_()
            losses = self.model.losses(rows, samples, bad)
            total = (losses * share.repeat(len(rows) // len(group), 1)).sum()
            (gradient,) = torch.autograd.grad(total, rows)
            sign, rate = factors.repeat(len(rows) // len(group), 1).split(1, dim=1)
            optimiser.step(y, places, sign * gradient, rate)

    def _samples(self, t: int, step: int, group: list[int]) -> Any:
        """Sample indices of the ranks: each draws from its own part of the data."""
        ranks, samples = len(self.scenario.steps), []
        for i in group:
            source = np.random.default_rng((self.seed, t, step, i))
            drawn = source.integers(self.model.samples // ranks, size=BATCH.max())
            if self.scenario.fault == "skewed":
                samples.append(i * (self.model.samples // ranks) + drawn)
            else:
                samples.append(ranks * drawn + i)
        return np.array(samples)

    def _shares(self, group: list[int]) -> Any:
        """Share of every sample in the loss: all have as many, not all of them count.

        So all replicas take their step in one call, whatever their batch size.
        """
        sizes = np.array([self.scenario.batch(i) for i in group])[:, None]
        counts = np.arange(BATCH.max()) < sizes
        return (counts / sizes).astype(np.float32)


def products_of(away: Tensor) -> Any:
    """Gram matrix of each entry's displacements, summed in float64, on the host."""
    wide = away.double()
    return torch.bmm(wide, wide.transpose(1, 2)).cpu().numpy()


def _cell_scores(last: Any, average: Any, weights: Any) -> dict[str, Any]:
    known = weights[np.isfinite(weights).all(axis=1)]
    empty = len(known) == 0
    return {
        "loss": float(last[0]),
        "accuracy": float(last[1]),
        "average loss": float(average[0]),
        "average accuracy": float(average[1]),
        "weights": [] if empty else known.mean(axis=0).round(4).tolist(),
        "zero": [] if empty else (known == 0).mean(axis=0).round(3).tolist(),
    }
