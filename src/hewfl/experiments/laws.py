"""Horizons and participation from a spec."""

from collections.abc import Mapping
from typing import Any

from hewfl.core.checks import invalid
from hewfl.experiments.tables import from_table
from hewfl.sim.federation import (
    ChoiceHorizons,
    EpochHorizons,
    FixedHorizons,
    FullParticipation,
    Horizons,
    Participation,
    PoissonHorizons,
    RandomParticipation,
    SampledParticipation,
    TimedHorizons,
)

HORIZONS: dict[str, type[Any]] = {
    law.__name__: law
    for law in (
        FixedHorizons,
        ChoiceHorizons,
        PoissonHorizons,
        EpochHorizons,
        TimedHorizons,
    )
}
PARTICIPATION: dict[str, type[Any]] = {
    law.__name__: law
    for law in (FullParticipation, SampledParticipation, RandomParticipation)
}


def check_horizons(given: Any) -> Horizons:
    """The law of local steps that a spec asks for.

    Raises:
        InvalidInputError: neither a number, a list nor a table of a known law.
    """
    where = "clients.horizons"
    if isinstance(given, Mapping):
        law: Horizons = _law(HORIZONS, given, where)
        return law
    return from_table(FixedHorizons, {"steps": given}, where)


def check_participation(given: Any) -> Participation:
    """The law of participation that a spec asks for.

    Raises:
        InvalidInputError: neither "full", a number nor a table of a known law.
    """
    where = "clients.participation"
    if given == "full":
        return FullParticipation()
    if isinstance(given, Mapping):
        law: Participation = _law(PARTICIPATION, given, where)
        return law
    if isinstance(given, str):
        raise invalid(where, '"full", a number or a table', repr(given))
    return from_table(SampledParticipation, {"count": given}, where)


def _law(known: Mapping[str, type[Any]], given: Mapping[str, Any], where: str) -> Any:
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in known:
        raise invalid(f"{where}.kind", f"one of {', '.join(known)}", repr(kind))
    rest = {key: value for key, value in given.items() if key != "kind"}
    return from_table(known[kind], rest, where)
