"""The scoreboard that opens docs/results: the paper's claims in a few rows.

Panels of the grid are judged at equal rounds, deep lines after the last round. Deep
lines have the hyper-parameters that the paper prints under "its grid", and those found
by its tuning procedure, with lists that grow while the last value is the best, under
"wide grid".
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from hewfl.experiments.results import Results
from hewfl.experiments.statistics import compare_methods, interval_text
from reproduce.claims import (
    ADVANTAGE,
    Claim,
    Moment,
    Panels,
    Verdict,
    advantage,
    judge_cnn,
    judge_head,
    rivals_of,
    uneven_weights,
)
from reproduce.specs import FIGURE_2, HEW_PLAIN, hew_of

Grid = Literal["its grid", "wide grid", "with momentum"]
GRIDS: tuple[Grid, ...] = ("its grid", "wide grid", "with momentum")
NAMES = {"covertype": "Covertype", "mnist": "MNIST"}
Cell = tuple[Verdict, str]
Row = tuple[str, Mapping[Grid, Cell]]


def scoreboard(
    grids: Mapping[Grid, Panels], head: Mapping[Grid, Results], cnn: Results
) -> list[str]:
    """The rows of the table.

    Args:
        grids: panels of the main grid, of the wide one and of the one with momentum.
        head: the text line, at the printed and at tuned hyper-parameters.
        cnn: the image line, tuned.
    """
    rows: list[Row] = []
    for key in ADVANTAGE:
        for is_own, words in ((True, "its own methods"), (False, "all rivals")):
            name = f"{NAMES[key[0]]}, {_regime(key[1])}: HEW is ahead ({words})"
            cells = {
                g: _ahead(panels, key, is_own=is_own) for g, panels in grids.items()
            }
            rows.append((name, cells))
    rows.append(
        (
            "the other six panels: no clear advantage (its own methods)",
            {g: _count(_elsewhere(panels)) for g, panels in grids.items()},
        )
    )
    uneven = {g: _count(_weights(panels)) for g, panels in grids.items()}
    rows.append(("with random H the weights of HEW grow uneven", uneven))
    said = {
        "AG News: FedAvg, FedProx, FedNova and Uniform lead": (
            "FedAvg, FedProx, FedNova and Uniform lead"
        ),
        "AG News: HEW (Alg. 3) is above HEW-Fixed": f"{HEW_PLAIN} is above HEW-Fixed",
        "AG News: minibatch SGD is worst": "minibatch SGD is worst",
    }
    for name, statement in said.items():
        rows.append((name, _deep(head, judge_head, statement)))
    beats = f"{HEW_PLAIN} beats FedAvg in accuracy"
    row = _deep({"wide grid": cnn}, judge_cnn, beats)
    rows.append(("Fashion-MNIST, CNN: HEW (Alg. 3) beats FedAvg in accuracy", row))
    lines = ["| claim of the paper | " + " | ".join(GRIDS) + " | verdict |"]
    lines.append("| --- |" + " --- |" * (len(GRIDS) + 1))
    return [*lines, *(_line(name, cells) for name, cells in rows)]


def _line(name: str, cells: Mapping[Grid, Cell]) -> str:
    texts = [_text(*cells[g]) if g in cells else "-" for g in GRIDS]
    verdict = _together([verdict for verdict, _ in cells.values()])
    return f"| {name} | {' | '.join(texts)} | **{verdict}** |"


def _text(verdict: Verdict, numbers: str) -> str:
    return f"{verdict}: {numbers}" if numbers else verdict


def _together(verdicts: Sequence[Verdict]) -> str:
    """One word for a row; the first is that of the paper's own grid, if it was run."""
    first, *rest = verdicts
    if len(set(verdicts)) == 1:
        return first
    if first == "agrees":
        return "agrees on its grid only" if "agrees" not in rest else "mostly agrees"
    if "agrees" in rest:
        return "depends on the grid"
    return "does not agree" if "does not agree" in verdicts else "undecided"


def _regime(regime: str) -> str:
    data, horizons = regime.split("-")
    return f"{'homo' if data == 'hom' else 'hetero'}geneous, {horizons} H"


def _ahead(panels: Panels, key: tuple[str, str], *, is_own: bool) -> Cell:
    """Verdict and the comparison with the rival that HEW is least ahead of."""
    results = panels[key]
    rivals = rivals_of(results, key[1], is_own=is_own)
    pairs = compare_methods(results, hew_of(key[1]), rivals, "objective")
    label = max(pairs, key=lambda k: pairs[k].mean)
    claim = advantage(key, results, "rounds", is_own=is_own)
    return claim.verdict, f"{interval_text(pairs[label])} ({label})"


def _elsewhere(panels: Panels) -> list[Claim]:
    return [
        advantage(key, results, "rounds", is_own=True)
        for key, results in panels.items()
        if key not in ADVANTAGE
    ]


def _weights(panels: Panels) -> list[Claim]:
    return [uneven_weights(*k, r) for k, r in panels.items() if k[1] in FIGURE_2]


def _count(claims: Sequence[Claim]) -> Cell:
    """One verdict on several panels: it agrees if all of them do."""
    verdicts = [claim.verdict for claim in claims]
    agree = f"in {verdicts.count('agrees')} of {len(verdicts)} panels"
    if "does not agree" in verdicts:
        return "does not agree", f"holds {agree}"
    return ("agrees" if set(verdicts) == {"agrees"} else "undecided"), agree


def _deep(
    lines: Mapping[Grid, Results],
    judge: Callable[[Results], list[Claim]],
    statement: str,
) -> dict[Grid, Cell]:
    """A claim after the last round of each line."""
    cells: dict[Grid, Cell] = {}
    for grid, results in lines.items():
        claims = {claim.statement: claim for claim in judge(results)}
        cells[grid] = (claims[f"{Moment.last}: {statement}"].verdict, "")
    return cells
