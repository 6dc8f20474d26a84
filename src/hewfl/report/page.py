"""Runs as one HTML page: the finding, weights, final values, curves, pairs, settings.

The page needs nothing but itself: style, script and data are inside, and a content
policy keeps it from loading or running anything else. Tables are plain HTML and remain
without JavaScript. The same runs give the same bytes.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from hewfl.core.atomic import write_text
from hewfl.core.validation import invalid
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.plots import author_rule, styles_of
from hewfl.experiments.results import Results, measured
from hewfl.experiments.run_folder import Folder, read_partial_results
from hewfl.experiments.spec import write_spec
from hewfl.experiments.statistics import RANKED, rank_methods
from hewfl.experiments.summary import summarise
from hewfl.plotting import COLOURS
from hewfl.report import findings, tables
from hewfl.report.page_data import PageRun, page_data, panels_data
from hewfl.version import __version__

SCRIPTS = ("elements", "chart", "weights", "export", "start")
"""Of the page, in the order in which they build on each other."""
SIDE_BY_SIDE = 4
"""Runs about different rules whose findings fit on the first screen."""
MARKS = {
    "": "",
    "circle": "M-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0Z",
    "square": "M-2.6,-2.6h5.2v5.2h-5.2Z",
    "triangle": "M0,-3.4L3.2,2.6H-3.2Z",
    "diamond": "M0,-3.6L3,0L0,3.6L-3,0Z",
    "cross": "M-2.8,-2.8L2.8,2.8M2.8,-2.8L-2.8,2.8",
    "plus": "M-3.4,0H3.4M0,-3.4V3.4",
    "wedge": "M0,3.4L3.2,-2.6H-3.2Z",
}
"""Paths of the markers that `hewfl.experiments.plots.MARKERS` names."""
_FOLDERS = re.compile(
    r"(?<![\w./\\])(?:[A-Za-z]:)?(?:[/\\][\w.@+-]+)+[/\\](?=[\w.@+-])"
)


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
    styles = _styles([results for _, results in begun])
    runs = []
    for k, (folder, results) in enumerate(begun):
        summary = folder.summary if folder.is_done else summarise(results)
        rankings = {q: rank_methods(results, q) for q in _evaluated(results)}
        runs.append(PageRun(folder, results, summary, styles, rankings, k))
    waiting = [folder for folder, results in every if results is None]
    write_text(path, _page(runs, waiting, targets or {}, None if is_done else refresh))
    return is_done


def _styles(every: Sequence[Results]) -> dict[str, Any]:
    """One look for a label on the whole page."""
    methods: dict[str, MethodSpec] = {}
    for results in every:
        methods |= {m.label: m for m in results.spec.methods if m.label not in methods}
    limits = [label for results in every for label in results.yardsticks]
    rules = [author_rule(r.spec.methods, r.yardsticks) for r in every]
    return styles_of(tuple(methods.values()), limits, tuple(dict.fromkeys(rules)))


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


def _page(
    runs: Sequence[PageRun],
    waiting: Sequence[Folder],
    asked: Mapping[str, float],
    refresh: float | None,
) -> str:
    """The text of the page."""
    import jinja2  # noqa: PLC0415 - slow to import

    css = _style_sheet()
    js = "\n".join(_file(f"{name}.js") for name in SCRIPTS)
    shared = findings.shared_rule(runs)
    panels = None if shared is None else panels_data(runs, shared)
    given = {"marks": MARKS, "runs": [page_data(run) for run in runs], "panels": panels}
    data = json.dumps(given, separators=(",", ":"), allow_nan=False)
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_without_folders,
    )
    safe = environment.filters["safe"]
    return environment.from_string(_file("page.html")).render(
        title=", ".join(run.name for run in runs) or "Not finished",
        policy=_policy(css, js),
        css=safe(css),
        js=safe(js),
        data=safe(data.replace("<", "\\u003c")),  # no text can close the script
        refresh="" if refresh is None else f"{refresh:g}",
        runs=runs,
        waiting=waiting,
        asked=asked,
        rule=shared,
        panels=panels,
        cards=shared is None and 1 < len(runs) <= SIDE_BY_SIDE,
        marks=MARKS,
        findings=findings,
        tables=tables,
        write_spec=write_spec,
        version=__version__,
    )


def _without_folders(value: Any) -> Any:
    """Text without the folders of the machine: of absolute paths the last name."""
    if type(value) is not str:
        return value
    return _FOLDERS.sub("…/", value)


def _file(name: str) -> str:
    return (resources.files("hewfl.report") / "page" / name).read_text("utf-8")


def _style_sheet() -> str:
    """report.css, and a class for each colour that sets `--ink` by the scheme."""
    light = "".join(f".{name}{{--ink:{ink}}}" for name, (ink, _) in COLOURS.items())
    dark = "".join(
        f":root:not(.light) .{name}{{--ink:{ink}}}"
        for name, (_, ink) in COLOURS.items()
    )
    scheme = f"@media screen and (prefers-color-scheme:dark){{{dark}}}"
    return f"{light}\n{scheme}\n{_file('report.css')}"


def _policy(css: str, js: str) -> str:
    """Content policy: this script and this style sheet, and nothing else."""
    parts = ["default-src 'none'", "img-src data:"]
    for kind, text in (("script-src", js), ("style-src", css)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        parts.append(f"{kind} 'sha256-{digest}'")
    return "; ".join(parts)
