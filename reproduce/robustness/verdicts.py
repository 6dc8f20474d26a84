"""The questions of the study, and its answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from hewfl.experiments.statistics import decide, measure
from reproduce.robustness.robustness_specs import (
    MOMENTA,
    ORACLE,
    OURS,
    PANELS,
    SCENARIOS,
    Key,
    under_momentum,
)
from reproduce.robustness.scores import Scores, is_deep, rank_by_worst

Answer = Literal["holds", "does not hold", "holds in part", "not run", "no verdict"]
FIXED = ("uniform", "horizon", "FedAvg")
LABELS = ("labels", "many", "mirrored")
WORST = 3
"""Cases that a verdict names."""
RUINED = 1.2
"""A rule whose loss is this much above the best is called ruined."""


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """A statement, what the study says to it, and why."""

    statement: str
    answer: Answer
    because: str


def verdicts(scores: Scores) -> list[Verdict]:
    """All questions of the study, in order."""
    return [
        _fixed_rules(scores),
        _clean(scores),
        _level(scores, "Under hidden batch sizes Algorithm 2 is among the best",
               ["HEW (Alg. 2), kappa 2"], ("hidden",), deep=False),
        _level(scores, "Under bad clients large kappa (10) is among the best",
               ["HEW (Alg. 3), kappa 10"], _bad_scenarios(), deep=False),
        _level(scores, "Under bad clients disagreement is among the best",
               ["disagreement"], _bad_scenarios(), deep=False),
        _level(scores, "Among iid workers of a CNN agreement is among the best",
               ["agreement"], ("clean", "labels", "signs"), deep=True),
        _level(scores, f"{OURS} is among the best in every convex scenario",
               [OURS], tuple(SCENARIOS), deep=False),
        _one_rule(scores, deep=False),
        _one_rule(scores, deep=False, without=("many",)),
        _one_rule(scores, deep=True),
        _oracle(scores),
        _averaging(scores),
    ]  # fmt: skip


def as_trial(answers: Sequence[Verdict]) -> list[Verdict]:
    """Verdicts of a run that is too small to say anything."""
    return [Verdict(v.statement, "no verdict", "a trial run") for v in answers]


def _bad_scenarios() -> tuple[str, ...]:
    return tuple(
        scenario for scenario in SCENARIOS if scenario not in ("clean", "hidden")
    )


def name_of(key: Key) -> str:
    """A panel and a scenario in words."""
    return f"{PANELS[key[0]].title}, {SCENARIOS[key[1]].title}"


def _keys(
    scores: Scores, scenarios: Sequence[str], *, deep: bool | None = None
) -> list[Key]:
    return [
        key
        for key in scores.keys
        if key[1] in scenarios and deep in (None, is_deep(key[0]))
    ]


def _answer(holds: Sequence[bool]) -> Answer:
    if not holds:
        return "not run"
    if all(holds):
        return "holds"
    return "holds in part" if any(holds) else "does not hold"


def _fixed_rules(scores: Scores) -> Verdict:
    keys = _keys(scores, LABELS, deep=False)
    ratios = [min(scores.ratio(key, rule) for rule in FIXED) for key in keys]
    holds = [ratio >= RUINED for ratio in ratios]
    span = _span(ratios)
    because = f"the best of {', '.join(FIXED)} has {span} times the best rule's loss"
    statement = (
        f"With bad labels fixed rules are ruined (at least {RUINED:g} times the loss)"
    )
    return Verdict(statement, _answer(holds), because)


def _clean(scores: Scores) -> Verdict:
    keys = _keys(scores, ("clean",))
    names = {
        key: [
            rule
            for rule in scores.rules(key[0])
            if rule != ORACLE and scores.is_level(key, rule)
        ]
        for key in keys
    }
    because = "; ".join(
        f"{PANELS[key[0]].title}: {len(level)} of {len(scores.rules(key[0])) - 1} are "
        f"not shown to be behind the best, {scores.winner(key)}"
        f"{_brackets(scores.shown((key, rule) for rule in level))}"
        for key, level in names.items()
    )
    holds = [len(names[key]) == len(scores.rules(key[0])) - 1 for key in keys]
    return Verdict("With all clients good the rules tie", _answer(holds), because)


def _level(
    scores: Scores,
    statement: str,
    rules: list[str],
    scenarios: Sequence[str],
    *,
    deep: bool,
) -> Verdict:
    keys = _keys(scores, scenarios, deep=deep)
    holds = [all(scores.is_level(key, rule) for rule in rules) for key in keys]
    lost = [key for key, held in zip(keys, holds, strict=True) if not held]
    shown = scores.shown((key, rule) for key in keys for rule in rules)
    level = f"not shown to be behind the best in {sum(holds)} of {len(keys)} cases"
    parts = [f"{level}{_brackets(shown)}"]
    far = {key: max(scores.ratio(key, rule) for rule in rules) for key in lost}
    worst = sorted(far, key=lambda key: -far[key])[:WORST]
    parts += [
        f"{name_of(key)}: {far[key]:.3g} times {scores.winner(key)}" for key in worst
    ]
    more = len(lost) - len(worst)
    parts += [f"and {more} more"] if more else []
    return Verdict(statement, _answer(holds), "; ".join(parts))


def _one_rule(scores: Scores, *, deep: bool, without: Sequence[str] = ()) -> Verdict:
    chosen = {k: v for k, v in scores.summaries.items() if k[1] not in without}
    some = Scores({k: v for k, v in chosen.items() if is_deep(k[0]) == deep})
    kind = "CNN" if deep else "convex"
    but = "".join(f", without «{SCENARIOS[scenario].title}»" for scenario in without)
    statement = f"{OURS} has the least worst ratio over all {kind} scenarios{but}"
    if not some.keys:
        return Verdict(statement, "not run", "")
    rows = rank_by_worst(some, some.panels())
    parts = [
        f"{rule} {ratio:.3f} ({name_of(key)})" for rule, ratio, key in rows[: WORST + 1]
    ]
    answer = _answer([rows[0][0] == OURS])
    return Verdict(statement, answer, "worst ratios: " + "; ".join(parts))


def _oracle(scores: Scores) -> Verdict:
    """Ours against the yardstick, scenario by scenario."""
    keys = list(scores.keys)
    over = [scores.value(key, OURS) / scores.value(key, ORACLE) for key in keys]
    holds = [ratio <= 1.02 for ratio in over]
    worst = int(np.argmax(over)) if over else 0
    because = f"{sum(holds)} of {len(keys)} cases; {_span(over)} times its loss"
    because += f", most in {name_of(keys[worst])}" if keys else ""
    statement = f"{OURS} is within 2 % of knowing who is bad"
    return Verdict(statement, _answer(holds), because)


def _averaging(scores: Scores) -> Verdict:
    """Averaged model against last iterate, every rule, scenario and momentum."""
    measured = {
        (key, label): measure(*pair)
        for key in scores.keys
        for rule in scores.rules(key[0])
        for label in (under_momentum(rule, b) for b in MOMENTA[is_deep(key[0])])
        for pair in [[scores.seeds(key, label, averaged=a) for a in (True, False)]]
    }
    measured = {k: c for k, c in measured.items() if c.seeds > 1}
    total = len(measured)
    answers = [c.verdict for c in decide(measured).values()]
    better, worse = answers.count("better"), answers.count("worse")
    because = (
        f"lower loss in {better} of {total} cases of rule, scenario and momentum, "
        f"higher in {worse}, the rest undecided (Holm over all of them)"
    )
    answer = _answer([better > 0, worse == 0]) if total else "not run"
    return Verdict("Averaging the iterates helps", answer, because)


def _brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _span(values: Sequence[float]) -> str:
    if not values:
        return "no"
    return f"{min(values):.2f} to {max(values):.2f}"
