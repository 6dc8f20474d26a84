"""The top of a report page: which method wins on what, how sure it is, at what cost."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hewfl.experiments.axes import AXES, axes_of, positions
from hewfl.experiments.compare import LEVEL
from hewfl.experiments.curves import QUANTITIES
from hewfl.experiments.markup import Html, join, table, tag
from hewfl.experiments.page_run import PageRun, listed
from hewfl.experiments.ranking import friedman, rank
from hewfl.experiments.reach import common_target, reach, reach_text, short
from hewfl.experiments.standing import Standing


def answer(run: PageRun) -> Html:
    """One sentence and one small table on one run."""
    told = [_sentence(s) for s in run.standings.values()]
    head = ["quantity", "best", "certainty", "cost"]
    rows = [
        [
            QUANTITIES[s.quantity],
            join(_named(run, s)),
            _certainty(s),
            join(_costs(run, s)),
        ]
        for s in run.standings.values()
        if s.best
    ]
    last = run.results.spec.rounds
    caption = (
        f"After round {last}: the best mean, against every other method (paired by "
        f"seed, Holm's correction over all pairs, {LEVEL:.0%})"
    )
    if run.results.spec.judge == "averaged":
        caption += "; by the averaged model of methods that keep one"
    text = "; ".join(told)
    return tag(
        "div",
        tag("p", f"{text[:1].upper()}{text[1:]}.", class_="answer"),
        table(head, rows, caption) if rows else "",
        class_="top",
    )


def overview(runs: Sequence[PageRun]) -> Html:
    """One sentence, one table of winners and one ranking over several runs."""
    shared = [q for q in QUANTITIES if all(q in run.standings for run in runs)]
    if not shared:
        return Html("")
    told = "; ".join(_over_panels(runs, q) for q in shared)
    head = ["panel", *(f"best {QUANTITIES[q]}" for q in shared)]
    rows = []
    for run in runs:
        cells = [
            join((*_named(run, s), tag("small", _short_certainty(s)), _sent(run, s)))
            for s in (run.standings[q] for q in shared)
        ]
        link = tag("a", run.results.spec.name, href=f"#run-{run.number}")
        rows.append([link, *cells])
    caption = "The panels of this page; certain: Holm-corrected over all pairs of one"
    return tag(
        "section",
        tag("h2", "In short", id="short"),
        tag("p", f"Of {len(runs)} panels: {told}.", class_="answer"),
        table(head, rows, caption),
        *(_ranking(runs, q) for q in shared),
    )


def _over_panels(runs: Sequence[PageRun], quantity: str) -> str:
    """Who is best in how many panels, in words."""
    standings = [run.standings[quantity] for run in runs]
    best = Counter(s.best[0] for s in standings if s.best)
    sure = Counter(s.best[0] for s in standings if s.best and _is_certain(s))
    names = [f"{k} in {n} (certain in {sure[k]})" for k, n in best.most_common()]
    return f"best {QUANTITIES[quantity]}: {listed(names)}"


def _ranking(runs: Sequence[PageRun], quantity: str) -> Html:
    """Methods by their mean rank over the panels."""
    standings = [run.standings[quantity] for run in runs]
    rows = rank(standings)
    if not rows:
        return Html("")
    p = friedman(standings)
    test = "" if p is None else f"; Friedman's test that all are alike: p = {p:.2g}"
    caption = f"Ranking by {QUANTITIES[quantity]} over panels, 1 is best{test}"
    head = ["method", "mean rank", "panels", "best in", "certain wins", "losses"]
    looks = {label: run for run in runs for label in run.styles}
    cells = [
        [
            looks[row.label].name(row.label),
            f"{row.rank:.2f}",
            *map(str, (row.panels, row.best, row.wins, row.losses)),
        ]
        for row in rows
    ]
    return table(head, cells, caption)


def _is_certain(s: Standing) -> bool:
    """Whether the best is certainly ahead of all others."""
    return len(s.split(s.best[0])["better"]) == len(s.labels) - len(s.best)


def _sentence(s: Standing) -> str:
    name = QUANTITIES[s.quantity]
    if not s.best:
        return f"on {name} no method came through every seed"
    others = len(s.labels) - len(s.best)
    first = listed(s.best) + (", equal in every seed," if len(s.best) > 1 else "")
    if others == 0:
        return f"on {name} there is nothing to compare {first} with"
    many = len(s.best) > 1
    if _is_certain(s):
        wins = "win" if many else "wins"
        return f"on {name} {first} {wins}, certainly against all {others} others"
    doubt = s.split(s.best[0])["undecided"]
    if len(doubt) == others:
        has = "have" if many else "has"
        return f"on {name} {first} {has} the best mean, but nothing is certain"
    leads = "lead" if many else "leads"
    return f"on {name} {first} {leads}, not told apart from {listed(doubt)}"


def _named(run: PageRun, s: Standing) -> list[str]:
    """The best with their lines and the mean of the first."""
    if not s.best:
        return ["none"]
    names = [tag("span", run.name(label), class_="method") for label in s.best]
    own = run.results.judged(s.best[0], s.quantity)
    return [*names, tag("small", run.final(s.best[0], own))]


def _short_certainty(s: Standing) -> str:
    if not s.best:
        return ""
    ahead = len(s.split(s.best[0])["better"])
    others = len(s.labels) - len(s.best)
    return "certain" if ahead == others else f"certain against {ahead} of {others}"


def _certainty(s: Standing) -> str:
    """How sure the first place is, with the largest corrected p behind it."""
    others = s.split(s.best[0])
    count = len(s.labels) - len(s.best)
    if len(next(iter(s.finals.values()))) < 2:
        return "one seed: nothing can be certain"
    if not others["undecided"]:
        worst = max((s.against(s.best[0], k).p for k in others["better"]), default=0.0)
        return f"certain against all {count} others, p ≤ {max(worst, 1e-4):.1g}"
    doubt = listed(others["undecided"], 4)
    return (
        f"certain against {len(others['better'])} of {count}; not told apart from "
        f"{doubt}"
    )


def _costs(run: PageRun, s: Standing) -> list[Html]:
    """What the best sent in all, and what it needed to the common target."""
    results, label = run.results, s.best[0]
    lines = [_sent(run, s)]
    target = common_target(s)
    if target is not None:
        for axis in axes_of(results):
            if axis in ("rounds", "seconds"):
                when = reach_text(reach(results, label, s.quantity, target, axis))
                lines.append(
                    tag("small", f"{AXES[axis]} to {target:.4g}: {when}"),
                )
    return lines


def _sent(run: PageRun, s: Standing) -> Html:
    """What the best sent in all, beside the least that a method sent."""
    if not s.best:
        return Html("")
    sent = {k: positions(run.results, k, "scalars")[-1] for k in s.labels}
    least = min((v for v in sent.values() if v > 0), default=np.nan)
    ratio = sent[s.best[0]] / least
    more = f", {ratio:.2g} times the least" if ratio > 1.05 else ""
    return tag("small", f"{short(float(sent[s.best[0]]))} scalars{more}")
