"""A finished deep-learning line on paper: claims at every moment, tables, curves."""

from collections.abc import Callable
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
from hewfl.paper.publish import (
    KEPT,
    amount,
    claims_text,
    copy_files,
    tables_text,
    write_table,
)

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
SYMBOLS = {"rate_scale": "rate", "kappa": "κ", "proximal": "μ"}
"""What the page calls hyper-parameters."""


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
    results, key = folder.results, (folder.spec.data.name, folder.spec.name)
    claims = judged(results)
    write_table({key: folder}, output)
    copy_files(folder, output, (*KEPT, "summary.json"))
    head = f"{RULES}\n\n{amount(folder.spec, is_quick=is_quick)}"
    write_text(output / "claims.md", claims_text(head, claims))
    tables = [tables_text({key: folder}).rstrip(), ""]
    for moment in tuple(Moment)[1:]:
        tables += [f"### {moment}", "", *_table(results, moment), ""]
    write_text(output / "results.md", "\n".join(tables))
    write_curves({key: results}, output)
    return claims


def put_table(page: Path, name: str, folder: Folder) -> None:
    """Write the table of a line into a page, between its two marks.

    A page without the marks is left as it is.

    Args:
        page: a Markdown file.
        name: of the table; its marks are comments, `table: name` and `end: name`.
        folder: of the finished run.
    """
    first, last = f"<!-- table: {name} -->", f"<!-- end: {name} -->"
    text = page.read_text(encoding="utf-8")
    if first in text and last in text:
        head, _, rest = text.partition(first)
        _, _, tail = rest.partition(last)
        rows = "\n".join([first, *_page_rows(folder), last])
        write_text(page, head + rows + tail)


def _page_rows(folder: Folder) -> list[str]:
    """What was chosen, the last round, and the best validation round; best first."""
    results, columns = folder.results, (*ACCURACY, LOSS[-1])
    grids = {method.label: method.grid for method in folder.spec.methods}
    tuned = folder.tuned
    assert tuned is not None, "a finished run is tuned"
    heads = " | ".join(quantity.replace("_", " ") for quantity in columns)
    lines = [f"| method | chosen | {heads} | test accuracy, best round |"]
    lines += ["| --- | --- |" + " ---: |" * (len(columns) + 1)]
    for label in _ranked(results, Moment.last):
        (method,) = (m for m in tuned.methods if m.label == label)
        chosen = ", ".join(
            f"{SYMBOLS.get(k, k)} {method.parameters[k]:g}" for k in grids[label]
        )
        asked = [(quantity, Moment.last) for quantity in columns]
        asked += [(ACCURACY[1], Moment.best)]
        values = (at_moment(results, label, *each) for each in asked)
        cells = " | ".join(mean_text(statistics(value)) for value in values)
        lines.append(f"| {label} | {chosen} | {cells} |")
    return lines


def _table(results: Results, moment: Moment) -> list[str]:
    """Accuracies and losses of all methods at a moment, best validation first."""
    heads = " | ".join(quantity.replace("_", " ") for quantity in MEASURED)
    lines = [f"| method | {heads} |", "| --- |" + " ---: |" * len(MEASURED)]

    for label in _ranked(results, moment):
        values = [at_moment(results, label, q, moment) for q in MEASURED]
        cells = " | ".join(mean_text(statistics(value)) for value in values)
        lines.append(f"| {label} | {cells} |")
    return lines


def _ranked(results: Results, moment: Moment) -> list[str]:
    """Methods by their validation accuracy, best first; those that diverged last."""

    def validated(label: str) -> float:
        found = at_moment(results, label, ACCURACY[0], moment)
        return -float(np.nanmean(found)) if np.isfinite(found).any() else np.inf

    return sorted(results.labels, key=validated)
