"""Trials of candidates that an earlier run has done, so that they need not be again.

A run whose lists were made longer tries the new candidates alone: `adopt` reads the
scores of the old ones from the `tuning.json` of the earlier run.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, final

import numpy as np

from hewfl.core.atomic import read_json, write_json
from hewfl.experiments.methods import MethodSpec
from hewfl.experiments.spec import Spec
from hewfl.experiments.tune import LARGER_IS_BETTER, Candidates, Scores

KNOWN = "known.json"
"""In the folder of a run: what an earlier run has tried."""


@final
@dataclass(frozen=True, slots=True)
class Known:
    """Scores of an earlier run, for trials of so many rounds."""

    rows: Mapping[str, Sequence[float | None]]
    rounds: int
    seeds: tuple[int, ...]

    @staticmethod
    def of(folder: Path, rounds: int, seeds: tuple[int, ...]) -> "Known":
        """What the folder of a run knows; mostly nothing."""
        return Known(read_json(folder / KNOWN, missing=True) or {}, rounds, seeds)

    def has(self, candidate: MethodSpec) -> bool:
        """Whether a candidate was tried with every seed."""
        return all(
            _name(candidate, self.rounds, seed) in self.rows for seed in self.seeds
        )

    def without(self, candidates: Candidates) -> Candidates:
        """Those that are still to be tried."""
        return tuple(tuple(c for c in part if not self.has(c)) for part in candidates)

    def filled(self, candidates: Candidates, new: Sequence[Any]) -> list[Scores]:
        """Scores of all candidates, seed by seed.

        Args:
            candidates: all of them, method by method.
            new: of those that were not known, in the order of seeds and parts.
        """
        count, found = len(new) // len(self.seeds), list[Scores]()
        for k, seed in enumerate(self.seeds):
            rows = iter(
                [row for part in new[k * count : (k + 1) * count] for row in part]
            )
            own = [
                [
                    inf if s is None else s
                    for s in self.rows[_name(c, self.rounds, seed)]
                ]
                if self.has(c)
                else next(rows)
                for part in candidates
                for c in part
            ]
            found.append(np.array(own, dtype=np.float64))
        return found


def adopt(folder: Path, spec: Spec, entries: Sequence[Mapping[str, Any]]) -> int:
    """Keep what the tuning.json of an earlier run says, for a run that is to be tuned.

    The runs must be alike in all but their lists. What decides between candidates that
    agree in both kept quantities is not in that file: they are the last among equals.

    Returns:
        How many trials are known now.
    """
    how, methods = spec.tune, {m.label: m.method for m in spec.methods}
    signs = [-1 if q in LARGER_IS_BETTER else 1 for q in (how.by, how.tie_by)]
    stages = {
        "screen": (how.screen_rounds, how.screen_seeds),
        "table": (how.rounds, how.seeds),
    }
    found: dict[str, list[float | None]] = {}
    for entry in entries:
        label = entry["label"]
        for stage, (rounds, seeds) in stages.items():
            for trial in entry[stage]:
                tried = MethodSpec(methods[label], label, trial["parameters"])
                pairs = zip(trial["scores"], trial["tie_scores"], strict=True)
                for seed, pair in zip(seeds, pairs, strict=True):
                    row = [
                        None if s is None else sign * s
                        for s, sign in zip(pair, signs, strict=True)
                    ]
                    found[_name(tried, rounds, seed)] = row + [None] * len(how.ties)
    write_json(folder / KNOWN, found)
    return len(found)


def _name(candidate: MethodSpec, rounds: int, seed: int) -> str:
    """A trial in words: method, hyper-parameters, rounds and seed."""
    given = json.dumps(dict(candidate.parameters), sort_keys=True)
    return f"{candidate.method} {given}, {rounds} rounds, seed {seed}"
