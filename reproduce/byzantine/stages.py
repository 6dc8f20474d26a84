"""The three stages of a cell: tune, screen, judge, each on seeds of its own.

    tune     the step size with the least worst loss over a few attacks
    screen   all attacks; the two that hurt this rule most are kept
    judge    these two, on seven other seeds

An attacker chooses its attack before it knows the draws, so that the worst case of a
seed is not picked by its noise.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from reproduce.byzantine.byzantine_cells import TUNED_WITH, Cell
from reproduce.byzantine.trials import Known, Outcome, Trial, run_trials

START = (2.0, 4.0, 8.0, 16.0)
LEAST, MOST = 2.0**-4, 2.0**10
"""Amplitudes that are tried first, and how far the list goes on beyond its ends."""


@final
@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a study is.

    Attributes:
        rounds: of every run.
        seeds: that are judged.
        kept: attacks that are judged, of those screened.
        tuning: its seed.
        screening: its seed.
    """

    rounds: int = 30
    seeds: tuple[int, ...] = tuple(range(7))
    kept: int = 2
    tuning: int = 7
    screening: int = 8


FULL, QUICK_SIZES = Sizes(), Sizes(rounds=4, seeds=(0, 1))
FRESH = Sizes(seeds=tuple(range(20, 27)), kept=3, tuning=27, screening=28)
"""Of the held-out cells. The seeds of `FULL` were looked at while rules were chosen.

Three attacks are judged, as two of them know the root.
"""


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """A cell of a study, as far as its trials are known.

    Attributes:
        cell: of the study.
        sizes: of the study.
        known: trials that were run.
    """

    cell: Cell
    sizes: Sizes
    known: Known

    def trial(self, rule: str, amplitude: float, attack: str, seed: int) -> Trial:
        """A trial of this cell."""
        panel, f = self.cell.panel, self.cell.f
        return Trial(panel, f, rule, amplitude, attack, seed, self.sizes.rounds)

    def tuning_attacks(self, rule: str) -> tuple[str, ...]:
        """Those that the step size is tuned with."""
        given = self.cell.attacks(rule)
        return given if len(given) == 1 else TUNED_WITH

    def tuning(self, rule: str, amplitude: float) -> Iterator[Trial]:
        """The trials of a step size."""
        for attack in self.tuning_attacks(rule):
            yield self.trial(rule, amplitude, attack, self.sizes.tuning)

    def _worst(self, rule: str, amplitude: float) -> float | None:
        """The worst loss of a step size; None where it was not tried."""
        trials = list(self.tuning(rule, amplitude))
        if any(t not in self.known for t in trials):
            return None
        return max(self.known[t].objective for t in trials)

    def tried(self, rule: str) -> dict[float, float]:
        """Worst losses by step size."""
        powers = range(round(math.log2(LEAST)), round(math.log2(MOST)) + 1)
        scores = {2.0**k: self._worst(rule, 2.0**k) for k in powers}
        return {a: s for a, s in scores.items() if s is not None}

    def open_amplitudes(self, rule: str) -> tuple[float, ...]:
        """Step sizes to try next; none once the best one has neighbours."""
        tried = self.tried(rule)
        missing = tuple(a for a in START if a not in tried)
        if missing:
            return missing
        best = min(tried, key=lambda a: (tried[a], a))
        near = (best / 2, 2 * best)
        return tuple(a for a in near if a not in tried and LEAST <= a <= MOST)

    def amplitude(self, rule: str) -> float:
        """The tuned step size."""
        tried = self.tried(rule)
        return min(tried, key=lambda a: (tried[a], a))

    def is_at_edge(self, rule: str) -> bool:
        """Whether the list ended where the best step size was."""
        return self.amplitude(rule) in (LEAST, MOST)

    def screening(self, rule: str) -> list[Trial]:
        """All attacks at the tuned step size; none where there is one only."""
        given, amplitude = self.cell.attacks(rule), self.amplitude(rule)
        if len(given) == 1:
            return []
        seed = self.sizes.screening
        return [self.trial(rule, amplitude, attack, seed) for attack in given]

    def worst_attacks(self, rule: str) -> tuple[str, ...]:
        """The attacks that are judged, the worst of the screening first."""
        trials = self.screening(rule)
        if not trials:
            return self.cell.attacks(rule)
        trials.sort(key=lambda t: -self.known[t].objective)
        return tuple(t.attack for t in trials[: self.sizes.kept])

    def judging(self, rule: str, attack: str) -> list[Trial]:
        """The trials of an attack that is judged, seed by seed."""
        amplitude = self.amplitude(rule)
        return [self.trial(rule, amplitude, attack, s) for s in self.sizes.seeds]

    def outcomes(self, rule: str, attack: str) -> list[Outcome]:
        """Where they ended."""
        return [self.known[t] for t in self.judging(rule, attack)]

    def all_judging(self) -> list[Trial]:
        """The trials of the last stage."""
        return [
            trial
            for rule in self.cell.rules
            for attack in self.worst_attacks(rule)
            for trial in self.judging(rule, attack)
        ]

    def is_done(self) -> bool:
        """Whether nothing is left to run."""
        if any(self.open_amplitudes(rule) for rule in self.cell.rules):
            return False
        screened = (t for rule in self.cell.rules for t in self.screening(rule))
        if any(t not in self.known for t in screened):
            return False
        return all(t in self.known for t in self.all_judging())

    def run(self, file: Path) -> None:
        """Run what is missing, stage by stage."""
        rules = self.cell.rules
        while asked := [(r, a) for r in rules for a in self.open_amplitudes(r)]:
            self._ask((t for pair in asked for t in self.tuning(*pair)), file)
        self._ask((t for rule in rules for t in self.screening(rule)), file)
        self._ask(self.all_judging(), file)

    def _ask(self, trials: Iterable[Trial], file: Path) -> None:
        run_trials(trials, self.known, file)
