"""What runs from left to right: rounds, scalars sent, seconds."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import Array
from hewfl.experiments.results import Results
from hewfl.server.client_laws import check_horizons
from hewfl.server.federation import TimedHorizons
from hewfl.server.trace import RoundRecord

Axis = Literal["rounds", "scalars", "paper_scalars", "seconds"]
"""What a comparison can be at equal amounts of."""
AXES: dict[Axis, str] = {
    "rounds": "rounds",
    "scalars": "scalars sent",
    "paper_scalars": "scalars sent, paper's count",
    "seconds": "seconds",
}


def axes_of(results: Results) -> list[Axis]:
    """The axes that a run has: seconds where clients have a time budget and speeds."""
    given = results.spec.clients.horizons
    timed = isinstance(given, Mapping) and given.get("kind") == "TimedHorizons"
    return [axis for axis in AXES if axis != "seconds" or timed]


def places(results: Results, label: str, axis: Axis) -> Float64[Array, "seeds points"]:
    """Where the evaluated rounds of a method lie on an axis, seed by seed."""
    if axis == "rounds":
        rounds = results.rounds.astype(np.float64)
        return np.tile(rounds, (len(results.records), 1))
    if axis == "seconds":
        return _seconds(results, label)
    return results.curve(label, axis)


def positions(results: Results, label: str, axis: Axis) -> Float64[Array, " points"]:
    """Where a method's points lie from left to right, the mean over seeds."""
    return np.asarray(places(results, label, axis).mean(axis=0))


def _seconds(results: Results, label: str) -> Float64[Array, "seeds points"]:
    """Time since the start, by budget and speeds of the spec; sending takes none."""
    law = check_horizons(results.spec.clients.horizons)
    assert isinstance(law, TimedHorizons)
    lane = results.labels.index(label)
    rows = []
    for by_lane in results.records:
        each = [_duration(law, record) for record in by_lane[lane][1:]]
        rows.append(np.concatenate(([0.0], np.cumsum(each)))[results.rounds])
    return np.array(rows)


def _duration(law: TimedHorizons, record: RoundRecord) -> float:
    """A round's budget, or the one step of a client too slow to end it in that time."""
    pairs = zip(record.clients, record.horizons, strict=True)
    return max([law.budget, *(1 / law.speeds[i] for i, h in pairs if h == 1)])
