"""The paper's claims about its deep-learning lines (Appendix F), against our runs.

Which algorithm "HEW" is there the text does not say (erratum E-28), so every claim
about it is judged for both. A claim of several comparisons agrees if all of them do,
does not if one is clearly the other way round, and is undecided otherwise, by paired
intervals over the seeds in the last round; the paper speaks of whole curves. One about
methods that were not run is not judged.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.experiments.compare import Comparison, compare, pair
from hewfl.experiments.results import Results
from hewfl.paper.claims import Claim, Verdict
from hewfl.paper.specs import HEW_CORRECTED, HEW_PLAIN

HEW = (HEW_PLAIN, HEW_CORRECTED)
HEW_FIXED = "HEW-Fixed"
LEADERS = ("FedAvg", "FedProx", "FedNova", "Uniform")
ACCURACY = ("validation_accuracy", "test_accuracy")
LOSS = ("validation_loss", "test_loss")
Pair = tuple[str, str]
"""A method that is said to be ahead, and one said to be behind it."""


def judge_head(results: Results) -> list[Claim]:
    """Line 2: AG News, a head on frozen features (Figures 3 and 4)."""
    behind = (*HEW, HEW_FIXED, "SCAFFOLD", "minibatch SGD")
    everyone = (*LEADERS, *HEW, HEW_FIXED, "SCAFFOLD")
    found = [
        _ahead(
            results,
            "FedAvg, FedProx, FedNova and Uniform lead",
            [(first, second) for first in LEADERS for second in behind],
            ACCURACY,
        )
    ]
    for hew in HEW:
        below = [(first, hew) for first in LEADERS]
        between = [(hew, "SCAFFOLD"), ("SCAFFOLD", HEW_FIXED)]
        found += [
            _ahead(results, f"{hew} is below those four", below, ACCURACY),
            _ahead(results, f"{hew} is above HEW-Fixed", [(hew, HEW_FIXED)], ACCURACY),
            _ahead(
                results,
                f"SCAFFOLD lies between {hew} and HEW-Fixed",
                between,
                ACCURACY,
            ),
            _concentrated(results, hew),
        ]
    last = [(first, "minibatch SGD") for first in everyone]
    found.append(_ahead(results, "minibatch SGD is worst", last, ACCURACY))
    return found


def judge_cnn(results: Results) -> list[Claim]:
    """Line 1: Fashion-MNIST, a medium CNN (Figures 5 and 6)."""
    found = []
    for hew in HEW:
        versus = [(hew, "FedAvg")]
        found += [
            _ahead(results, f"{hew} is above FedAvg in accuracy", versus, ACCURACY),
            _ahead(results, f"{hew} is below FedAvg in both losses", versus, LOSS),
            _longest(results, hew),
        ]
    return found


def _ahead(
    results: Results, statement: str, pairs: Sequence[Pair], quantities: Sequence[str]
) -> Claim:
    """Whether the first of every pair is ahead of the second, in every quantity."""
    if missing := _missing(results, (label for two in pairs for label in two)):
        return _not_run(statement, missing)
    outcomes = {
        (quantity, first, second): pair(results, first, second, quantity)
        for quantity in quantities
        for first, second in pairs
    }
    return Claim(statement, _verdict(outcomes.values()), _words(outcomes))


def _concentrated(results: Results, hew: str) -> Claim:
    """Whether HEW's weight is on fewer horizon groups than HEW-Fixed's.

    Groups are counted by 1/Σ m², which is k if the mass m is even over k of them.
    """
    statement = f"{hew} concentrates on fewer horizon groups than HEW-Fixed"
    if missing := _missing(results, (hew, HEW_FIXED)):
        return _not_run(statement, missing)
    own, fixed = (_spread(results, label) for label in (hew, HEW_FIXED))
    outcome = compare(own, fixed)
    because = (
        f"groups with weight in the last round (1/Σ m²): {np.nanmean(own):.1f} against "
        f"{np.nanmean(fixed):.1f}, difference {_interval(outcome)}"
    )
    return Claim(statement, _verdict([outcome]), because)


def _longest(results: Results, hew: str) -> Claim:
    """Whether HEW gives the clients with the most local work more than FedAvg does."""
    statement = f"{hew} moves weight towards the longest local work (H = 4)"
    if missing := _missing(results, (hew, "FedAvg")):
        return _not_run(statement, missing)
    masses = [results.mass(label) for label in (hew, "FedAvg")]
    longest = max(masses[0])
    own, plain = (mass[longest] for mass in masses)
    outcome = compare(own, plain, larger_is_better=True)
    because = (
        f"weight of H = {longest} in the last round: {own.mean():.2f} against "
        f"{plain.mean():.2f} of FedAvg, difference {_interval(outcome)}"
    )
    return Claim(statement, _verdict([outcome]), because)


def _spread(results: Results, label: str) -> Float64[Array, " seeds"]:
    squares = sum(mass**2 for mass in results.mass(label).values())
    with np.errstate(divide="ignore"):  # nobody has weight where a method stopped
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
        counts += "; " if shown else ""
    return counts + "; ".join(
        f"{quantity.replace('_', ' ')} of {first} less {second}: {_interval(outcome)}"
        for (quantity, first, second), outcome in shown.items()
    )


def _interval(outcome: Comparison) -> str:
    if outcome.seeds < 2:
        return f"{outcome.mean:+.4f} (no interval)"
    return f"{outcome.mean:+.4f} ({outcome.low:+.4f} to {outcome.high:+.4f})"
