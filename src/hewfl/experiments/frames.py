"""Results as a table of tidy rows, for pandas, polars or anything else.

    panel    method    seed    round    quantity    value

One row for each number: filter, group and draw it with whatever you like.
"""

import importlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from hewfl.core.checks import invalid
from hewfl.errors import MissingExtraError
from hewfl.experiments.results import GAPS, Results

COLUMNS = ("panel", "method", "seed", "round", "quantity", "value")
Row = tuple[str, str, int, int, str, float]


def tidy_rows(results: Results) -> Iterator[Row]:
    """Every number that was measured in a run, one row each.

    Yields:
        Name of the run, label of the method, seed, round, name of the quantity, value.
        What was not measured, and what is not finite, is left out.
    """
    spec = results.spec
    for label, lane in zip(results.labels, range(len(results.labels)), strict=True):
        for quantity in _quantities(results, lane):
            table = results.values(label, quantity)
            for seed, row in zip(spec.seeds, table.tolist(), strict=True):
                for t, value in zip(results.rounds.tolist(), row, strict=True):
                    if math.isfinite(value):
                        yield spec.name, label, seed, t, quantity, value


def frame(results: Results | Sequence[Results], library: str = "pandas") -> Any:
    """Results of one or several runs as a DataFrame.

    Args:
        results: of one run, or of several, which `panel` then tells apart.
        library: whose DataFrame: "pandas" or "polars".

    Returns:
        A DataFrame with the columns `panel`, `method`, `seed`, `round`, `quantity` and
        `value`.

    Raises:
        InvalidInputError: the library is another one.
        MissingExtraError: it is not installed.

    Examples:
        >>> frame([results, others])  # doctest: +SKIP
    """
    if library not in ("pandas", "polars"):
        raise invalid("library", '"pandas" or "polars"', repr(library))
    try:
        found: Any = importlib.import_module(library)
    except ImportError as error:
        text = f"frames need {library}: pip install {library}"
        raise MissingExtraError(text) from error
    runs = [results] if isinstance(results, Results) else results
    rows = [row for each in runs for row in tidy_rows(each)]
    columns = zip(*rows, strict=True) if rows else ([] for _ in COLUMNS)
    return found.DataFrame(
        {name: list(values) for name, values in zip(COLUMNS, columns, strict=True)}
    )


def _quantities(results: Results, lane: int) -> list[str]:
    """What was measured of a method in any round, in a fixed order."""
    names = dict.fromkeys(("objective", "pooled", "scalars", "paper_scalars", *GAPS))
    for by_lane in results.records:
        for t in results.rounds:
            record = by_lane[lane][t]
            names |= dict.fromkeys((*record.metrics, *record.observed))
    return list(names)
