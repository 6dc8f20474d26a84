"""Published curves: every seed and evaluated round in files that figures are made of.

curves.csv.gz    what was measured, a row for each method, seed and evaluated round
weights.csv.gz   the last round: a row for each method, seed and client

Both are plain tables, which other tools can read. Together with the specs and
summary.json they contain all that figures show.
"""

import csv
import gzip
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hewfl.core.atomic import read_json, write_bytes
from hewfl.errors import DataError
from hewfl.experiments.results import Results
from hewfl.experiments.spec import Spec, read_spec
from hewfl.server.trace import RoundRecord
from reproduce.claims import Panels

CURVES, WEIGHTS = "curves.csv.gz", "weights.csv.gz"
_WHO = ("data", "regime", "method", "seed")
_SENT = ("round", "scalars", "paper_scalars")
_OWN = ("objective", "pooled")
_LAST = ("client", "horizon", "weight")
Who = tuple[str, ...]


def write_curves(panels: Panels, output: Path) -> None:
    """Write both files of some panels.

    Args:
        panels: results by data set and regime.
        output: folder.
    """
    every = [r for results in panels.values() for r in _records(results)]
    metrics = sorted({name for r in every for name in r.metrics})
    curves, weights = [], []
    for key, results in panels.items():
        for seed, by_entry in zip(results.spec.seeds, results.records, strict=True):
            for label, records in zip(results.labels, by_entry, strict=True):
                who = (*key, label, str(seed))
                for r in (records[t] for t in results.rounds):
                    values = [*(getattr(r, name) for name in _OWN)]
                    values += [r.metrics.get(name) for name in metrics]
                    sent = (r.round, r.scalars, r.paper_scalars)
                    curves.append([*who, *sent, *map(_cell, values)])
                last = zip(
                    records[-1].clients,
                    records[-1].horizons,
                    records[-1].weights,
                    strict=True,
                )
                weights += [[*who, i, h, _cell(w)] for i, h, w in last]
    _write(output / CURVES, (*_WHO, *_SENT, *_OWN, *metrics), curves)
    _write(output / WEIGHTS, (*_WHO, *_LAST), weights)


def read_curves(output: Path) -> dict[tuple[str, str], Results]:
    """Read published panels back, as far as figures need them.

    Args:
        output: folder with both files, summary.json, and specs: its own, or in
            panels/<data>-<regime>.

    Returns:
        Results by data set and regime; rounds in which nothing was measured are empty.

    Raises:
        DataError: a file is missing or damaged.
    """
    try:
        curves, weights = _read(output / CURVES), _read(output / WEIGHTS)
    except (OSError, EOFError, csv.Error) as error:
        text = f"the published curves in {output} cannot be read: {error}"
        raise DataError(text) from error
    summary = read_json(output / "summary.json")
    panels = {}
    for data, regime in dict.fromkeys(who[:2] for who in curves):
        folder = output / "panels" / f"{data}-{regime}"
        place = folder if folder.is_dir() else output
        given, tuned = place / "spec.toml", place / "tuned.toml"
        spec = read_spec(tuned if tuned.exists() else given)
        known = summary.get(f"{data}, {regime}", summary)["constants"]
        panels[data, regime] = _results(spec, (data, regime), (curves, weights), known)
    return panels


def read_finals(output: Path) -> Results:
    """A published run of which only summary.json is left: the last round.

    A group of horizons stands as one client.

    Raises:
        DataError: a file is missing or damaged.
    """
    spec, summary = read_spec(output / "tuned.toml"), read_json(output / "summary.json")
    methods = {method["label"]: method for method in summary["methods"]}
    seeds = range(len(spec.seeds))
    records = tuple(
        tuple(
            (_last_record(spec.rounds, k, methods[m.label], s),)
            for k, m in enumerate(spec.methods)
        )
        for s in seeds
    )
    constants = tuple(summary["constants"])
    return Results(spec, np.array([0]), records, constants)


def _last_record(last: int, entry: int, method: Any, seed: int) -> RoundRecord:
    final = {k: v["seeds"][seed] for k, v in method["final"].items()}
    mass = {int(h): v["seeds"][seed] for h, v in method["mass_by_horizon"].items()}
    mass = {h: weight for h, weight in mass.items() if weight is not None}
    return RoundRecord(
        last,
        entry,
        objective=final.pop("objective"),
        pooled=final.pop("pooled"),
        scalars=int(final.pop("scalars")),
        paper_scalars=int(final.pop("paper_scalars")),
        metrics={k: v for k, v in final.items() if v is not None and "gap" not in k},
        clients=tuple(range(len(mass))),
        horizons=tuple(mass),
        weights=tuple(mass.values()),
    )


def _results(
    spec: Spec,
    key: tuple[str, str],
    files: tuple[Mapping[Who, Any], Mapping[Who, Any]],
    known: Sequence[Mapping[str, Any]],
) -> Results:
    curves, weights = files
    first = curves[*key, spec.methods[0].label, str(spec.seeds[0])]
    rounds = np.array([int(row["round"]) for row in first])
    records = tuple(
        tuple(
            _entry(k, spec.rounds, curves[who], weights.get(who, ()))
            for k, method in enumerate(spec.methods)
            for who in [(*key, method.label, str(seed))]
        )
        for seed in spec.seeds
    )
    return Results(spec, rounds, records, tuple(known))


def _entry(
    entry: int, last: int, rows: Iterable[Mapping[str, str]], weighted: Iterable[Any]
) -> tuple[RoundRecord, ...]:
    records = [RoundRecord(t, entry) for t in range(last + 1)]
    clients = [int(row["client"]) for row in weighted]
    for row in rows:
        t = int(row["round"])
        values = {k: _number(v) for k, v in row.items() if k not in (*_WHO, *_SENT)}
        is_last = t == last
        records[t] = RoundRecord(
            t,
            entry,
            objective=values.pop("objective"),
            pooled=values.pop("pooled"),
            metrics={k: v for k, v in values.items() if v is not None},
            scalars=int(row["scalars"]),
            paper_scalars=int(row["paper_scalars"]),
            clients=tuple(clients) if is_last else (),
            horizons=tuple(int(row["horizon"]) for row in weighted) if is_last else (),
            weights=tuple(float(row["weight"]) for row in weighted) if is_last else (),
        )
    return tuple(records)


def _records(results: Results) -> Iterable[RoundRecord]:
    return (
        records[t]
        for entries in results.records
        for records in entries
        for t in results.rounds
    )


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.9g}"


def _number(text: str) -> float | None:
    return float(text) if text else None


def _write(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows((head, *rows))
    # without a date the same rows give the same bytes
    write_bytes(path, gzip.compress(stream.getvalue().encode(), mtime=0))


def _read(path: Path) -> dict[Who, list[dict[str, str]]]:
    """Rows of a file by data set, regime, method and seed."""
    by_run: dict[Who, list[dict[str, str]]] = {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            by_run.setdefault(tuple(row[name] for name in _WHO), []).append(row)
    return by_run
