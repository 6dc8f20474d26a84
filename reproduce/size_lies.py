"""How much a reported data size may count: a liar's share against an honest large site.

    python -m reproduce size-lies [--seeds 5]

Softmax regression on MNIST (`HEWFL_DATA`), 40 rounds of 1 to 8 local steps. In the
upper part of the table client 0 claims 2^40 samples and sends a flipped update, one
direction in all rounds, or the reverse of the others' mean; in the lower part all are
honest, and one site may hold 80 % of the data. Written between the marks of
docs/results/flower.md: accuracy less that of honest clients weighed by size.
"""

import argparse
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, final

import numpy as np

from hewfl import ChoiceSteps, Federation, LocalSGD, Method, simulate
from hewfl.aggregators import Aggregator, Mean, Sieve
from hewfl.core.algorithm import Need
from hewfl.core.array_types import Float, Float64
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array
from hewfl.data import load
from hewfl.problems import Softmax, softmax_from_arrays
from hewfl.server.plausibility import cap_shares, whole_sizes
from reproduce.stock_table import PAGE, between_marks

MARKS = "<!-- size lies: begin -->\n", "<!-- size lies: end -->\n"
SHARES = (0.0, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
"""Bounds on the share of one client; 0: all count alike."""
LIES: tuple[Literal["sign", "drift", "reverse"], ...] = ("sign", "drift", "reverse")
RULES = {"size-weighted": Mean(by="size"), "sieve": Sieve()}
ROUNDS, RATE, LIAR, CLAIM = 40, 0.05, 0, 2.0**40


@final
@dataclass(frozen=True, slots=True)
class CappedShares(Aggregator):
    """A rule whose sizes are capped, with one client that may lie.

    Attributes:
        rule: that weighs by size.
        share: largest share of a client; 0 where all count alike.
        lie: what client 0 sends beside a size of 2^40; "" where it is honest.
    """

    rule: Any
    share: float
    lie: str = ""
    needs: ClassVar[frozenset[Need]] = frozenset({"sizes"})

    def init(self, n: int, d: int) -> Float64[Array, " d"]:
        """The direction of a drift."""
        del n
        u = np.random.default_rng(5).standard_normal(d)
        return np.asarray(u / np.linalg.norm(u))

    def decide(self, round_: Round, state: Any) -> tuple[Decision, Any]:
        """The rule's step on what arrives."""
        rows, sizes = round_.displacements.matrix(), round_.cohort.data_sizes * 1.0
        if self.lie:
            others = np.delete(rows, LIAR, axis=0)
            length = float(np.median(np.linalg.norm(others, axis=1)))
            reverse = -others.mean(axis=0)
            reverse *= length / np.linalg.norm(reverse)
            sent = {"sign": -rows[LIAR], "drift": length * state, "reverse": reverse}
            rows[LIAR], sizes[LIAR] = sent[self.lie], CLAIM
        capped = cap_shares(sizes, self.share) if self.share else np.ones(len(sizes))
        arrived = round_.displacements.from_matrix(rows)
        cohort = replace(round_.cohort, data_sizes=whole_sizes(capped))
        seen = replace(round_, displacements=arrived, cohort=cohort)
        decision, _ = self.rule.decide(seen, None)
        return replace(decision, step=arrived.combine(decision.weights)), state


def accuracies(
    problem: Softmax, seed: int, lies: tuple[str, ...]
) -> dict[tuple[str, float, str], float]:
    """Test accuracy for each rule, share and lie."""
    keys = [(name, s, lie) for name in RULES for s in SHARES for lie in lies]
    methods = [
        Method(LocalSGD(RATE), CappedShares(RULES[name], share, lie), name=f"{k}")
        for k, (name, share, lie) in enumerate(keys)
    ]
    federation = Federation(ChoiceSteps((1, 2, 4, 8)), batch_size=32)
    trace = simulate(
        problem, federation, methods, rounds=ROUNDS, seed=seed, dtype=np.float32,
        evaluate_every=ROUNDS,
    )  # fmt: skip
    final = trace.final("test_accuracy")
    return {key: final[m.name] for key, m in zip(keys, methods, strict=True)}


def _inputs(features: Any) -> Float[Array, "m p"]:
    """Pixels from 0 to 1, and a column of ones."""
    pixels = features.reshape(len(features), -1).astype(np.float32) / 255
    return np.column_stack([pixels, np.ones(len(pixels), dtype=np.float32)])


def shards_of(kind: str, n: int, total: int, y: Any, seed: int) -> list[Any]:
    """Rows of each client: iid, Dirichlet 0.2 by class, or one site with 80 %."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(y))[:total]
    if kind == "iid":
        return np.array_split(rows, n)
    if kind == "site":
        large = int(0.8 * total)
        small = rows[large:]
        small = small[np.argsort(y[small], kind="stable")]  # few classes each
        return [rows[:large], *np.array_split(small, n - 1)]
    shards: list[list[int]] = [[] for _ in range(n)]
    for c in range(int(y.max()) + 1):
        here = rows[y[rows] == c]
        cuts = np.cumsum(rng.dirichlet(np.full(n, 0.2)))[:-1] * len(here)
        for shard, part in zip(shards, np.split(here, cuts.astype(int)), strict=True):
            shard.extend(part.tolist())
    return [np.array(shard or [int(rows[0])]) for shard in shards]


CELLS = (
    ("one liar of 5, IID", "iid", 5, 10_000, LIES),
    ("one liar of 5, Dirichlet 0.2", "dirichlet", 5, 10_000, LIES),
    ("one liar of 20, IID", "iid", 20, 10_000, LIES),
    ("one liar of 20, Dirichlet 0.2", "dirichlet", 20, 10_000, LIES),
    ("honest, 5 clients, Dirichlet 0.2", "dirichlet", 5, 10_000, ("",)),
    ("honest, 20 clients, Dirichlet 0.2", "dirichlet", 20, 10_000, ("",)),
    ("honest, one of 10 has 80 % of 2,000", "site", 10, 2_000, ("",)),
    ("honest, one of 10 has 80 % of 400", "site", 10, 400, ("",)),
)
"""Title, partition, clients, samples, and what client 0 does."""


def main() -> None:
    """Run all cells and write the table."""
    parser = argparse.ArgumentParser(prog="python -m reproduce size-lies")
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    data = load("mnist")
    assert data.test is not None, "MNIST has a test part"
    X, y = _inputs(data.features), np.asarray(data.labels)
    held = (_inputs(data.test[0]), np.asarray(data.test[1]))
    head = ["cell", "rule", *("equal" if s == 0 else f"{s:g}" for s in SHARES)]
    lines = ["| " + " | ".join(head) + " |", "| --- | --- |" + " --: |" * len(SHARES)]
    for title, kind, n, total, lies in CELLS:
        losses: dict[tuple[str, float], list[float]] = {}
        for seed in seeds:
            shards = shards_of(kind, n, total, y, seed)
            problem = softmax_from_arrays(X, y, shards, l2=1e-4, test=held)
            accuracy = accuracies(problem, seed, ("", *lies) if lies != ("",) else lies)
            for name in RULES:
                honest = accuracy[name, 1.0, ""]
                for share in SHARES:
                    worst = min(accuracy[name, share, lie] for lie in lies)
                    losses.setdefault((name, share), []).append(worst - honest)
        for name in RULES:
            cells = [f"{np.mean(losses[name, s]):+.3f}" for s in SHARES]
            lines.append("| " + " | ".join([title, name, *cells]) + " |")
        print(*lines[-2:], sep="\n", flush=True)
    between_marks(PAGE, MARKS, "\n".join(lines) + "\n")
