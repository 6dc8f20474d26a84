"""Runs as one HTML page: curves, weights, certificates, comparisons, tuning, spec.

The page needs nothing but itself: style, script and data are inside, and a content
policy keeps it from loading or running anything else. Tables are plain HTML and remain
without JavaScript. The same runs give the same bytes.
"""

import base64
import hashlib
import html
import json
import string
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from hewfl.core.atomic import write_text
from hewfl.core.checks import invalid
from hewfl.errors import DataError
from hewfl.experiments.folder import Folder
from hewfl.experiments.page_data import page_data
from hewfl.experiments.page_run import PageRun
from hewfl.experiments.page_sections import article, contents
from hewfl.experiments.styles import style_sheet, styles_of
from hewfl.version import __version__


def write_report(folders: Sequence[Folder], path: Path) -> None:
    """Write the page of one or several runs.

    Args:
        folders: of finished runs, in the order of the page.
        path: of the file.

    Raises:
        InvalidInputError: no run is given.
        DataError: a run is not finished, or its files are damaged.
    """
    if not folders:
        raise invalid("folders", "at least one run", "none")
    runs = [_read(folder) for folder in folders]
    page = resources.files("hewfl.experiments") / "page"
    kinds = ("html", "css", "js")
    text = {kind: (page / f"report.{kind}").read_text("utf-8") for kind in kinds}
    css, js = style_sheet() + text["css"], text["js"]
    names = [run.results.spec.name for run in runs]
    given = [page_data(run.results) for run in runs]
    data = json.dumps(given, separators=(",", ":"), allow_nan=False)
    filled = string.Template(text["html"]).substitute(
        title=html.escape(f"Report: {', '.join(names)}"),
        policy=_policy(css, js),
        css=css,
        js=js,
        contents=contents(runs) if len(runs) > 1 else "",
        body="\n".join(article(k, run) for k, run in enumerate(runs)),
        data=data.replace("<", "\\u003c"),  # no text can close the script element
        version=html.escape(__version__),
    )
    write_text(path, filled)


def _read(folder: Folder) -> PageRun:
    if folder.tuned is None or not folder.is_done:
        raise DataError(f"{folder.path} is not finished: run it again to resume it")
    results = folder.results
    return PageRun(folder, results, folder.summary, styles_of(results.spec.methods))


def _policy(css: str, js: str) -> str:
    """Run and style by exactly what is here; load nothing."""
    parts = ["default-src 'none'", "img-src data:"]
    for kind, text in (("script-src", js), ("style-src", css)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        parts.append(f"{kind} 'sha256-{digest}'")
    return "; ".join(parts)
