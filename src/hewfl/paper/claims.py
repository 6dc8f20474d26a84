"""The paper's claims about its main experiments, held against our runs.

Figure 1 shows three regimes, and the text says of each data set in which "only" HEW is
ahead. Heterogeneous data with equal H are in the paper's set-up but in no figure: about
them there is nothing but that "only", and it is judged as such.

A claim of an advantage agrees when HEW is ahead of all others by 95 % paired intervals;
one of no clear advantage when it is not, which few seeds and rounds make easy. The
paper compares "under matched communication budgets", which are scalars by its own
count; every claim is judged so, and at equal scalars by ours and at equal rounds too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from hewfl.experiments.axes import Axis
from hewfl.experiments.compare import Comparison, compare, pair
from hewfl.experiments.results import Results
from hewfl.paper.specs import (
    DATA,
    FIGURE_1,
    FIGURE_2,
    HEW_CORRECTED,
    HEW_PLAIN,
    ONE_STEP,
    REGIMES,
    hew_of,
)

Verdict = Literal["agrees", "does not agree", "undecided", "not run"]
Panels = Mapping[tuple[str, str], Results]

ADVANTAGE = (("covertype", "hom-random"), ("mnist", "het-random"))
"""Where the paper sees HEW ahead of HEW-Fixed and of every baseline; nowhere else."""
EQUAL: dict[Axis, str] = {
    "rounds": "at equal rounds",
    "scalars": "at equal scalars",
    "paper_scalars": "at equal scalars by the paper's count",
}
"""What a comparison may hold equal; the last is what the paper's text means."""


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
    found = []
    for (data, regime), results in panels.items():
        hew = hew_of(regime)
        if hew in results.labels and regime in REGIMES:
            found += [_advantage(data, regime, results, axis) for axis in EQUAL]
        if regime in FIGURE_2 and data in DATA and hew in results.labels:
            found.append(_uneven_weights(data, regime, results))
        if ONE_STEP in results.labels:
            found.append(_worst(data, regime, results))
    return found


def against_others(
    results: Results, hew: str, quantity: str, axis: Axis = "rounds"
) -> dict[str, Comparison]:
    """HEW against every method that is not HEW, on the same seeds."""
    others = [k for k in results.labels if k not in (HEW_PLAIN, HEW_CORRECTED)]
    return {label: pair(results, hew, label, quantity, axis=axis) for label in others}


def _advantage(data: str, regime: str, results: Results, axis: Axis) -> Claim:
    hew = hew_of(regime)
    loss = against_others(results, hew, "objective", axis)
    accuracy = against_others(results, hew, "test_accuracy", axis)
    ahead = [label for label, c in loss.items() if c.verdict == "better"]
    behind = [label for label, c in loss.items() if c.verdict == "worse"]
    more = [label for label, c in accuracy.items() if c.verdict == "better"]
    worse = [label for label, c in accuracy.items() if c.verdict == "worse"]
    is_clear = len(ahead) == len(loss) and not worse
    expected = (data, regime) in ADVANTAGE
    panel = f"{data}, {regime}, {EQUAL[axis]}"
    if expected:
        statement = f"{panel}: HEW is ahead of HEW-Fixed and all baselines"
        verdict: Verdict = "agrees" if is_clear else "undecided"
        if behind:
            verdict = "does not agree"
    else:
        shown = "" if regime in FIGURE_1 else " (in no figure; by the text's «only»)"
        statement = f"{panel}: HEW has no clear advantage{shown}"
        verdict = "does not agree" if is_clear else "agrees"
    because = (
        f"{hew}, {len(results.spec.seeds)} seeds, 95 % paired intervals: objective "
        f"lower than {_list(ahead)}, higher than {_list(behind)}; accuracy higher than "
        f"{_list(more)}, lower than {_list(worse)}{_closest(loss)}"
    )
    return Claim(statement, verdict, because)


def _closest(outcomes: Mapping[str, Comparison]) -> str:
    """The rival that HEW is least ahead of, with the interval."""
    known = {k: o for k, o in outcomes.items() if np.isfinite([o.low, o.high]).all()}
    if not known:
        return ""
    label = max(known, key=lambda k: known[k].mean)
    o = known[label]
    return (
        f"; against {label}, the best of them, {o.mean:+.4f} "
        f"({o.low:+.4f} to {o.high:+.4f})"
    )


def _worst(data: str, regime: str, results: Results) -> Claim:
    """Whether minibatch SGD with one step a round is behind every other method.

    The paper says so of its text classification line alone.
    """
    others = [label for label in results.labels if label != ONE_STEP]
    outcomes = {k: pair(results, k, ONE_STEP, "objective") for k in others}
    ahead = [label for label, o in outcomes.items() if o.verdict == "better"]
    behind = [label for label, o in outcomes.items() if o.verdict == "worse"]
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


def _uneven_weights(data: str, regime: str, results: Results) -> Claim:
    """Weight per client of each horizon group against the uniform 1/n."""
    hew, n = hew_of(regime), results.spec.clients.n
    lane = results.labels.index(hew)
    ratios: dict[int, list[float]] = {}
    for by_lane in results.records:
        last = by_lane[lane][-1]
        H, w = np.array(last.horizons), np.array(last.weights)
        for h in np.unique(H):
            ratios.setdefault(int(h), []).append(float(w[h == H].mean() * n))
    means = {h: float(np.mean(r)) for h, r in sorted(ratios.items())}
    decided = [
        h
        for h, r in ratios.items()
        if compare(np.array(r), np.ones(len(r))).verdict != "undecided"
    ]
    words = ", ".join(f"H = {h}: {m:.2f}" for h, m in means.items())
    return Claim(
        f"{data}, {regime}: HEW's final weights are not uniform over horizon groups",
        "agrees" if decided else "undecided",
        f"weight of a client over 1/n, mean over seeds: {words}",
    )


def _list(labels: list[str]) -> str:
    return ", ".join(labels) if labels else "none"
