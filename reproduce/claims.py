"""The paper's claims, held against our runs.

Main grid. Figure 1 shows three regimes, and the text says of each data set in which
"only" HEW is ahead. Heterogeneous data with equal H are in the paper's set-up but in no
figure: about them there is nothing but that "only", and it is judged as such. A claim
of an advantage agrees when HEW is ahead of all others; one of no clear advantage when
it is not, which few seeds and rounds make easy. Verdicts on pairs are those of
`hewfl.experiments.statistics.decide`, with the pairs of a claim as their family. Each
claim is judged twice: on the methods that the paper compares in that regime, and with
fair rivals added. The paper compares "under matched communication budgets", which are
scalars by its own count; every claim is judged so, and at equal scalars by ours and at
equal rounds too.

Deep-learning lines (Appendix F). The text does not say which algorithm "HEW" is
(erratum E-28): claims about it are judged for Algorithm 3 and, in line 2, for Algorithm
2 as well. The paper compares curves over communication. Three moments stand for them:
after the last round; in the round of each method and seed with the best validation
accuracy, as a user who keeps the best model would; and at a shared budget, the numbers
that the thriftiest method has sent at its end, in our count and in the paper's. A claim
of several comparisons agrees if all of them do, does not if one is clearly the other
way round, and is undecided otherwise. A claim about methods that were not run is not
judged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, final

import numpy as np

from hewfl.core.array_types import Float64, Int64
from hewfl.core.validation import Array, Ints
from hewfl.experiments.results import LARGER_IS_BETTER, Axis, Group, Results
from hewfl.experiments.statistics import (
    Comparison,
    compare,
    compare_methods,
    decide,
    detectable_text,
    interval_text,
    measure,
    start_values,
    verdict_text,
)
from reproduce.specs import (
    DATA,
    FIGURE_1,
    FIGURE_2,
    HEW_CORRECTED,
    HEW_PLAIN,
    ONE_STEP,
    REGIMES,
    hew_of,
)

Verdict = Literal["agrees", "does not agree", "undecided", "not run", "no verdict"]
Panels = Mapping[tuple[str, str], Results]

ADVANTAGE = (("covertype", "hom-random"), ("mnist", "het-random"))
"""Where the paper sees HEW ahead of HEW-Fixed and of every baseline; nowhere else."""
EQUAL: dict[Axis, str] = {
    "rounds": "at equal rounds",
    "scalars": "at equal scalars",
    "paper_scalars": "at equal scalars by the paper's count",
}
"""What a comparison may hold equal; the last is what the paper's text means."""
HEW = (HEW_PLAIN, HEW_CORRECTED)
OWN = (
    *("HEW-Fixed (uniform)", "HEW-Fixed (horizon)"),
    *("Uniform", "FedAvg", "FedNova"),
)
"""What the paper compares HEW with in every regime."""
OWN_EQUAL = (*OWN, "SCAFFOLD", "FedProx", "minibatch SGD (H steps)", ONE_STEP)
"""What it compares with where horizons are equal: "we additionally include"."""
SETS = {
    True: "on the paper's own methods",
    False: "with the fair rivals added",
}
"""What a claim of the grid is judged on."""
HEW_FIXED = "HEW-Fixed"
LEADERS = ("FedAvg", "FedProx", "FedNova", "Uniform")
ACCURACY = ("validation_accuracy", "test_accuracy")
LOSS = ("validation_loss", "test_loss")
Pair = tuple[str, str]
"""A method that is said to be ahead, and one said to be behind it."""
Mass = Mapping[Group, Float64[Array, " seeds"]]
SLACK = 1e-3
"""Share of the budget that does not count: HEW sends one number more than others."""
LATE = 0.25
"""The last part of the rounds, over which weights are averaged as well."""


@final
@dataclass(frozen=True, slots=True)
class Claim:
    """One claim and what our runs say to it.

    Attributes:
        statement: the claim.
        verdict: whether they agree.
        because: the numbers behind it, in words.
    """

    statement: str
    verdict: Verdict
    because: str


def judge(panels: Panels) -> list[Claim]:
    """Every claim that the panels at hand allow to judge."""
    claims = []
    for (data, regime), results in panels.items():
        hew = hew_of(regime)
        if hew in results.labels and regime in REGIMES:
            sets = (
                (True, False) if _own(results, regime) != _others(results) else (True,)
            )
            claims += [
                advantage((data, regime), results, axis, is_own=is_own)
                for is_own in sets
                for axis in EQUAL
            ]
        if regime in FIGURE_2 and data in DATA and hew in results.labels:
            claims.append(uneven_weights(data, regime, results))
        if ONE_STEP in results.labels:
            claims.append(_worst(data, regime, results))
    return claims


def _others(results: Results) -> list[str]:
    """Every method that is not HEW."""
    return [k for k in results.labels if k not in HEW]


def _own(results: Results, regime: str) -> list[str]:
    """The methods that the paper compares HEW with in a regime."""
    own = OWN_EQUAL if regime.endswith("equal") else OWN
    return [k for k in _others(results) if k in own]


def against_others(
    results: Results, hew: str, quantity: str, axis: Axis = "rounds"
) -> dict[str, Comparison]:
    """HEW against every method that is not HEW, on the same seeds: one family."""
    return compare_methods(results, hew, _others(results), quantity, axis=axis)


def rivals_of(results: Results, regime: str, *, is_own: bool) -> list[str]:
    """What HEW is compared with: the paper's own methods, or all."""
    return _own(results, regime) if is_own else _others(results)


def advantage(
    key: tuple[str, str], results: Results, axis: Axis, *, is_own: bool
) -> Claim:
    """Whether HEW is ahead of all rivals in a panel, or, elsewhere, whether it is not.

    Args:
        key: data set and regime.
        results: of the panel.
        axis: what is equal.
        is_own: on the paper's own methods alone.
    """
    data, regime = key
    hew = hew_of(regime)
    rivals = rivals_of(results, regime, is_own=is_own)
    loss = compare_methods(results, hew, rivals, "objective", axis=axis)
    accuracy = compare_methods(results, hew, rivals, "test_accuracy", axis=axis)
    lower, higher = _labels(loss, "better"), _labels(loss, "worse")
    is_clear = len(lower) == len(loss) and not _labels(accuracy, "worse")
    panel = f"{data}, {regime}, {EQUAL[axis]}, {SETS[is_own]}"
    if key in ADVANTAGE:
        statement = f"{panel}: HEW is ahead of HEW-Fixed and all baselines"
        verdict: Verdict = "agrees" if is_clear else "undecided"
        if higher:
            verdict = "does not agree"
    else:
        shown = "" if regime in FIGURE_1 else " (in no figure; by the text's «only»)"
        statement = f"{panel}: HEW has no clear advantage{shown}"
        verdict = "does not agree" if is_clear else "agrees"
    because = (
        f"{hew}, {len(results.spec.seeds)} seeds, {len(rivals)} pairs: objective "
        f"lower than {_list(lower)}, higher than {_list(higher)}; accuracy higher than "
        f"{_list(_labels(accuracy, 'better'))}, lower than "
        f"{_list(_labels(accuracy, 'worse'))}{_closest(loss)}"
    )
    return Claim(statement, verdict, because)


def _labels(outcomes: Mapping[str, Comparison], verdict: str) -> list[str]:
    return [label for label, c in outcomes.items() if c.verdict == verdict]


def _closest(outcomes: Mapping[str, Comparison]) -> str:
    """The rival that HEW is least ahead of, with what the verdict rests on."""
    known = {k: c for k, c in outcomes.items() if np.isfinite([c.low, c.high]).all()}
    if not known:
        return ""
    label = max(known, key=lambda k: known[k].mean)
    return f"; against {label}, the best of them, {verdict_text(known[label])}"


def _worst(data: str, regime: str, results: Results) -> Claim:
    """Whether minibatch SGD with one step a round is behind every other method.

    The paper says so of its text classification line alone.
    """
    others = [label for label in results.labels if label != ONE_STEP]
    outcomes = compare_methods(results, ONE_STEP, others, "objective")
    ahead, behind = _labels(outcomes, "worse"), _labels(outcomes, "better")
    verdict: Verdict = "agrees" if len(ahead) == len(others) else "undecided"
    if behind:
        verdict = "does not agree"
    return Claim(
        f"{data}, {regime}: minibatch SGD with one step a round is worst (said of the "
        "text line alone)",
        verdict,
        f"objective at equal rounds lower for {len(ahead)} of {len(others)} methods, "
        f"higher for {_list(behind)}",
    )


def as_trial(claims: Iterable[Claim]) -> list[Claim]:
    """Claims of a run that is too small to say anything about them."""
    return [Claim(c.statement, "no verdict", "a trial run") for c in claims]


def uneven_weights(data: str, regime: str, results: Results) -> Claim:
    """Weight per client of each horizon group against the uniform 1/n."""
    hew, n = hew_of(regime), results.spec.clients.n
    entry = results.labels.index(hew)
    ratios: dict[int, list[float]] = {}
    for by_entry in results.records:
        last = by_entry[entry][-1]
        H, w = np.array(last.horizons), np.array(last.weights)
        for h in np.unique(H):
            ratios.setdefault(int(h), []).append(float(w[h == H].mean() * n))
    means = {h: float(np.mean(r)) for h, r in sorted(ratios.items())}
    outcomes = decide({h: measure(r, np.ones(len(r))) for h, r in ratios.items()})
    uneven = [h for h, c in outcomes.items() if c.verdict != "undecided"]
    words = ", ".join(f"H = {h}: {m:.2f}" for h, m in means.items())
    return Claim(
        f"{data}, {regime}: HEW's final weights are not uniform over horizon groups",
        "agrees" if uneven else "undecided",
        f"weight of a client over 1/n, mean over seeds: {words}",
    )


def _list(labels: list[str]) -> str:
    return ", ".join(labels) if labels else "none"


class Moment(StrEnum):
    """When methods are compared."""

    last = "last round"
    best = "best validation round"
    budget = "equal scalars"
    paper_budget = "equal scalars, the paper's count"


def at_moment(
    results: Results, label: str, quantity: str, moment: Moment
) -> Float64[Array, " seeds"]:
    """A quantity of one method at a moment, seed by seed; NaN where it diverged.

    Args:
        results: of a line.
        label: of the method.
        quantity: such as `test_accuracy`.
        moment: when.
    """
    if not results.measures(label, quantity):
        return np.full(len(results.spec.seeds), np.nan)
    values = results.curve(label, quantity)
    return np.take_along_axis(values, _points(results, label, moment)[:, None], 1)[:, 0]


def measure_at(
    results: Results, pair: Pair, quantity: str, moment: Moment
) -> Comparison:
    """The first method of a pair against the second at a moment, without a verdict."""
    first, second = (at_moment(results, label, quantity, moment) for label in pair)
    begun = (start_values(results, pair[0], quantity),)
    return measure(
        first,
        second,
        larger_is_better=quantity in LARGER_IS_BETTER,
        starts=(*begun, start_values(results, pair[1], quantity)),
    )


def late_mass(results: Results, label: str) -> dict[Group, Float64[Array, " seeds"]]:
    """Weight of the clients of each group, the mean over the last quarter of rounds."""
    entry, masses = results.labels.index(label), dict[Group, Float64[Array, " seeds"]]()
    first = round((1 - LATE) * results.spec.rounds) + 1
    for seed, by_entry in enumerate(results.records):
        late = [r for r in by_entry[entry] if r.round >= first and r.clients]
        for record in late:
            groups = results.groups(seed, record)
            for h, weight in zip(groups, record.weights, strict=True):
                empty = np.zeros(len(results.records))
                masses.setdefault(h, empty)[seed] += weight / len(late)
    return dict(sorted(masses.items()))


def share_ahead(results: Results, pair: tuple[str, str], quantity: str) -> float:
    """Share of the evaluated rounds, after a tenth, in which the first's mean leads."""
    first, second = (results.curve(label, quantity).mean(axis=0) for label in pair)
    late = results.rounds > 0.1 * results.spec.rounds
    lead = first - second if quantity in LARGER_IS_BETTER else second - first
    return float((lead[late] > 0).mean())


def _points(results: Results, label: str, moment: Moment) -> Int64[Ints, " seeds"]:
    """Which of the evaluated rounds stands for the moment, seed by seed."""
    seeds = len(results.spec.seeds)
    if moment == Moment.last:
        return np.full(seeds, len(results.rounds) - 1)
    if moment == Moment.best:
        values = results.curve(label, "validation_accuracy")
        return np.asarray(np.argmax(np.nan_to_num(values, nan=-np.inf), axis=1))
    count = "scalars" if moment == Moment.budget else "paper_scalars"
    budget = _shared(results, results.labels, count) * (1 + SLACK)
    within = results.curve(label, count) <= budget[:, None]
    return np.asarray(within.sum(axis=1) - 1)


def _shared(
    results: Results, labels: Sequence[str], count: str
) -> Float64[Array, " seeds"]:
    """What the thriftiest method has sent at its end, seed by seed."""
    ends = [results.curve(label, count)[:, -1] for label in labels]
    return np.asarray(np.min(ends, axis=0))


def judge_head(results: Results) -> list[Claim]:
    """Line 2: AG News, a head on frozen features (Figures 3 and 4)."""
    behind = (*HEW, HEW_FIXED, "SCAFFOLD", "minibatch SGD")
    everyone = (*LEADERS, *HEW, HEW_FIXED, "SCAFFOLD")
    lead = [(first, second) for first in LEADERS for second in behind]
    statements = {"FedAvg, FedProx, FedNova and Uniform lead": lead}
    for hew in HEW:
        statements |= {
            f"{hew} is below those four": [(first, hew) for first in LEADERS],
            f"{hew} is above HEW-Fixed": [(hew, HEW_FIXED)],
            f"SCAFFOLD lies between {hew} and HEW-Fixed": [
                *((hew, "SCAFFOLD"), ("SCAFFOLD", HEW_FIXED))
            ],
        }
    statements["minibatch SGD is worst"] = [
        (first, "minibatch SGD") for first in everyone
    ]
    claims = _at_all_moments(results, statements, {"": ACCURACY})
    return claims + [claim for hew in HEW for claim in _concentrated(results, hew)]


def judge_cnn(results: Results) -> list[Claim]:
    """Line 1: Fashion-MNIST, a medium CNN (Figures 5 and 6)."""
    quantities = {" in accuracy": ACCURACY, " in both losses": LOSS}
    claims = []
    for hew in (HEW_PLAIN, *(k for k in results.labels if k == HEW_CORRECTED)):
        versus = (hew, "FedAvg")
        beats = {f"{hew} beats FedAvg": [versus]}
        claims += _at_all_moments(results, beats, quantities)
        claims.append(_most_of_the_run(results, versus))
        claims += _longest(results, hew)
    return claims


def judge_equal(results: Results) -> list[Claim]:
    """Line 2 at equal ground: only what is statements of the methods that have it."""
    statements = {
        f"{hew} is above {other}": [(hew, other)]
        for hew in HEW
        for other in (HEW_FIXED, "Uniform")
    }
    return _at_all_moments(results, statements, {"": ACCURACY})


def _at_all_moments(
    results: Results,
    statements: Mapping[str, Sequence[Pair]],
    quantities: Mapping[str, Sequence[str]],
) -> list[Claim]:
    """Statements of pairs, each in some quantities, moment by moment."""
    return [
        _ahead(results, statement + words, pairs, names, moment)
        for moment in Moment
        for statement, pairs in statements.items()
        for words, names in quantities.items()
    ]


def _ahead(
    results: Results,
    statement: str,
    pairs: Sequence[Pair],
    quantities: Sequence[str],
    moment: Moment,
) -> Claim:
    """Whether the first of every pair is ahead of the second, in every quantity."""
    statement = f"{moment}: {statement}"
    if missing := _missing(results, (label for two in pairs for label in two)):
        return _not_run(statement, missing)
    measured = {
        (quantity, *two): measure_at(results, two, quantity, moment)
        for quantity in quantities
        for two in pairs
    }
    outcomes = decide(measured)
    return Claim(statement, _verdict(outcomes.values()), _words(outcomes))


def _most_of_the_run(results: Results, pair: Pair) -> Claim:
    """Whether the first's mean curve leads in most rounds after a tenth of them."""
    statement = f"{pair[0]} beats {pair[1]} for most of the run"
    if missing := _missing(results, pair):
        return _not_run(statement, missing)
    if len(results.rounds) < 2:
        return Claim(statement, "not run", "the last round alone is known")
    shares = {q: share_ahead(results, pair, q) for q in (*ACCURACY, *LOSS)}
    verdict: Verdict = "agrees" if min(shares.values()) > 0.5 else "does not agree"
    parts = (f"{q.replace('_', ' ')} {share:.0%}" for q, share in shares.items())
    because = "share of evaluated rounds in which its mean over seeds leads: "
    return Claim(statement, verdict, because + ", ".join(parts))


def _concentrated(results: Results, hew: str) -> list[Claim]:
    """Whether HEW's weight is on fewer horizon groups than HEW-Fixed's.

    Groups are counted by 1/Σ m², which is k if the mass m is even over k of them.
    """
    statement = f"{hew} concentrates on fewer horizon groups than HEW-Fixed"
    if missing := _missing(results, (hew, HEW_FIXED)):
        return [_not_run(statement, missing)]
    claims = []
    for when, masses in _masses(results, (hew, HEW_FIXED)).items():
        groups, fixed = map(_spread, masses)
        outcome = compare(groups, fixed)
        because = (
            f"groups with weight (1/Σ m²): {np.nanmean(groups):.1f} against "
            f"{np.nanmean(fixed):.1f}: {interval_text(outcome)}"
        )
        claims.append(Claim(f"{when}: {statement}", _verdict([outcome]), because))
    return claims


def _longest(results: Results, hew: str) -> list[Claim]:
    """Whether HEW gives the clients with the most local work more than FedAvg does."""
    statement = f"{hew} moves weight towards the longest local work (H = 4)"
    if missing := _missing(results, (hew, "FedAvg")):
        return [_not_run(statement, missing)]
    claims = []
    for when, masses in _masses(results, (hew, "FedAvg")).items():
        longest = max(masses[0])
        ours, plain = (mass[longest] for mass in masses)
        outcome = compare(ours, plain, larger_is_better=True)
        because = (
            f"weight of H = {longest}: {ours.mean():.2f} against "
            f"{plain.mean():.2f} of FedAvg, difference {interval_text(outcome)}"
        )
        claims.append(Claim(f"{when}: {statement}", _verdict([outcome]), because))
    return claims


def _masses(results: Results, labels: Pair) -> dict[str, list[Mass]]:
    """Weights by horizon of two methods: in the last round, and of the late ones."""
    return {
        str(Moment.last): [results.mass(label) for label in labels],
        "last quarter": [late_mass(results, label) for label in labels],
    }


def _spread(masses: Mass) -> Float64[Array, " seeds"]:
    squares = sum(mass**2 for mass in masses.values())
    with np.errstate(divide="ignore"):  # all weights are zero where a method stopped
        counts = 1 / np.asarray(squares, dtype=np.float64)
    return np.where(np.isfinite(counts), counts, np.nan)


def _missing(results: Results, labels: Iterable[str]) -> list[str]:
    return sorted({label for label in labels if label not in results.labels})


def _not_run(statement: str, missing: Sequence[str]) -> Claim:
    return Claim(statement, "not run", f"not run: {', '.join(missing)}")


def _verdict(outcomes: Iterable[Comparison]) -> Verdict:
    verdicts = [outcome.verdict for outcome in outcomes]
    if "worse" in verdicts:
        return "does not agree"
    return "agrees" if set(verdicts) == {"better"} else "undecided"


def _words(outcomes: dict[tuple[str, str, str], Comparison]) -> str:
    """Every comparison with its interval; of many, only those against the claim."""
    verdicts = [outcome.verdict for outcome in outcomes.values()]
    shown, counts = outcomes, ""
    if len(outcomes) > 8:
        shown = {k: v for k, v in outcomes.items() if v.verdict == "worse"}
        counted = (f"{verdicts.count(v)} {v}" for v in ("better", "undecided", "worse"))
        counts = f"of {len(outcomes)} comparisons {', '.join(counted)}"
        doubt = [c for c in outcomes.values() if c.verdict == "undecided"]
        if doubt:
            least = max(doubt, key=lambda c: c.detectable)
            counts += f" ({detectable_text(least)})"
        counts += "; " if shown else ""
    return counts + "; ".join(
        f"{quantity.replace('_', ' ')} of {first} against {second}: "
        f"{verdict_text(outcome)}"
        for (quantity, first, second), outcome in shown.items()
    )
