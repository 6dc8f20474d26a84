"""A Flower run on disk: kept after every round, resumed, and read by `hewfl report`.

    folder/spec.toml        the run as an experiment of one method and one seed
    folder/seed-<seed>/     trace.jsonl, checkpoint and, at the end, constants.json
    folder/times.json       at the end

`docs/experiments.md` says what of these a report needs. The checkpoint holds the model,
the method's state, the round, and the method and options themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hewfl.core.algorithm import Algorithm
from hewfl.core.atomic import write_json
from hewfl.core.checks import invalid
from hewfl.core.conversion import from_table, to_table
from hewfl.errors import DataError
from hewfl.flower.contacts import Registry
from hewfl.flower.layout import Layout
from hewfl.flower.options import Options
from hewfl.server.checkpoint import Saved, flatten, load_checkpoint, unflatten
from hewfl.server.client_laws import check_horizons, check_participation
from hewfl.server.folder import RunLog, describe
from hewfl.server.methods import METHODS
from hewfl.server.outer import Outer
from hewfl.server.state import ServerState
from hewfl.server.trace import RoundRecord
from hewfl.version import __version__

_OTHER = "other:"
"""Before the names of arrays of the model that are no parameters."""
_PLAIN = ("population", "seed", "variates", "min_replies", "fraction_evaluate", "name")
_WAITING = ("wait_for", "wait_seconds")


@final
@dataclass(frozen=True, slots=True)
class Kept:
    """What a folder holds.

    Attributes:
        round: rounds done.
        state: of the method, with the model.
        layout: of the model.
        others: arrays of the model that are no parameters.
    """

    round: int
    state: ServerState
    layout: Layout
    others: Mapping[str, NDArray[Any]]


def provenance(algorithm: Algorithm[Any], options: Options) -> dict[str, Any]:
    """Method and options as tables.

    Raises:
        InvalidInputError: the method or a law is not one of hewfl's own.
    """
    kind = type(algorithm).__name__
    if METHODS.get(kind) is not type(algorithm):
        rule = "left out for methods that are not hewfl's own"
        raise invalid("folder", rule, f"{options.folder} with {kind}")
    table: dict[str, Any] = {
        "method": {"kind": kind, **to_table(algorithm)},
        "outer": to_table(options.outer),
        **{name: getattr(options, name) for name in (*_PLAIN, *_WAITING)},
        "participation": _law(options.participation),
        "horizons": None if options.horizons is None else _law(options.horizons),
    }
    check_participation(table["participation"])
    if table["horizons"] is not None:
        check_horizons(table["horizons"])
    return table


def _law(law: Any) -> dict[str, Any]:
    if not is_dataclass(law):
        rule = "left out for laws that are not hewfl's own"
        raise invalid("folder", rule, f"one with {type(law).__name__}")
    listed = {f.name: getattr(law, f.name) for f in fields(law)}
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in listed.items()}
    return {"kind": type(law).__name__, **plain}


def rebuilt(folder: Path) -> tuple[Algorithm[Any], Options]:
    """Method and options of the run in a folder.

    Raises:
        DataError: there is no run, or it is damaged.
    """
    run = _checkpoint(folder).run
    if "method" not in run:
        raise DataError(f"{folder} does not hold a run of a Flower strategy")
    own = {key: value for key, value in run["method"].items() if key != "kind"}
    algorithm: Algorithm[Any] = from_table(METHODS[run["method"]["kind"]], own, "")
    horizons = run["horizons"]
    options = Options(
        **{name: run[name] for name in (*_PLAIN, *_WAITING)},
        horizons=None if horizons is None else check_horizons(horizons),
        participation=check_participation(run["participation"]),
        outer=from_table(Outer, run["outer"], ""),
        folder=folder,
    )
    return algorithm, options


def _checkpoint(folder: Path) -> Saved:
    for place in sorted(folder.glob("seed-*")):
        saved = load_checkpoint(place)
        if saved is not None:
            return saved
    raise DataError(f"{folder} holds no run to resume")


@final
class RunFolder:
    """Where one run is kept.

    Args:
        path: of the folder, made if it is new.
        algorithm: the method.
        options: the rest.
    """

    def __init__(self, path: Path, algorithm: Algorithm[Any], options: Options) -> None:
        self._path = path
        self._seed = path / f"seed-{options.seed}"
        self._run = provenance(algorithm, options)
        self._algorithm = algorithm
        self._options = options
        self._log = RunLog(self._seed)

    def describe(self, rounds: int, registry: Registry) -> None:
        """Write the spec that `hewfl report` reads."""
        table, options = self._run, self._options
        own = dict(table["method"])
        own |= own.pop("bounds", {})  # of Algorithm 1; specs have them side by side
        kind = own.pop("kind")
        own.pop("smoothness", None)  # in specs the data give it
        outer = to_table(options.outer)
        outer = {"outer_step": outer.pop("step"), **outer}  # as specs call it
        method = {"method": kind, "label": self._algorithm.name, **own, **outer}
        batches = [contact.batch_size for contact in registry.contacts.values()]
        clients = {
            "n": options.population or max(1, len(registry.contacts)),
            "batch_size": max(batches, default=1),
            "horizons": table["horizons"] or 1,
            "participation": table["participation"],
        }
        describe(
            self._path,
            options.name,
            method,
            seed=options.seed,
            rounds=rounds,
            clients=clients,
        )

    def load(self, like: ServerState, layout: Layout) -> Kept | None:
        """The run found here, None if there is none; a longer trace is cut back.

        Args:
            like: a state of the same shape.
            layout: of the model.

        Raises:
            DataError: it is damaged, or another run.
        """
        run = {**self._run, "layout": to_table(layout)}
        saved = self._log.load(run, but=_WAITING)
        if saved is None:
            return None
        others = {
            name.removeprefix(_OTHER): np.array(array)
            for name, array in saved.arrays.items()
            if name.startswith(_OTHER)
        }
        return Kept(saved.round, unflatten(like, saved.arrays), layout, others)

    def commit(self, record: RoundRecord, kept: Kept) -> None:
        """Add a round to the trace, then make its state the current one."""
        self._log.append([record])
        others = {f"{_OTHER}{name}": array for name, array in kept.others.items()}
        arrays = {**flatten(kept.state), **others}
        run = {**self._run, "layout": to_table(kept.layout)}
        self._log.save(Saved(kept.round, run, arrays, self._log.size))

    def close(self, registry: Registry, d: int, seconds: float) -> None:
        """Write constants and times of a finished run."""
        population = self._options.population
        samples = {i: contact.examples for i, contact in registry.contacts.items()}
        known = {
            "smoothness": self._run["method"].get("smoothness"),
            "objective": None,
            "pooled": None,
            "n": population or self._numbers(),
            "d": d,
            "samples": [samples.get(i, 0) for i in range(population or 0)],
        }
        write_json(self._seed / "constants.json", known)
        versions = {"hewfl": __version__, "flwr": metadata.version("flwr")}
        write_json(
            self._path / "times.json", {"seconds": round(seconds, 1), **versions}
        )

    def _numbers(self) -> int:
        """Clients counted by the largest number in the trace, where none has a name."""
        records = self._log.records()
        return 1 + max(
            (i for r in records for i in (*r.clients, *r.excluded)), default=0
        )
