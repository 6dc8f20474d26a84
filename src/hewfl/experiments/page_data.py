"""What the script of a report page draws: curves and weights, as plain values."""

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, UInt16

from hewfl.core.checks import Array, Ints
from hewfl.experiments.axes import AXES, axes_of, positions
from hewfl.experiments.curves import QUANTITIES, leaders, measured
from hewfl.experiments.results import GAPS, Results
from hewfl.experiments.styles import Style
from hewfl.experiments.tune import LARGER_IS_BETTER

POINTS = 400
"""Of a curve; longer ones are thinned."""
WEIGHTS = 400_000
"""Of a run; with more, rounds are left out evenly, and then seeds."""
ABSENT = 65535
"""Code of a client that was not heard in a round."""


def page_data(results: Results, styles: Mapping[str, Style]) -> dict[str, Any]:
    """What the script draws of one run, at six significant digits."""
    axes = axes_of(results)
    kept = _spread_out(0, len(results.rounds) - 1, POINTS)
    offered = measured(results, QUANTITIES)
    return {
        "seeds": list(results.spec.seeds),
        "rounds": results.rounds[kept].tolist(),
        "name": results.spec.name,
        "axes": [{"key": axis, "name": AXES[axis]} for axis in axes],
        "quantities": [
            {
                "key": key,
                "name": QUANTITIES[key],
                "log": key in GAPS,
                "up": key in LARGER_IS_BETTER,
                "leaders": leaders(results, key),
            }
            for key in offered
        ],
        "methods": [
            {
                "label": label,
                "colour": style.colour,
                "dash": [style.width * part for part in style.dash],
                "marker": style.marker,
                "width": style.width,
                "at": {a: _rounded(positions(results, label, a)[kept]) for a in axes},
                "curves": {
                    key: [_rounded(row[kept]) for row in results.values(label, key)]
                    for key in offered
                },
            }
            for label, style in ((k, styles[k]) for k in results.labels)
        ],
        "weights": _weights(results),
    }


def _weights(results: Results) -> dict[str, Any]:
    """Weights of each method, seed, round and client in two bytes each."""
    n, lanes, last = results.constants[0]["n"], len(results.labels), results.spec.rounds
    few = min(last, 30)  # rounds worth having before a second seed is
    seeds = max(1, min(len(results.records), WEIGHTS // (lanes * n * few)))
    rounds = _spread_out(1, last, max(1, WEIGHTS // (lanes * n * seeds)))
    horizons = np.zeros((seeds, len(rounds), n), dtype=np.uint16)
    weights = np.full((lanes, seeds, len(rounds), n), np.nan)
    for s, by_lane in enumerate(results.records[:seeds]):
        for lane, records in enumerate(by_lane):
            for k, t in enumerate(rounds):
                heard = list(records[t].clients)
                weights[lane, s, k, heard] = records[t].weights
                horizons[s, k, heard] = np.minimum(records[t].horizons, ABSENT)
    weights[~np.isfinite(weights)] = np.nan
    low = np.fmin.reduce(weights, axis=(1, 2, 3), initial=0.0)
    high = np.fmax.reduce(weights, axis=(1, 2, 3), initial=0.0)
    width = np.where(high > low, high - low, 1.0)
    scaled = (weights - low[:, None, None, None]) / width[:, None, None, None]
    absent = np.isnan(weights)
    codes = np.where(absent, ABSENT, np.rint(np.where(absent, 0.0, scaled) * 65534))
    return {
        "n": n,
        "rounds": rounds.tolist(),
        "seeds": list(results.spec.seeds[:seeds]),
        "low": _rounded(low),
        "width": _rounded(width),
        "codes": [[_packed(part) for part in rows] for rows in codes.astype(np.uint16)],
        "horizons": [_packed(part) for part in horizons],
    }


def _packed(values: UInt16[Ints, "rounds n"]) -> str:
    """Base64 of little-endian codes."""
    return base64.b64encode(values.astype("<u2").tobytes()).decode()


def _spread_out(first: int, last: int, most: int) -> Int64[Ints, " kept"]:
    """Whole numbers from first to last, at most so many, evenly spaced."""
    count = min(most, last - first + 1)
    if count == 1:
        return np.array([last])
    return np.unique(np.rint(np.linspace(first, last, count)).astype(np.int64))


def _rounded(values: Float64[Array, " k"]) -> list[float | int | None]:
    return [_number(f"{v:.6g}") if math.isfinite(v) else None for v in values]


def _number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 1e15 else value
