"""Runs of the study, remembered one by one: a stopped study goes on where it was."""

import csv
import gzip
import io
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, final

import numpy as np

from hewfl import simulate
from hewfl.core.atomic import write_bytes
from reproduce.byzantine.byzantine_cells import RULES, build_federation, build_panel


@final
@dataclass(frozen=True, slots=True)
class Trial:
    """A rule with a step size under an attack, with a seed.

    Attributes:
        panel: name of the panel.
        f: attackers.
        rule: label of the rule.
        amplitude: total local step in units of 1/L.
        attack: name of the attack.
        seed: of data, clients, attackers and draws.
        rounds: that were run.
    """

    panel: str
    f: int
    rule: str
    amplitude: float
    attack: str
    seed: int
    rounds: int


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a trial ended.

    Attributes:
        objective: of the honest clients; infinite where the run diverged.
        accuracy: on the test part.
    """

    objective: float
    accuracy: float


Known = dict[Trial, Outcome]
HEADER = [f.name for kind in (Trial, Outcome) for f in fields(kind)]


def read_trials(file: Path) -> Known:
    """The trials that were run; a line that was cut off is none."""
    known: Known = {}
    if not file.exists():
        return known
    opened = gzip.open if file.suffix == ".gz" else open
    with opened(file, "rt", encoding="utf-8", newline="") as lines:
        for row in csv.reader(lines):
            if len(row) != len(HEADER) or row == HEADER:
                continue
            panel, f, rule, amplitude, attack, seed, rounds, loss, accuracy = row
            trial = Trial(
                panel, int(f), rule, float(amplitude), attack, int(seed), int(rounds)
            )
            known[trial] = Outcome(float(loss), float(accuracy))
    return known


def write_trials(known: Known, file: Path) -> None:
    """Write all trials, in an order that does not depend on that of the runs.

    As a file that ends with .gz they are compressed; such a file takes no new trials.
    """
    rows = sorted([*astuple(t), *astuple(o)] for t, o in known.items())
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([HEADER, *rows])
    text = stream.getvalue().encode()
    write_bytes(file, gzip.compress(text, mtime=0) if file.suffix == ".gz" else text)


def run_trials(trials: Iterable[Trial], known: Known, file: Path) -> None:
    """Run those that are not known, add them to the known ones and to the file.

    Trials that differ by rule and step size alone share a simulation.
    """
    stacks: dict[tuple[Any, ...], list[Trial]] = defaultdict(list)
    for trial in dict.fromkeys(trials):
        if trial not in known:
            root = RULES[trial.rule].root
            place = (trial.panel, trial.f, trial.attack, trial.seed, trial.rounds)
            stacks[*place, root].append(trial)
    file.parent.mkdir(parents=True, exist_ok=True)
    for stack in stacks.values():
        news = _run(stack)
        known |= news
        with file.open("a", newline="") as lines:
            rows = ([*astuple(t), *astuple(o)] for t, o in news.items())
            csv.writer(lines, lineterminator="\n").writerows(rows)


def _run(stack: list[Trial]) -> Known:
    """One simulation."""
    one = stack[0]
    problem, L = build_panel(one.panel, one.seed)
    methods = [
        RULES[t.rule].method(f"{t.rule}, {t.amplitude:g}", t.amplitude / L, t.f)
        for t in stack
    ]
    trace = simulate(
        problem,
        build_federation(one.attack, one.f, RULES[one.rule].root),
        methods,
        rounds=one.rounds,
        seed=one.seed,
        dtype=np.float32,
        evaluate_every=one.rounds,
    )
    losses, accuracies = trace.final(), trace.final("test_accuracy")
    return {
        t: _outcome(losses[m.name], accuracies[m.name])
        for t, m in zip(stack, methods, strict=True)
    }


def _outcome(loss: float, accuracy: float) -> Outcome:
    if not math.isfinite(loss):
        return Outcome(math.inf, 0.0)
    return Outcome(float(f"{loss:.6g}"), float(f"{accuracy:.6g}"))
