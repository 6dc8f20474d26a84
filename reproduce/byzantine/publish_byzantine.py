"""The study on paper: tables, the figure and the numbers in one folder."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hewfl.core.atomic import write_json, write_text
from hewfl.experiments.statistics import interval_text
from hewfl.plotting import COLOURS, save
from reproduce.byzantine.byzantine_cells import (
    CLIENTS,
    GROUPS,
    HELD_OUT,
    ORACLE,
    PANELS,
    RULES,
)
from reproduce.byzantine.byzantine_scores import Column, Scores
from reproduce.byzantine.cnn_tables import TABLES, read_accuracies
from reproduce.byzantine.cnn_tables import Known as DeepKnown

LOST = 1000.0
"""Ratios that are not worth a number."""
NEAR = 1.1
"""A ratio to the oracle above this one is a miss of a rule that is recommended."""
RECOMMENDED = ("AngleMix + geometric median", "RootWeights, root of 100")
DUELS = {
    "RootWeights, root of 100": (
        "FLTrust, root of 100",
        "clip + ExactWeights, root of 100",
        "root of 100 alone",
        "AngleMix + geometric median",
    ),
    "AngleMix + geometric median": (
        "SoftMix + geometric median",
        "clip + NNM + geometric median (f)",
        "ARC + NNM + trimmed mean (f)",
        "geometric median",
        "multi-Krum (f)",
        "Trust",
        "mean",
    ),
}
"""Rules that are recommended, and their rivals."""
DRAWN = (0, 4, 8, 12)
"""Numbers of attackers in the figure."""
SHOWN = {
    "RootWeights, root of 100": "RootWeights*",
    "FLTrust, root of 100": "FLTrust*",
    "clip + ExactWeights, root of 100": "clip + ExactWeights*",
    "root of 100 alone": "these samples alone*",
    "AngleMix + geometric median": "AngleMix + geometric median",
    "SoftMix + geometric median": "SoftMix + geometric median",
    "clip + NNM + geometric median (f)": "clip + NNM + geometric median",
    "ARC + NNM + trimmed mean (f)": "ARC + NNM + trimmed mean",
    "geometric median": "geometric median",
    "multi-Krum (f)": "multi-Krum",
    "centred clipping": "centred clipping",
    "Trust": "Trust",
    "Sieve": "Sieve",
    "MajoritySieve": "MajoritySieve",
    "mean": "mean",
}
"""Rules of the figure, and their names there."""
HEAD = (
    "Worst case over the attacks: loss of the honest clients over that of the honest "
    "oracle, which averages the honest updates alone; geometric mean over the seeds, "
    "under the attack with the largest one, which is named. 1 is as good as training "
    "without attackers. **Bold**: the best rule of the column, and those not shown to "
    "be behind it (log ratios paired by seed, Student's t, Holm's correction in the "
    "column, 5 %), apart for rules without a root and for each kind of root. (f): the "
    "rule is told the number of attackers. -: the rule cannot work there."
)


def publish_byzantine(
    scores: Scores, output: Path, fresh: Scores | None = None
) -> None:
    """Write tables, figure and numbers of the cells that are done.

    Args:
        scores: of the study.
        output: folder to write to; its `cnn.csv`, if there is one, is read.
        fresh: of the held-out seeds.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    deep = read_accuracies(output / "cnn.csv")
    write_text(output / "results.md", results_text(scores, deep, fresh))
    write_json(output / "summary.json", numbers_of(scores))
    if fresh is not None and fresh.table:
        write_json(output / "held_out.json", numbers_of(fresh))
    if scores.table:
        draw_worst_ratios(scores, output / "worst_ratios")


# ------------------ tables


def results_text(
    scores: Scores, deep: DeepKnown | None = None, fresh: Scores | None = None
) -> str:
    """All tables, what was lost first."""
    seeds = ", ".join(map(str, scores.sizes.seeds))
    lines = ["# Attacks and defences, tables", "", HEAD, ""]
    lines += [f"{scores.sizes.rounds} rounds; seeds {seeds}.", ""]
    lines += [*_runs(scores), ""]
    if scores.table:
        lines += ["![Worst ratio to the honest oracle](worst_ratios.png)", ""]
    lines += [*_losses(scores), *_misses(scores), *_duels(scores)]
    if fresh is not None and fresh.table:
        lines += _held_out(fresh)
    for group, title in (
        ("main", "Worst ratio to the honest oracle"),
        ("roots", "Other roots"),
        ("others", "Other rules"),
    ):
        lines += _section(scores, group, title, _ratio_cell(scores))
    secret = "The same, where the attackers do not know the samples of the root"
    lines += _section(scores, "main", secret, _secret_cell(scores), is_rooted=True)
    main = (
        ("Worst accuracy on the test part, %", _accuracy_cell(scores)),
        ("Ratio to the best rule of its kind, 95 % interval", _interval_cell(scores)),
        ("Tuned total step in units of 1/L", _step_cell(scores)),
    )
    for title, cell in main:
        lines += _section(scores, "main", title, cell)
    return "\n".join([*lines, *_edges(scores), "", *_deep(deep or {})])


def _held_out(fresh: Scores) -> list[str]:
    """The recommended rules and those with a root, on seeds of their own."""
    seeds = ", ".join(map(str, fresh.sizes.seeds))
    return [
        *("## Held-out seeds", ""),
        f"Seeds {seeds}; the step size is tuned with seed {fresh.sizes.tuning} and the "
        f"attacks are chosen with seed {fresh.sizes.screening}. No form of a rule was "
        "chosen on them.",
        "",
        *_section(fresh, HELD_OUT, "Worst ratio, held-out seeds", _ratio_cell(fresh)),
        *_section(
            fresh,
            HELD_OUT,
            "Held-out seeds, where the attackers do not know the samples of the root",
            _secret_cell(fresh),
            is_rooted=True,
        ),
        *_duels(
            fresh, "## One against one, held-out seeds, where fewer than half attack"
        ),
    ]


def _runs(scores: Scores) -> Iterator[str]:
    """Which cells were run, and which were not."""
    for title, is_done in (("Run", True), ("Not run", False)):
        cells = [c for c in scores.cells if (c not in scores.missing) == is_done]
        for group in GROUPS:
            shares = {
                PANELS[panel].title: sorted(
                    c.f for c in cells if (c.panel, c.group) == (panel, group)
                )
                for panel in PANELS
            }
            parts = [
                f"{panel}: {', '.join(map(str, fs))}"
                for panel, fs in shares.items()
                if fs
            ]
            if parts:
                rules = "" if group == "main" else f" ({group})"
                yield f"- {title}{rules}, attackers of {CLIENTS}: {'; '.join(parts)}."


Cell = Callable[[Column, str], str]


def _section(
    scores: Scores, group: str, title: str, cell: Cell, *, is_rooted: bool = False
) -> list[str]:
    """Rules of a group down, cells across; nothing where no cell has them."""
    rules = [r for r, rule in GROUPS[group].items() if rule.root or not is_rooted]
    columns = _columns_with(scores, *rules)
    if not columns:
        return []
    heads = (f"{PANELS[panel].title}, {_share(f)}" for panel, f in columns)
    lines = [
        *(f"## {title}", ""),
        "| rule | " + " | ".join(heads) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for rule in rules:
        if not any(rule in scores.table[c] for c in columns):
            continue
        cells = (cell(c, rule) if rule in scores.table[c] else "-" for c in columns)
        name = f"*{rule}*" if rule == ORACLE else rule
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _ratio_cell(scores: Scores) -> Cell:
    """The worst ratio, and its attack."""

    def cell(c: Column, rule: str) -> str:
        if rule == ORACLE:
            return "1"
        text = _ratio(scores.ratio(c, rule))
        text = f"**{text}**" if scores.is_level(c, rule) else text
        return text if c[1] == 0 else f"{text} {scores.table[c][rule].attack}"

    return cell


def _secret_cell(scores: Scores) -> Cell:
    """The worst ratio over attacks that know no root."""

    def cell(c: Column, rule: str) -> str:
        attack, ratio = scores.with_secret_root(c, rule)
        return _ratio(ratio) if c[1] == 0 else f"{_ratio(ratio)} {attack}"

    return cell


def _accuracy_cell(scores: Scores) -> Cell:
    return lambda c, rule: f"{100 * scores.accuracy(c, rule):.1f}"


def _interval_cell(scores: Scores) -> Cell:
    def cell(c: Column, rule: str) -> str:
        if rule == ORACLE:
            return "limit"
        compared = scores.against_best(c, rule)
        if compared is None:
            return "best"
        if not scores.ratio(c, rule) < LOST:
            return "lost"
        return interval_text(compared).replace(" times", "")

    return cell


def _step_cell(scores: Scores) -> Cell:
    return lambda c, rule: f"{scores.table[c][rule].amplitude:g}"


def _columns_with(scores: Scores, *rules: str) -> list[Column]:
    """The columns that have one of the rules, panel by panel."""
    there = (c for c, row in scores.table.items() if any(r in row for r in rules))
    return sorted(there, key=lambda c: (list(PANELS).index(c[0]), c[1]))


def _losses(scores: Scores) -> list[str]:
    """Where a rule that is recommended is behind the best one of its kind."""
    lines = ["## Where the recommended rules lose", ""]
    for rule in RECOMMENDED:
        there = _columns_with(scores, rule)
        lost = [c for c in there if not scores.is_level(c, rule)]
        lines.append(
            f"- {rule}: behind the best rule of its kind in {len(lost)} of "
            f"{len(there)} cells{':' if lost else '.'}"
        )
        for c in lost:
            best = scores.rivals(c, RULES[rule].root)[0]
            pair = f"{_ratio(scores.ratio(c, rule))} against"
            best_ratio = _ratio(scores.ratio(c, best))
            lines.append(
                f"    - {PANELS[c[0]].title}, {_share(c[1])}: {pair} {best_ratio} of "
                f"{best}"
            )
    return [*lines, ""]


def _misses(scores: Scores) -> list[str]:
    """Where a rule that is recommended is far from the oracle."""
    lines = [f"## Misses: above {NEAR:g} times the oracle", ""]
    for rule in RECOMMENDED:
        there = _columns_with(scores, rule)
        missed = [
            f"{_ratio(scores.ratio(c, rule))} in {PANELS[c[0]].title}, {_share(c[1])} "
            f"({scores.table[c][rule].attack})"
            for c in there
            if not scores.ratio(c, rule) <= NEAR
        ]
        rest = f": {'; '.join(missed)}" if missed else ""
        lines.append(f"- {rule}: {len(missed)} of {len(there)} cells{rest}.")
    return [*lines, ""]


def _duels(
    scores: Scores, title: str = "## One against one, where fewer than half attack"
) -> list[str]:
    """Each recommended rule against its rivals: one family over the cells of a pair."""
    lines = [
        *(title, ""),
        "| rule | rival | better | undecided | worse | ratio, geometric mean |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for rule, rivals in DUELS.items():
        for rival in rivals:
            compared = scores.duel(rule, rival)
            if not compared:
                continue
            verdicts = [c.verdict for c in compared.values()]
            logs = [
                math.log(scores.ratio(c, rule) / scores.ratio(c, rival))
                if math.isfinite(scores.ratio(c, rule))
                and math.isfinite(scores.ratio(c, rival))
                else math.nan
                for c in compared
            ]
            finite = [v for v in logs if math.isfinite(v)]
            mean = math.exp(sum(finite) / len(finite)) if finite else math.nan
            counts = [verdicts.count(v) for v in ("better", "undecided", "worse")]
            cells = " | ".join(map(str, counts))
            lines.append(f"| {rule} | {rival} | {cells} | {mean:.3f} |")
    return [*lines, ""]


def _edges(scores: Scores) -> list[str]:
    """Choices of tuning at the end of a list."""
    every = [(c, r, s) for c, row in scores.table.items() for r, s in row.items()]
    edges = [(c, r, s) for c, r, s in every if s.is_at_edge]
    useless = [
        (c, r, s) for c, r, s in edges if scores.ratio(c, r) >= scores.untrained(c)
    ]
    named = [
        f"{PANELS[c[0]].title}, {_share(c[1])}: {r} ({s.amplitude:g})"
        for c, r, s in edges
        if (c, r, s) not in useless
    ]
    text = (
        f"At the end of their list lie {len(edges)} of {len(every)} step sizes. "
        f"{len(useless)} of them are the smallest step of a rule whose worst loss is "
        "not below that of the model before training: no step is best for it."
    )
    rest = ["", f"The other {len(named)}:", "", *(f"- {line}" for line in named)]
    return ["## Ends of lists", "", text, *(rest if named else [])]


def _deep(known: DeepKnown) -> list[str]:
    """Published tables of deep networks, ours beside theirs."""
    lines: list[str] = []
    for name, table in TABLES.items():
        ran = sorted({key[1:4] for key in known if key[0] == name})
        lines += [f"## {table.title}", ""]
        for f in sorted({f for f, _, _ in ran}):
            for rounds in sorted({r for g, _, r in ran if g == f}, reverse=True):
                seeds = [s for g, s, r in ran if (g, r) == (f, rounds)]
                lines += _deep_table(known, name, f, seeds, rounds)
        whole = {f for f, _, rounds in ran if rounds == table.rounds}
        missing = [str(f) for f in table.attackers if f not in whole]
        if missing:
            options = "".join(f" --attackers {f}" for f in missing)
            lines += [
                f"Not run with all {table.rounds} steps: f = {', '.join(missing)}. "
                "On a GPU: `python -m reproduce study byzantine-cnn --table "
                f"{name}{options} --device cuda`.",
                "",
            ]
    return lines


def _deep_table(
    known: DeepKnown, name: str, f: int, seeds: Sequence[int], rounds: int
) -> list[str]:
    """Worst accuracies of a number of attackers; means over seeds, attack by attack."""
    table = TABLES[name]
    n = table.honest + f
    lines = [
        f"{f} of {n} attack; {rounds} of {table.rounds} steps; seeds "
        f"{', '.join(map(str, seeds))}. Accuracy on the test part in percent.",
        "",
        "| rule | published, worst | ours, worst | " + " | ".join(table.attacks) + " |",
        "| --- |" + " ---: |" * (2 + len(table.attacks)),
    ]
    for rule in table.rules:
        keys = {
            a: [(name, f, s, rounds, rule, a) for s in seeds] for a in table.attacks
        }
        if any(key not in known for group in keys.values() for key in group):
            continue
        means = [
            sum(known[key] for key in group) / len(group) for group in keys.values()
        ]
        given = table.published.get(rule, {}).get(f)
        cells = [f"{min(means):.1f}", *(f"{mean:.1f}" for mean in means)]
        published = "-" if given is None else f"{given:g}"
        lines.append(f"| {rule} | {published} | {' | '.join(cells)} |")
    return [*lines, ""]


def _share(f: int) -> str:
    return f"{f} of {CLIENTS}"


def _ratio(value: float) -> str:
    if not value < LOST:
        return "lost"
    return f"{value:.3f}" if value < 10 else f"{value:.0f}"


def numbers_of(scores: Scores) -> dict[str, Any]:
    """Worst cases of every rule, seed by seed."""
    return {
        f"{panel}, {f}": {
            rule: {
                "attack": score.attack,
                "amplitude": score.amplitude,
                "accuracy": float(f"{score.accuracy:.5g}"),
                "ratio": _finite(scores.ratio((panel, f), rule)),
                **_secret(scores, (panel, f), rule),
                "losses": [_finite(v) for v in score.losses.tolist()],
            }
            for rule, score in row.items()
        }
        for (panel, f), row in scores.table.items()
    }


def _secret(scores: Scores, column: Column, rule: str) -> dict[str, float | None]:
    """The worst ratio over attacks that do not know the samples of the root."""
    if RULES[rule].root is None:
        return {}
    return {"secret_ratio": _finite(scores.with_secret_root(column, rule)[1])}


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


# ------------------ figure

KINDS = (
    (COLOURS["blue"][0], "white", "up to 1.1 times: as without attackers"),
    (COLOURS["sky"][1], "black", "up to 2 times"),
    (COLOURS["amber"][1], "black", "above 2 times"),
    (COLOURS["vermilion"][0], "white", "no better than the model before training"),
)
"""Colours of tiles and text, and what they say; in grey they differ as well."""


def draw_worst_ratios(scores: Scores, path: Path) -> tuple[Path, Path]:
    """Draw a tile for every rule, panel and share of attackers, with its worst ratio.

    Panels of which fewer columns were run than of others are left to the tables.

    Args:
        scores: of the study.
        path: of the files, without the ending.

    Returns:
        The PDF and the PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    shares = [f for f in DRAWN if any(c[1] == f for c in scores.table)]
    run = {p: sum((p, f) in scores.table for f in shares) for p in PANELS}
    panels = [p for p, columns in run.items() if 0 < columns == max(run.values())]
    rules = [r for r in SHOWN if any(r in row for row in scores.table.values())]

    def draw(figure: Any) -> None:
        parts = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, panel in zip(parts, panels, strict=True):
            for x, f in enumerate(shares):
                for y, rule in enumerate(rules):
                    if rule in scores.table.get((panel, f), {}):
                        _draw_tile(axes, (x, y), scores, (panel, f), rule)
                    elif (panel, f) in scores.table:
                        axes.text(x, y, "-", ha="center", va="center", color="0.4")
            axes.set_xticks(
                range(len(shares)), [f"{100 * f // CLIENTS} %" for f in shares]
            )
            axes.set_xlim(-0.5, len(shares) - 0.5)
            axes.set_ylim(len(rules) - 0.5, -0.5)
            axes.tick_params(length=0)
            axes.grid(visible=False)
            for side in axes.spines.values():
                side.set_visible(False)
            kind = "equal" if PANELS[panel].alpha is None else "unequal"
            axes.set_title(f"{PANELS[panel].title}\n({kind} data)")
            axes.set_xlabel("attackers")
        parts[0].set_yticks(range(len(rules)), [SHOWN[r] for r in rules])
        figure.suptitle(
            "Loss under the worst of 20 attacks, times that of the honest clients alone"
            "\n* the server owns 100 clean samples",
            fontsize=9.5,
        )
        patches = [
            parts[0].bar(0, 0, color=colour, label=text) for colour, _, text in KINDS
        ]
        figure.legend(
            handles=patches, loc="outside lower center", ncols=4, frameon=False
        )

    size = 1.6 + 0.45 * len(shares) * max(len(panels), 2), 1.5 + 0.26 * len(rules)
    return save(draw, size, path)


def _draw_tile(
    axes: Any, place: tuple[int, int], scores: Scores, column: Column, rule: str
) -> None:
    """A coloured square with the ratio in it."""
    ratio, (x, y) = scores.ratio(column, rule), place
    limits = (NEAR, 2.0, scores.untrained(column))
    worst = len(KINDS) - 1
    kind = worst if ratio >= limits[2] else sum(not ratio <= v for v in limits[:2])
    colour, ink, _ = KINDS[kind]
    axes.bar(x, 0.9, 0.94, y - 0.45, color=colour, linewidth=0)
    text = f"{ratio:.2f}" if ratio < 10 else (f"{ratio:.0f}" if ratio < 100 else "lost")
    axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=7)
