"""Aggregators: from the updates of a round to weights or a step.

    decision, state = Trust()(updates)             # any array, or a list of vectors
    Method(LocalSGD(0.1), GeometricMedian())       # in a simulation
    HewStrategy(aggregator="geometric-median")     # in Flower, by name

`make(name, **options)` gives one by its name, the same everywhere: in specs, in the
command, in Flower and in torch jobs. `NAMES` lists them.
"""

from collections.abc import Callable
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from hewfl.aggregators.aggregator import Aggregator
from hewfl.aggregators.averaging import (
    FedExP,
    Mean,
    NormalizedMean,
    PowerWeights,
    QFedAvg,
)
from hewfl.aggregators.coordinatewise import CoordinateMedian, TrimmedMean
from hewfl.aggregators.distance import (
    CenteredClipping,
    Disagreement,
    GeometricMedian,
    Krum,
    MultiKrum,
)
from hewfl.aggregators.exact import ExactWeights
from hewfl.aggregators.min_norm import FedAWARE, FedMGDAPlus
from hewfl.aggregators.oracle import Oracle
from hewfl.aggregators.preaggregation import Clip, Pipeline, PreAggregation
from hewfl.aggregators.robustness import Certified
from hewfl.aggregators.similarity import Agreement, FedAdp, Sieve
from hewfl.aggregators.trust import Trust
from hewfl.core.validation import format_value, invalid

_MAKERS: dict[str, tuple[Callable[..., Aggregator], dict[str, Any]]] = {
    "mean": (Mean, {}),
    "size-weighted": (Mean, {"by": "size"}),
    "step-weighted": (Mean, {"by": "steps"}),
    "normalized-mean": (NormalizedMean, {}),
    "power-weights": (PowerWeights, {}),
    "exact": (ExactWeights, {}),
    "agreement": (Agreement, {}),
    "sieve": (Sieve, {}),
    "trust": (Trust, {}),
    "disagreement": (Disagreement, {}),
    "geometric-median": (GeometricMedian, {}),
    "coordinate-median": (CoordinateMedian, {}),
    "trimmed-mean": (TrimmedMean, {}),
    "krum": (Krum, {}),
    "multi-krum": (MultiKrum, {}),
    "centered-clipping": (CenteredClipping, {}),
    "fedadp": (FedAdp, {}),
    "fedaware": (FedAWARE, {}),
    "fedexp": (FedExP, {}),
    "fedmgda": (FedMGDAPlus, {}),
    "qfedavg": (QFedAvg, {}),
    "oracle": (Oracle, {}),
}
YARDSTICKS = ("oracle",)
"""Names of rules that only a simulation can use: it knows which clients are faulty."""
NAMES: tuple[str, ...] = tuple(name for name in _MAKERS if name not in YARDSTICKS)
"""Names of the aggregators; `make` takes those of `YARDSTICKS` too."""
RENAMED = MappingProxyType(
    {
        "equal": "mean",
        "uniform": "mean",
        "fedavg": "size-weighted",
        "tokens": "size-weighted",
        "steps": "step-weighted",
        "fednova": "normalized-mean",
        "hom": "exact",
        "het": 'exact with reference="variate"',
        "median": "geometric-median or coordinate-median",
        "centred-clipping": "centered-clipping",
    }
)
"""Names of other libraries and of earlier versions, and ours."""


def make(name: str, **options: Any) -> Aggregator:
    """An aggregator by its name.

    Args:
        name: one of `NAMES`.
        **options: fields of its class.

    Returns:
        The aggregator.

    Raises:
        InvalidInputError: there is no such name or option, or a value is out of range.

    Examples:
        >>> from hewfl import aggregators
        >>> aggregators.make("multi-krum", byzantine_fraction=0.2)
        MultiKrum(byzantine_fraction=0.2, selected_fraction=0.5)
    """
    maker, fixed = find_maker(name)
    try:
        rule: Aggregator = maker(**(fixed | options))
    except TypeError as error:
        raise invalid("options", f"fields of {maker.__name__}", error) from error
    return rule


def find_maker(name: object) -> tuple[Any, dict[str, Any]]:
    """The class behind a name, and the fields that the name fixes.

    Args:
        name: one of `NAMES`.

    Returns:
        The class and a copy of the fields.

    Raises:
        InvalidInputError: there is no such name.
    """
    if not isinstance(name, str) or name not in _MAKERS:
        hint = RENAMED.get(str(name).lower())
        if hint is None:
            near = get_close_matches(str(name).lower(), NAMES, n=1)
            hint = near[0] if near else None
        known = f"one of {', '.join(NAMES)}"
        got = format_value(name) + (f" (did you mean {hint}?)" if hint else "")
        raise invalid("aggregator", known, got)
    maker, fixed = _MAKERS[name]
    return maker, dict(fixed)


__all__ = [
    "NAMES", "Aggregator", "Agreement", "CenteredClipping", "Certified", "Clip",
    "CoordinateMedian", "Disagreement", "ExactWeights", "FedAWARE", "FedAdp",
    "FedExP", "FedMGDAPlus", "GeometricMedian", "Krum", "Mean", "MultiKrum",
    "NormalizedMean", "Oracle", "Pipeline", "PowerWeights", "PreAggregation",
    "QFedAvg", "Sieve", "TrimmedMean", "Trust", "make",
]  # fmt: skip
