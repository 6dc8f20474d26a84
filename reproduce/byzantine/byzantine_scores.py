"""Scores of the study: worst cases by rule and cell, against the honest oracle."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from hewfl import RootSet
from hewfl.core.array_types import Float64
from hewfl.core.validation import Array
from hewfl.experiments.statistics import Comparison, compare_pairs
from reproduce.byzantine.byzantine_cells import (
    ACROSS_ROOT,
    AGAINST_ROOT,
    CELLS,
    CLIENTS,
    HELD_OUT,
    ORACLE,
    PANELS,
    RULES,
    Cell,
)
from reproduce.byzantine.stages import Plan, Sizes
from reproduce.byzantine.trials import Known

COLUMN_GROUPS = ("main", HELD_OUT)
"""Groups with the limit among their rules: each makes a column."""
KNOWING = (AGAINST_ROOT, ACROSS_ROOT)
"""Attacks of those who know the samples of the root."""
Column = tuple[str, int]
"""A panel and a number of attackers: all rules of one column have met the same."""


@final
@dataclass(frozen=True, slots=True)
class Score:
    """A rule in its worst case of a column.

    Attributes:
        attack: the judged attack with the largest geometric mean of losses.
        losses: of the honest clients, seed by seed; infinite where a run diverged.
        judged: the same for all judged attacks.
        accuracy: the least mean accuracy over the judged attacks.
        amplitude: the tuned step size.
        is_at_edge: whether that is the end of its list.
    """

    attack: str
    losses: Float64[Array, " seeds"]
    judged: Mapping[str, Float64[Array, " seeds"]]
    accuracy: float
    amplitude: float
    is_at_edge: bool


@final
@dataclass(frozen=True)
class Scores:
    """All columns whose main cell is done, with the other groups that are.

    Attributes:
        known: trials that were run.
        sizes: of the study.
        cells: of the study.
    """

    known: Known
    sizes: Sizes
    cells: tuple[Cell, ...] = CELLS

    @cached_property
    def plans(self) -> dict[Cell, Plan]:
        """Of the cells that are done."""
        plans = {cell: Plan(cell, self.sizes, self.known) for cell in self.cells}
        return {cell: plan for cell, plan in plans.items() if plan.is_done()}

    @cached_property
    def table(self) -> dict[Column, dict[str, Score]]:
        """Scores by column and rule, the limit first."""
        table: dict[Column, dict[str, Score]] = {}
        for cell, plan in self.plans.items():
            if cell.group in COLUMN_GROUPS:
                column = cell.panel, cell.f
                table[column] = {rule: _score(plan, rule) for rule in cell.rules}
        for cell, plan in self.plans.items():
            if cell.group not in COLUMN_GROUPS and (cell.panel, cell.f) in table:
                table[cell.panel, cell.f] |= {r: _score(plan, r) for r in cell.rules}
        return table

    @property
    def missing(self) -> tuple[Cell, ...]:
        """Cells that are not done."""
        return tuple(cell for cell in self.cells if cell not in self.plans)

    def ratio(self, column: Column, rule: str) -> float:
        """Geometric mean over seeds of the loss over that of the oracle."""
        losses = self.table[column][rule].losses
        return _geometric(losses / self.table[column][ORACLE].losses)

    def oracle_loss(self, column: Column) -> float:
        """Geometric mean over seeds."""
        return _geometric(self.table[column][ORACLE].losses)

    def accuracy(self, column: Column, rule: str) -> float:
        """The least mean accuracy over the judged attacks."""
        return self.table[column][rule].accuracy

    def with_secret_root(self, column: Column, rule: str) -> tuple[str, float]:
        """The worst attack that does not know the root, and its ratio to the oracle.

        At least one of the attacks that are judged does not know it.
        """
        oracle, score = self.table[column][ORACLE].losses, self.table[column][rule]
        blind = {a: v for a, v in score.judged.items() if a not in KNOWING}
        ratios = {attack: _geometric(v / oracle) for attack, v in blind.items()}
        attack = max(ratios, key=lambda a: ratios[a])
        return attack, ratios[attack]

    def rivals(self, column: Column, root: RootSet | None) -> list[str]:
        """Rules with this root, or without any, the best first."""
        there = (r for r in self.table[column] if r != ORACLE)
        chosen = [r for r in there if RULES[r].root == root]
        return sorted(chosen, key=lambda rule: self.ratio(column, rule))

    @cached_property
    def _against_best(self) -> dict[Column, dict[str, Comparison]]:
        judged: dict[Column, dict[str, Comparison]] = {}
        for column, scores in self.table.items():
            judged[column] = {}
            for root in {RULES[rule].root for rule in scores}:
                best, *others = self.rivals(column, root)
                values = {r: scores[r].losses for r in (best, *others)}
                pairs = [(r, best) for r in others]
                compared = compare_pairs(values, pairs, "objective") if pairs else {}
                judged[column] |= {r: c for (r, _), c in compared.items()}
        return judged

    def against_best(self, column: Column, rule: str) -> Comparison | None:
        """A rule against the best of its kind: one family. None for the best one."""
        return self._against_best[column].get(rule)

    def duel(self, rule: str, rival: str) -> dict[Column, Comparison]:
        """Two rules in all columns in which fewer than half attack: one family."""
        columns = [
            c
            for c, row in self.table.items()
            if rule in row and rival in row and 2 * c[1] < CLIENTS
        ]
        values = {
            (label, c): self.table[c][label].losses
            for c in columns
            for label in (rule, rival)
        }
        named = {f"{label}, {c}": v for (label, c), v in values.items()}
        pairs = {(f"{rule}, {c}", f"{rival}, {c}"): c for c in columns}
        compared = compare_pairs(named, pairs, "objective") if columns else {}
        return {pairs[pair]: comparison for pair, comparison in compared.items()}

    def untrained(self, column: Column) -> float:
        """Ratio of the model before training, log(classes) over the oracle's loss."""
        return math.log(PANELS[column[0]].classes) / self.oracle_loss(column)

    def is_level(self, column: Column, rule: str) -> bool:
        """Whether a rule is not shown to be behind the best of its kind."""
        compared = self.against_best(column, rule)
        return compared is None or compared.verdict != "worse"


def _score(plan: Plan, rule: str) -> Score:
    losses: Mapping[str, Float64[Array, " seeds"]] = {
        attack: np.array([o.objective for o in plan.outcomes(rule, attack)])
        for attack in plan.worst_attacks(rule)
    }
    accuracies = [
        float(np.mean([o.accuracy for o in plan.outcomes(rule, attack)]))
        for attack in losses
    ]
    attack = max(losses, key=lambda a: _geometric(losses[a]))
    return Score(
        attack,
        losses[attack],
        losses,
        min(accuracies),
        plan.amplitude(rule),
        plan.is_at_edge(rule),
    )


def _geometric(values: Float64[Array, " k"]) -> float:
    """The geometric mean; infinite where one of them is."""
    if not np.isfinite(values).all():
        return math.inf
    return float(np.exp(np.log(values).mean()))
