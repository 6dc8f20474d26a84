"""Scores of the study by rule and scenario, with verdicts."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.core.validation import Array
from hewfl.experiments.statistics import Comparison, compare_pairs, detectable_text
from reproduce.robustness.robustness_specs import (
    MOMENTA,
    ORACLE,
    PANELS,
    RULES,
    Key,
    Part,
    under_momentum,
)

Summaries = Mapping[Key, Mapping[str, Any]]
"""What the runs' summary.json say, by panel and scenario."""


def is_deep(panel: str) -> bool:
    """Whether a panel trains the CNN."""
    return PANELS[panel].part == Part.cnn


def quantity_of(panel: str) -> str:
    """What rules are compared by: the honest objective, for the CNN the test loss."""
    return "test_loss" if is_deep(panel) else "objective"


@final
@dataclass(frozen=True)
class Scores:
    """Last values of every rule under every momentum, of iterate and average.

    Attributes:
        summaries: of the runs that are done.
    """

    summaries: Summaries

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """Panels and scenarios that are there, in the order of the study."""
        return tuple(self.summaries)

    def panels(self) -> tuple[str, ...]:
        """Panels that are there."""
        return tuple(dict.fromkeys(panel for panel, _ in self.keys))

    def rules(self, panel: str) -> tuple[str, ...]:
        """Rules of a panel, the yardstick first."""
        deep = is_deep(panel)
        return tuple(rule.label for rule in RULES if rule.is_deep or not deep)

    @cached_property
    def _methods(self) -> dict[tuple[Key, str], Mapping[str, Any]]:
        return {
            (key, method["label"]): method
            for key, summary in self.summaries.items()
            for method in summary["methods"]
        }

    def seeds(
        self, key: Key, label: str, quantity: str = "", *, averaged: bool = True
    ) -> Float64[Array, " seeds"]:
        """Last values of a method, seed by seed; NaN where it diverged.

        Args:
            key: panel and scenario.
            label: the rule with its momentum.
            quantity: that of the panel if not given.
            averaged: of the averaged model rather than the last iterate.
        """
        name = ("averaged_" if averaged else "") + (quantity or quantity_of(key[0]))
        final = self._methods[key, label]["final"].get(name)
        count = len(self.summaries[key]["seeds"])
        given = [None] * count if final is None else final["seeds"]
        return np.array([math.nan if v is None else v for v in given], dtype=np.float64)

    def mean(self, key: Key, label: str, *, averaged: bool = True) -> float:
        """Mean over the seeds; infinite where one of them diverged."""
        values = self.seeds(key, label, averaged=averaged)
        return float(values.mean()) if np.isfinite(values).all() else math.inf

    @cached_property
    def _best(self) -> dict[tuple[Key, str], tuple[float, str]]:
        """The lowest mean of the averaged model over momenta, and its label."""
        best = {}
        for key in self.keys:
            betas = MOMENTA[is_deep(key[0])]
            for rule in self.rules(key[0]):
                labels = [under_momentum(rule, beta) for beta in betas]
                means = [(self.mean(key, label), label) for label in labels]
                best[key, rule] = min(means, key=lambda pair: pair[0])
        return best

    def best(self, key: Key, rule: str) -> str:
        """The rule's label under the momentum with the lowest mean."""
        return self._best[key, rule][1]

    def value(self, key: Key, rule: str) -> float:
        """Mean of the averaged model under the rule's best momentum."""
        return self._best[key, rule][0]

    @cached_property
    def _winners(self) -> dict[Key, str]:
        return {
            key: min(
                (rule for rule in self.rules(key[0]) if rule != ORACLE),
                key=lambda rule, key=key: self.value(key, rule),  # type: ignore[misc]  # of this turn
            )
            for key in self.keys
        }

    def winner(self, key: Key) -> str:
        """The rule with the lowest mean; the yardstick is none."""
        return self._winners[key]

    def ratio(self, key: Key, rule: str) -> float:
        """The rule's mean over that of the best rule of this scenario."""
        return self.value(key, rule) / self.value(key, self.winner(key))

    def worst(self, rule: str, panels: Sequence[str]) -> tuple[float, Key]:
        """The rule's largest ratio over the scenarios of some panels, and its key."""
        keys = [key for key in self.keys if key[0] in panels]
        key = max(keys, key=lambda key: self.ratio(key, rule))
        return self.ratio(key, rule), key

    @cached_property
    def _against_best(self) -> dict[Key, dict[str, Comparison]]:
        return {key: self._judged(key) for key in self.keys}

    def against_best(self, key: Key) -> dict[str, Comparison]:
        """The other rules against the best of this scenario: one family.

        Each at its own best momentum, paired by seed. The yardstick is not in it.
        """
        return self._against_best[key]

    def _judged(self, key: Key) -> dict[str, Comparison]:
        winner = self.winner(key)
        rivals = [r for r in self.rules(key[0]) if r not in (ORACLE, winner)]
        values = {
            rule: self.seeds(key, self.best(key, rule)) for rule in (winner, *rivals)
        }
        pairs = compare_pairs(
            values, [(r, winner) for r in rivals], quantity_of(key[0])
        )
        return {rule: comparison for (rule, _), comparison in pairs.items()}

    def is_level(self, key: Key, rule: str) -> bool:
        """Whether a rule is not shown to be behind the best of this scenario."""
        if rule == self.winner(key):
            return True
        return rule != ORACLE and self.against_best(key)[rule].verdict != "worse"

    def shown(self, cases: Iterable[tuple[Key, str]]) -> str:
        """What the seeds would have shown of rules that are level, at the least."""
        doubt = [
            self.against_best(key)[rule]
            for key, rule in cases
            if rule != self.winner(key) and self.is_level(key, rule)
        ]
        if not doubt:
            return ""
        return detectable_text(max(doubt, key=lambda c: c.detectable))

    def weight_on_bad(self, key: Key, rule: str) -> float | None:
        """Mean share of the weights that bad clients had; None where there are none."""
        weight = self._methods[key, self.best(key, rule)].get("weight_on_bad")
        return None if weight is None else weight["mean"]


def rank_by_worst(
    scores: Scores, panels: Sequence[str]
) -> list[tuple[str, float, Key]]:
    """Rules by their worst ratio over the scenarios of some panels, least first."""
    shared = [
        rule.label
        for rule in RULES
        if rule.label != ORACLE and all(rule.label in scores.rules(p) for p in panels)
    ]
    rows = [(rule, *scores.worst(rule, panels)) for rule in shared]
    return sorted(rows, key=lambda row: row[1])
