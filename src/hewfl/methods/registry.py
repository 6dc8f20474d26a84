"""The one registry of names: methods for specs and commands, aggregators for adapters.

A name stands for the same rule with the same defaults everywhere. Presets and the
paper's algorithms are spelled as their classes ("FedAvg", "HewHet"), aggregators in
lower case ("geometric-median"). A name of an aggregator is a method too: local work
comes from the fields beside it.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from hewfl.aggregators import (
    NAMES,
    PREAGGREGATIONS,
    RENAMED,
    YARDSTICKS,
    Aggregator,
    find_maker,
    is_name,
    make,
)
from hewfl.algorithms.hew_control import HewControl
from hewfl.algorithms.hew_het import HewHet
from hewfl.algorithms.hew_hom import HewHom
from hewfl.core.algorithm import Algorithm
from hewfl.core.toml_records import from_table
from hewfl.core.validation import format_value, invalid
from hewfl.methods import presets
from hewfl.methods.method import ClientTraining, Method
from hewfl.server.server_step import ServerStep
from hewfl.server.state import Entry, check_algorithm

ALGORITHMS: dict[str, type[Any]] = {
    "HewHom": HewHom,
    "HewHet": HewHet,
    "HewControl": HewControl,
}
"""The paper's algorithms, which are given the smoothness L."""
PRESETS: dict[str, Callable[..., Method]] = {
    preset.__name__: preset
    for preset in (
        *(presets.FedAvg, presets.UniformLocalSGD, presets.StepWeighted),
        *(presets.FedProx, presets.FedNova, presets.Scaffold, presets.MinibatchSGD),
        *(presets.HewFixed, presets.FedAvgM, presets.FedAdam, presets.FedYogi),
        presets.FedAdagrad,
    )
}
"""Methods of the literature, which are given local work."""
METHODS: dict[str, Any] = (
    ALGORITHMS | PRESETS | {name: find_maker(name)[0] for name in (*NAMES, *YARDSTICKS)}
)
"""Every name that a spec may use, and the class or function that documents it."""
PARTS: dict[str, Any] = METHODS | dict(PREAGGREGATIONS)
"""What names are made of: pre-aggregations come before an aggregator with a "+"."""
OLD_NAMES = MappingProxyType(
    dict(RENAMED)
    | {
        "Agreement": "agreement",
        "CentredClipping": "centered-clipping",
        "CoordinateMedian": "coordinate-median",
        "Disagreement": "disagreement",
        "FedAWARE": "fedaware",
        "FedAdp": "fedadp",
        "FedExP": "fedexp",
        "FedMGDAPlus": "fedmgda",
        "GeometricMedian": "geometric-median",
        "HewMean": "exact",
        "KnownQuality": "oracle",
        "Krum": "krum",
        "MultiKrum": "multi-krum",
        "QFedAvg": "qfedavg",
        "Sieve": "sieve",
        "TrimmedMean": "trimmed-mean",
        "Trust": "trust",
    }
)
"""Names of earlier versions, and what they are now."""
_UNAVAILABLE = {
    "losses": "losses at the model",
    "truth": "the truth, which only a simulation has",
}
"""What a Flower federation and a torch job do not supply."""


def is_registered(name: object) -> bool:
    """Whether a name is of the registry, alone or with pre-aggregations.

    Args:
        name: of a method.

    Returns:
        Whether a spec may use it.
    """
    return isinstance(name, str) and (name in METHODS or is_name(name))


def as_algorithm(aggregator: str | Aggregator | Algorithm[Any]) -> Algorithm[Any]:
    """What decides in a federation whose clients train by themselves.

    Args:
        aggregator: a name of `hewfl.aggregators.NAMES`, an aggregator, or a whole
            method.

    Returns:
        The method; aggregators are given `ClientTraining`.

    Raises:
        InvalidInputError: it is none of these.
    """
    if isinstance(aggregator, str):
        aggregator = make(aggregator)
    if isinstance(aggregator, Aggregator):
        return Method(ClientTraining(), aggregator, name=aggregator.name)
    if isinstance(aggregator, type):
        raise invalid(
            "aggregator", "an instance, not a class", format_value(aggregator)
        )
    check_algorithm("aggregator", aggregator)
    return aggregator


def require_available(algorithm: Algorithm[Any], argument: str = "aggregator") -> None:
    """Require an algorithm whose needs a Flower federation or a torch job supplies.

    Args:
        algorithm: that is to run there.
        argument: what messages call it.

    Raises:
        InvalidInputError: it needs losses or the truth, or has worker momentum, which
            is up to the clients there.
    """
    demands = algorithm.demands
    missing = {text for need, text in _UNAVAILABLE.items() if need in demands.needs}
    missing |= {_UNAVAILABLE["truth"]} if demands.oracle else set()
    if missing:
        rule = "one that needs no losses and no truth"
        got = f"{algorithm.name}, which needs {' and '.join(sorted(missing))}"
        raise invalid(argument, rule, got)
    if demands.worker_momentum > 0:
        rule = "one without `worker_momentum`: clients keep their own here"
        raise invalid(argument, rule, algorithm.name)


def require_client_training(method: Algorithm[Any]) -> None:
    """Require a method that leaves local steps to the clients.

    A learning rate of `LocalSGD` is accepted and not used: clients have their own.

    Args:
        method: for clients that train by themselves.

    Raises:
        InvalidInputError: its local work has a proximal term, or takes gradients at
            the anchor, which such clients would not do.
    """
    local = getattr(method, "local", None)
    if getattr(local, "prox", 0.0) > 0 or getattr(local, "at_anchor", False):
        rule = "one that leaves local steps to clients, without `prox` or `at_anchor`"
        raise invalid("aggregator", rule, method.name)


def client_entry(
    aggregator: object, options: Mapping[str, Any], server_step: Mapping[str, Any]
) -> Entry:
    """What decides where clients train by themselves, from names and tables alone.

    Args:
        aggregator: a name of `hewfl.aggregators.NAMES`.
        options: fields of the aggregator.
        server_step: fields of `ServerStep`.

    Returns:
        The entry.

    Raises:
        InvalidInputError: there is no such name or field, a value is out of range, or
            such clients cannot serve it.
    """
    if not isinstance(aggregator, str):
        rule = "a name; `options` are its fields"
        raise invalid("aggregator", rule, format_value(aggregator))
    algorithm = as_algorithm(make(aggregator, **options))
    require_available(algorithm)
    step = from_table(ServerStep, server_step, "server_step")
    if step.average is not None or step.has_search:
        rule = "without `average` and `line_search_samples`"
        raise invalid("server_step", rule, dict(server_step))
    return Entry(algorithm, step)
