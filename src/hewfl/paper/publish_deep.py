"""A finished deep-learning line on paper: claims at every moment, tables, curves."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hewfl.core.atomic import write_text
from hewfl.experiments.folder import Folder
from hewfl.experiments.results import Results
from hewfl.experiments.summary import mean_text, statistics
from hewfl.paper.claims import Claim
from hewfl.paper.claims_deep import ACCURACY, LOSS
from hewfl.paper.curves_file import write_curves
from hewfl.paper.moments_deep import Moment, at_moment
from hewfl.paper.publish import amount, publish_line

RULES = (
    "A claim agrees when each of its comparisons does, by 95 % paired intervals over "
    "the seeds; it does not agree when one is clearly the other way round, and is "
    "undecided otherwise. One about methods that were not run is not judged. Moments: "
    "the last round; of each method and seed the evaluated round with the best "
    "validation accuracy; equal scalars, the last evaluated round within what the "
    "thriftiest method sent in all, in our count and in the paper's. Weights by local "
    "work are those of the last round, and means over the last quarter of the rounds. "
    "A claim about most of the run looks at means over seeds in the evaluated rounds "
    "after the first tenth, and has no interval."
)
"""What verdicts mean, at the head of claims.md."""
MEASURED = (*ACCURACY, *LOSS)


def publish_deep(
    folder: Folder,
    output: Path,
    judged: Callable[[Results], list[Claim]],
    *,
    is_quick: bool,
) -> list[Claim]:
    """Write all that a result of a deep-learning line needs; return its claims.

    Args:
        folder: of the finished run.
        output: folder of the tables; spec, tuning and times go beside them.
        judged: holds the paper's claims against the results.
        is_quick: whether the run is a first look.

    Returns:
        The claims, judged.
    """
    claims = publish_line(folder, output, judged, is_quick=is_quick)
    results = folder.results
    head = [RULES, "", amount(folder.spec, is_quick=is_quick), ""]
    write_text(output / "claims.md", "\n".join(head + _claim_rows(claims)))
    tables = [(output / "results.md").read_text(encoding="utf-8").rstrip(), ""]
    for moment in tuple(Moment)[1:]:
        tables += [f"### {moment}", "", *_table(results, moment), ""]
    write_text(output / "results.md", "\n".join(tables))
    write_curves({(folder.spec.data.name, folder.spec.name): results}, output)
    return claims


def _claim_rows(claims: Sequence[Claim]) -> list[str]:
    rows = [f"| {c.statement} | **{c.verdict}** | {c.because} |" for c in claims]
    head = ["| the paper's claim | our runs | because |", "| --- | --- | --- |"]
    return [*head, *rows, ""]


def _table(results: Results, moment: Moment) -> list[str]:
    """Accuracies and losses of all methods at a moment, best validation first."""
    heads = " | ".join(quantity.replace("_", " ") for quantity in MEASURED)
    lines = [f"| method | {heads} |", "| --- |" + " ---: |" * len(MEASURED)]

    def validated(label: str) -> float:
        found = at_moment(results, label, ACCURACY[0], moment)
        return -float(np.nanmean(found)) if np.isfinite(found).any() else np.inf

    for label in sorted(results.labels, key=validated):
        values = [at_moment(results, label, q, moment) for q in MEASURED]
        cells = " | ".join(mean_text(statistics(value)) for value in values)
        lines.append(f"| {label} | {cells} |")
    return lines
