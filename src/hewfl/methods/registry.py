"""The one registry of names: methods for specs and commands, aggregators for adapters.

A name stands for the same rule with the same defaults everywhere. Presets and the
paper's algorithms are spelled as their classes ("FedAvg", "HewHet"), aggregators in
lower case ("geometric-median"). A name of an aggregator is a method too: local work
comes from the fields beside it.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from hewfl.aggregators import NAMES, RENAMED, YARDSTICKS, Aggregator, find_maker, make
from hewfl.algorithms.hew_control import HewControl
from hewfl.algorithms.hew_het import HewHet
from hewfl.algorithms.hew_hom import HewHom
from hewfl.core.algorithm import Algorithm
from hewfl.core.validation import format_value, invalid
from hewfl.methods import presets
from hewfl.methods.method import ClientTraining, Method
from hewfl.server.state import check_algorithm

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
