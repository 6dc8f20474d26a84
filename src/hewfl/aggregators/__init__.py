"""Aggregators: from the updates of a round to weights or a step.

    decision, state = Trust()(updates)             # any array, or a list of vectors
    Method(LocalSGD(0.1), GeometricMedian())       # in a simulation
    HewStrategy(aggregator="geometric-median")     # in Flower, by name

`make(name, **options)` gives one by its name, the same everywhere: in specs, in the
command, in Flower and in torch jobs. `NAMES` lists them. A name may put
pre-aggregations (`PREAGGREGATIONS`) before the rule: "clip+nnm+geometric-median".
"""

from collections.abc import Callable, Mapping
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
from hewfl.aggregators.coordinatewise import (
    Bulyan,
    CoordinateMedian,
    Meamed,
    TrimmedMean,
)
from hewfl.aggregators.diameter import MDA
from hewfl.aggregators.distance import (
    CenteredClipping,
    Disagreement,
    GeometricMedian,
    Krum,
    MultiKrum,
)
from hewfl.aggregators.exact import ExactWeights
from hewfl.aggregators.hostile import AngleMix, RootWeights
from hewfl.aggregators.min_norm import FedAWARE, FedMGDAPlus
from hewfl.aggregators.oracle import Oracle
from hewfl.aggregators.preaggregation import (
    ARC,
    NNM,
    Bucketing,
    Clip,
    Pipeline,
    PreAggregation,
    SoftMix,
    WorkerMomentum,
)
from hewfl.aggregators.robustness import Certified
from hewfl.aggregators.similarity import (
    Agreement,
    FedAdp,
    FLTrust,
    MajoritySieve,
    Sieve,
    SignGuard,
)
from hewfl.aggregators.spectral import CAF, DnC
from hewfl.aggregators.trust import Trust
from hewfl.core.plugins import parameters_of
from hewfl.core.validation import format_value, invalid
from hewfl.errors import InvalidInputError

_MAKERS: dict[str, tuple[Callable[..., Aggregator], dict[str, Any]]] = {
    "mean": (Mean, {}),
    "size-weighted": (Mean, {"by": "size"}),
    "step-weighted": (Mean, {"by": "steps"}),
    "normalized-mean": (NormalizedMean, {}),
    "power-weights": (PowerWeights, {}),
    "exact": (ExactWeights, {}),
    "agreement": (Agreement, {}),
    "sieve": (Sieve, {}),
    "majority-sieve": (MajoritySieve, {}),
    "trust": (Trust, {}),
    "root-weights": (RootWeights, {}),
    "disagreement": (Disagreement, {}),
    "geometric-median": (GeometricMedian, {}),
    "coordinate-median": (CoordinateMedian, {}),
    "trimmed-mean": (TrimmedMean, {}),
    "krum": (Krum, {}),
    "multi-krum": (MultiKrum, {}),
    "meamed": (Meamed, {}),
    "bulyan": (Bulyan, {}),
    "mda": (MDA, {}),
    "caf": (CAF, {}),
    "dnc": (DnC, {}),
    "signguard": (SignGuard, {}),
    "fltrust": (FLTrust, {}),
    "centered-clipping": (CenteredClipping, {}),
    "fedadp": (FedAdp, {}),
    "fedaware": (FedAWARE, {}),
    "fedexp": (FedExP, {}),
    "fedmgda": (FedMGDAPlus, {}),
    "qfedavg": (QFedAvg, {}),
    "oracle": (Oracle, {}),
}
PREAGGREGATIONS: Mapping[str, type[PreAggregation]] = MappingProxyType(
    {
        "clip": Clip,
        "arc": ARC,
        "nnm": NNM,
        "bucketing": Bucketing,
        "softmix": SoftMix,
        "angle-mix": AngleMix,
        "worker-momentum": WorkerMomentum,
    }
)
"""Names of the pre-aggregations, which may come before an aggregator's with a "+"."""
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
RENAMED_OPTIONS = MappingProxyType(
    {
        "byzantine_fraction": "f",
        "trim": "f",
        "bad": "f",
        "kept": "selected_fraction",
        "doubt": "threshold",
        "by_size": "by",
    }
)
"""Fields of earlier versions, and what they are called now."""


def make(name: str, **options: Any) -> Aggregator:
    """An aggregator by its name.

    Args:
        name: one of `NAMES`, or some of `PREAGGREGATIONS` and one of `NAMES`, joined
            by "+".
        **options: fields of its class. Each is given to all parts that have such a
            field: one `f` serves all.

    Returns:
        The aggregator.

    Raises:
        InvalidInputError: there is no such name or option, or a value is out of range.

    Examples:
        >>> from hewfl import aggregators
        >>> aggregators.make("multi-krum", f=0.2)
        MultiKrum(f=0.2, selected_fraction=0.5)
        >>> aggregators.make("arc+nnm+trimmed-mean", f=4)
        Pipeline(ARC(f=4), NNM(f=4), TrimmedMean(f=4))
    """

    def build(maker: Any, given: dict[str, Any]) -> Any:
        try:
            return maker(**given)
        except TypeError as error:
            raise invalid("options", f"fields of {maker.__name__}", error) from error

    return assemble(name, options, build)


def assemble(
    name: object,
    options: Mapping[str, Any],
    build: Callable[[Any, dict[str, Any]], Any],
) -> Aggregator:
    """Build the parts of a name, each with the options that it has.

    Args:
        name: as `make` takes it.
        options: fields; one that no part has goes to the last, which refuses it.
        build: makes one part from its class and its fields.

    Returns:
        The aggregator.

    Raises:
        InvalidInputError: there is no such name or option, or a value is out of range.
    """
    makers = find_parts(name)
    fields = [
        [field for field in parameters_of(maker) if field not in fixed]
        for maker, fixed in makers
    ]
    unknown = set(options).difference(*fields)
    for field in sorted(unknown & RENAMED_OPTIONS.keys()):
        text = f"is now called `{RENAMED_OPTIONS[field]}`"
        raise InvalidInputError(f"`{field}` {text}")
    parts = []
    for i, (maker, fixed) in enumerate(makers):
        names = {*fields[i], *(unknown if i == len(makers) - 1 else ())}
        given = {key: value for key, value in options.items() if key in names}
        parts.append(build(maker, fixed | given))
    rule: Aggregator = parts[0] if len(parts) == 1 else Pipeline(*parts)
    return rule


def find_parts(name: object) -> list[tuple[Any, dict[str, Any]]]:
    """The classes behind a name with pre-aggregations, and the fields it fixes.

    Args:
        name: as `make` takes it.

    Returns:
        Pairs as of `find_maker`, the aggregator's last.

    Raises:
        InvalidInputError: there is no such name.
    """
    *first, last = name.split("+") if isinstance(name, str) else (name,)
    makers: list[tuple[Any, dict[str, Any]]] = []
    for part in first:
        if part not in PREAGGREGATIONS:
            near = get_close_matches(part.lower(), PREAGGREGATIONS, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            rule = f"one of {', '.join(PREAGGREGATIONS)} before a +"
            raise invalid("aggregator", rule, format_value(part) + hint)
        makers.append((PREAGGREGATIONS[part], {}))
    return [*makers, find_maker(last)]


def is_name(name: object) -> bool:
    """Whether `make` has an aggregator of that name.

    Args:
        name: of a rule, with pre-aggregations or without.

    Returns:
        Whether it is known.
    """
    try:
        find_parts(name)
    except InvalidInputError:
        return False
    return True


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
    "ARC", "CAF", "MDA", "NAMES", "NNM", "PREAGGREGATIONS", "Aggregator", "Agreement",
    "AngleMix", "Bucketing", "Bulyan", "CenteredClipping", "Certified", "Clip",
    "CoordinateMedian", "Disagreement", "DnC", "ExactWeights", "FLTrust", "FedAWARE",
    "FedAdp", "FedExP", "FedMGDAPlus", "GeometricMedian", "Krum", "MajoritySieve",
    "Meamed", "Mean", "MultiKrum", "NormalizedMean", "Oracle", "Pipeline",
    "PowerWeights", "PreAggregation", "QFedAvg", "RootWeights", "Sieve", "SignGuard",
    "SoftMix", "TrimmedMean", "Trust", "WorkerMomentum", "make",
]  # fmt: skip
