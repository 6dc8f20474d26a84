"""Runs as one HTML page: who wins, curves, comparisons, weights, tuning, spec.

The page needs nothing but itself: style, script and data are inside, and a content
policy keeps it from loading or running anything else. Tables are plain HTML and remain
without JavaScript. The same runs give the same bytes.
"""

import base64
import hashlib
import html
import json
import string
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from hewfl.core.atomic import write_text
from hewfl.core.validation import invalid
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.plots import styles_of
from hewfl.experiments.results import Results, measured
from hewfl.experiments.run_folder import Folder, read_partial_results
from hewfl.experiments.statistics import RANKED, rank_methods
from hewfl.experiments.summary import summarise
from hewfl.plotting import COLOURS
from hewfl.report.page_data import Html, PageRun, page_data, tag, warning
from hewfl.report.page_sections import article, navigation, overview
from hewfl.version import __version__

SCRIPTS = ("elements", "numbers", "plot", "curves", "weights", "export", "start")
"""Of the page, in the order in which they build on each other."""


def write_report(
    folders: Sequence[Folder],
    path: Path,
    *,
    targets: Mapping[str, float] | None = None,
    refresh: float | None = None,
) -> bool:
    """Write the page of one or several runs, finished or not.

    Args:
        folders: of the runs, in the order of the page.
        path: of the file.
        targets: values to be reached, by quantity; others are chosen.
        refresh: seconds after which an unfinished page loads itself again.

    Returns:
        Whether all of the runs are finished.

    Raises:
        InvalidInputError: no run is given, or a target is of no known quantity.
        DataError: files of a run are damaged.
    """
    if not folders:
        raise invalid("folders", "at least one run", "none")
    for quantity in targets or {}:
        if quantity not in RANKED:
            raise invalid("targets", f"of {', '.join(RANKED)}", repr(quantity))
    is_done = all(folder.is_done for folder in folders)
    every = [(f, f.results if f.is_done else read_partial_results(f)) for f in folders]
    begun = [(folder, results) for folder, results in every if results is not None]
    methods: dict[str, MethodSpec] = {}
    for _, results in begun:  # one look for a label on the whole page
        methods |= {m.label: m for m in results.spec.methods if m.label not in methods}
    limits = [label for _, results in begun for label in results.yardsticks]
    styles = styles_of(tuple(methods.values()), limits)
    runs = []
    for k, (folder, results) in enumerate(begun):
        summary = folder.summary if folder.is_done else summarise(results)
        rankings = {q: rank_methods(results, q) for q in _evaluated(results)}
        runs.append(PageRun(folder, results, summary, styles, rankings, k))
    waiting = [_waiting(folder) for folder, results in every if results is None]
    body = [article(run, targets or {}) for run in runs]
    if len(runs) > 1:
        body.insert(0, overview(runs))
    _write(path, runs, [*waiting, *body], None if is_done else refresh)
    return is_done


def _evaluated(results: Results) -> list[str]:
    """Quantities with a ranking; the pooled objective only where it differs."""
    names = measured(results, RANKED)
    pairs = [
        (results.values(k, "objective"), results.values(k, "pooled"))
        for k in results.labels
    ]
    if all(abs(a[:, -1] - b[:, -1]).max() <= 1e-9 for a, b in pairs):
        return [q for q in names if q != "pooled"]
    return names


def _waiting(folder: Folder) -> Html:
    """A run without results."""
    what = "It is being tuned." if folder.tuned is None else "Its rounds have begun."
    name = tag("h2", folder.spec.name)
    return tag("article", name, warning(f"Not finished: nothing to show yet. {what}"))


def _write(
    path: Path, runs: Sequence[PageRun], body: Sequence[str], refresh: float | None
) -> None:
    """Fill the page."""
    page = resources.files("hewfl.report") / "page"
    css = _style_sheet()
    js = "\n".join((page / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    given = [page_data(run.results, run.styles) for run in runs]
    data = json.dumps(given, separators=(",", ":"), allow_nan=False)
    names = ", ".join(run.results.spec.name for run in runs)
    template = string.Template((page / "report.html").read_text("utf-8"))
    filled = template.substitute(
        title=html.escape(f"Report: {names}" if names else "Report"),
        policy=_policy(css, js),
        css=css,
        js=js,
        refresh="" if refresh is None else f"{refresh:g}",
        navigation=navigation(runs) if runs else "",
        body="\n".join(body),
        data=data.replace("<", "\\u003c"),  # no text can close the script element
        version=html.escape(__version__),
    )
    write_text(path, filled)


def _style_sheet() -> str:
    """report.css, and a class for each colour that sets `--ink` by the scheme."""
    light = "".join(f".{name}{{--ink:{ink}}}" for name, (ink, _) in COLOURS.items())
    dark = "".join(
        f":root:not(.light) .{name}{{--ink:{ink}}}"
        for name, (_, ink) in COLOURS.items()
    )
    css = resources.files("hewfl.report") / "page" / "report.css"
    scheme = f"@media screen and (prefers-color-scheme:dark){{{dark}}}"
    return f"{light}\n{scheme}\n{css.read_text('utf-8')}"


def _policy(css: str, js: str) -> str:
    """Content policy: this script and this style sheet, and nothing else."""
    parts = ["default-src 'none'", "img-src data:"]
    for kind, text in (("script-src", js), ("style-src", css)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        parts.append(f"{kind} 'sha256-{digest}'")
    return "; ".join(parts)
