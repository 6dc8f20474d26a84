"""The paper's claims about its deep-learning lines (Appendix F), against our runs.

Which algorithm "HEW" is there the text does not say (erratum E-28): claims about it are
judged for Algorithm 3 and, in line 2, for Algorithm 2 as well. A claim of several
comparisons agrees if all of them do, does not if one is clearly the other way round,
and is undecided otherwise, by paired intervals over the seeds, at each `Moment`. One
about methods that were not run is not judged.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.experiments.compare import Comparison, compare
from hewfl.experiments.results import Group, Results
from hewfl.paper.claims import Claim, Verdict
from hewfl.paper.moments_deep import Moment, compare_at, late_mass, share_ahead
from hewfl.paper.specs import HEW_CORRECTED, HEW_PLAIN

HEW = (HEW_PLAIN, HEW_CORRECTED)
HEW_FIXED = "HEW-Fixed"
LEADERS = ("FedAvg", "FedProx", "FedNova", "Uniform")
ACCURACY = ("validation_accuracy", "test_accuracy")
LOSS = ("validation_loss", "test_loss")
Pair = tuple[str, str]
"""A method that is said to be ahead, and one said to be behind it."""
Mass = Mapping[Group, Float64[Array, " seeds"]]


def judge_head(results: Results) -> list[Claim]:
    """Line 2: AG News, a head on frozen features (Figures 3 and 4)."""
    behind = (*HEW, HEW_FIXED, "SCAFFOLD", "minibatch SGD")
    everyone = (*LEADERS, *HEW, HEW_FIXED, "SCAFFOLD")
    lead = [(first, second) for first in LEADERS for second in behind]
    said = {"FedAvg, FedProx, FedNova and Uniform lead": lead}
    for hew in HEW:
        said |= {
            f"{hew} is below those four": [(first, hew) for first in LEADERS],
            f"{hew} is above HEW-Fixed": [(hew, HEW_FIXED)],
            f"SCAFFOLD lies between {hew} and HEW-Fixed": [
                *((hew, "SCAFFOLD"), ("SCAFFOLD", HEW_FIXED))
            ],
        }
    said["minibatch SGD is worst"] = [(first, "minibatch SGD") for first in everyone]
    found = _at_all_moments(results, said, {"": ACCURACY})
    return found + [claim for hew in HEW for claim in _concentrated(results, hew)]


def judge_cnn(results: Results) -> list[Claim]:
    """Line 1: Fashion-MNIST, a medium CNN (Figures 5 and 6)."""
    versus = [(HEW_PLAIN, "FedAvg")]
    quantities = {" in accuracy": ACCURACY, " in both losses": LOSS}
    found = _at_all_moments(results, {f"{HEW_PLAIN} beats FedAvg": versus}, quantities)
    found.append(_most_of_the_run(results, versus[0]))
    return found + _longest(results, HEW_PLAIN)


def judge_equal(results: Results) -> list[Claim]:
    """Line 2 at equal ground: only what is said of the methods that have it."""
    said = {
        f"{hew} is above {other}": [(hew, other)]
        for hew in HEW
        for other in (HEW_FIXED, "Uniform")
    }
    return _at_all_moments(results, said, {"": ACCURACY})


def _at_all_moments(
    results: Results,
    said: Mapping[str, Sequence[Pair]],
    quantities: Mapping[str, Sequence[str]],
) -> list[Claim]:
    """Statements of pairs, each in some quantities, moment by moment."""
    return [
        _ahead(results, statement + words, pairs, names, moment)
        for moment in Moment
        for statement, pairs in said.items()
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
    outcomes = {
        (quantity, *two): compare_at(results, two, quantity, moment)
        for quantity in quantities
        for two in pairs
    }
    return Claim(statement, _verdict(outcomes.values()), _words(outcomes))


def _most_of_the_run(results: Results, pair: Pair) -> Claim:
    """Whether the first's mean curve leads in most rounds after a tenth of them."""
    statement = f"{pair[0]} beats {pair[1]} for most of the run"
    if missing := _missing(results, pair):
        return _not_run(statement, missing)
    shares = {q: share_ahead(results, pair, q) for q in (*ACCURACY, *LOSS)}
    verdict: Verdict = "agrees" if min(shares.values()) > 0.5 else "does not agree"
    told = (f"{q.replace('_', ' ')} {share:.0%}" for q, share in shares.items())
    because = "share of evaluated rounds in which its mean over seeds leads: "
    return Claim(statement, verdict, because + ", ".join(told))


def _concentrated(results: Results, hew: str) -> list[Claim]:
    """Whether HEW's weight is on fewer horizon groups than HEW-Fixed's.

    Groups are counted by 1/Σ m², which is k if the mass m is even over k of them.
    """
    statement = f"{hew} concentrates on fewer horizon groups than HEW-Fixed"
    if missing := _missing(results, (hew, HEW_FIXED)):
        return [_not_run(statement, missing)]
    found = []
    for when, masses in _masses(results, (hew, HEW_FIXED)).items():
        own, fixed = map(_spread, masses)
        outcome = compare(own, fixed)
        because = (
            f"groups with weight (1/Σ m²): {np.nanmean(own):.1f} against "
            f"{np.nanmean(fixed):.1f}, difference {_interval(outcome)}"
        )
        found.append(Claim(f"{when}: {statement}", _verdict([outcome]), because))
    return found


def _longest(results: Results, hew: str) -> list[Claim]:
    """Whether HEW gives the clients with the most local work more than FedAvg does."""
    statement = f"{hew} moves weight towards the longest local work (H = 4)"
    if missing := _missing(results, (hew, "FedAvg")):
        return [_not_run(statement, missing)]
    found = []
    for when, masses in _masses(results, (hew, "FedAvg")).items():
        longest = max(masses[0])
        own, plain = (mass[longest] for mass in masses)
        outcome = compare(own, plain, larger_is_better=True)
        because = (
            f"weight of H = {longest}: {own.mean():.2f} against "
            f"{plain.mean():.2f} of FedAvg, difference {_interval(outcome)}"
        )
        found.append(Claim(f"{when}: {statement}", _verdict([outcome]), because))
    return found


def _masses(results: Results, labels: Pair) -> dict[str, list[Mass]]:
    """Weights by horizon of two methods: in the last round, and of the late ones."""
    return {
        str(Moment.last): [results.mass(label) for label in labels],
        "last quarter": [late_mass(results, label) for label in labels],
    }


def _spread(masses: Mass) -> Float64[Array, " seeds"]:
    squares = sum(mass**2 for mass in masses.values())
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
