"""Who takes part in a round, with how many steps and which faults, from a spec."""

from collections.abc import Mapping, Sequence
from typing import Any

from hewfl.core.checks import invalid, shown
from hewfl.core.conversion import (
    check_names,
    errors_naming,
    from_list,
    from_table,
    is_whole,
)
from hewfl.core.own_code import checked_name, is_own, load, make
from hewfl.server.faults import (
    ConstantUpdates,
    FlippedLabels,
    GrowingNoise,
    HiddenBatches,
    RandomLabels,
    RandomUpdates,
    ScaledUpdates,
    StaleUpdates,
)
from hewfl.server.federation import (
    ChoiceHorizons,
    EpochHorizons,
    FixedHorizons,
    FullParticipation,
    Horizons,
    Law,
    PoissonHorizons,
    RandomParticipation,
    RotatingParticipation,
    SampledParticipation,
    TimedHorizons,
    World,
)


def _by_name(*laws: type[Any]) -> dict[str, type[Any]]:
    return {law.__name__: law for law in laws}


HORIZONS = _by_name(
    *(FixedHorizons, ChoiceHorizons, PoissonHorizons, EpochHorizons, TimedHorizons)
)
PARTICIPATION = _by_name(
    *(FullParticipation, SampledParticipation, RandomParticipation),
    RotatingParticipation,
)

HORIZONS_GROUP, PARTICIPATION_GROUP = "hewfl.horizons", "hewfl.participation"
"""Entry points by which installed packages offer laws of their own."""
FAULTS = _by_name(
    *(HiddenBatches, RandomLabels, FlippedLabels, ScaledUpdates, RandomUpdates),
    *(ConstantUpdates, StaleUpdates, GrowingNoise),
)


def check_world(given: Any) -> World:
    """Make the world that a spec asks for: a table with a list of faults."""
    where = "clients.world"
    if given is None:
        return World()
    if not isinstance(given, Mapping):
        raise invalid(where, "a table with `faults`", repr(given))
    check_names(given, ("faults", "objective"), where)
    listed = given.get("faults", ())
    if not isinstance(listed, list | tuple) or not listed:
        raise invalid(f"{where}.faults", "a list of tables", repr(listed))
    for k, fault in enumerate(listed):
        if not isinstance(fault, Mapping):
            raise invalid(f"{where}.faults[{k}]", "a table", repr(fault))
    faults = [_law(FAULTS, f, f"{where}.faults[{k}]") for k, f in enumerate(listed)]
    objective = given.get("objective", "honest")
    if objective not in ("honest", "all"):
        raise invalid(f"{where}.objective", "one of honest, all", repr(objective))
    with errors_naming({"faults": f"{where}.faults"}):
        return World(tuple(faults), objective)


def check_horizons(given: Any) -> Horizons:
    """Make the law of local steps that a spec asks for."""
    where = "clients.horizons"
    if isinstance(given, Mapping) or is_own(given, HORIZONS_GROUP):
        law: Horizons = _law(HORIZONS, given, where, HORIZONS_GROUP, Horizons)
        return law
    if isinstance(given, list | tuple):
        steps: Any = from_list(int, given, where)
    elif is_whole(given):
        steps = int(given)
    else:
        raise invalid(where, "a whole number, a list of them or a table", repr(given))
    with errors_naming({"steps": where}):
        return FixedHorizons(steps)


def check_participation(given: Any) -> Law:
    """Make the law of participation that a spec asks for."""
    where = "clients.participation"
    if given == "full":
        return FullParticipation()
    if isinstance(given, Mapping) or is_own(given, PARTICIPATION_GROUP):
        law: Law = _law(PARTICIPATION, given, where, PARTICIPATION_GROUP, Law)
        return law
    if not is_whole(given):
        raise invalid(where, '"full", a whole number or a table', repr(given))
    with errors_naming({"count": where}):
        return SampledParticipation(int(given))


def check_sizes(horizons: Any, participation: Any, n: int) -> None:
    """Require that lists have one entry per client and samples are not too large."""
    steps, who = check_horizons(horizons), check_participation(participation)
    for law, field in ((steps, "steps"), (steps, "speeds"), (who, "probability")):
        values = getattr(law, field, None)
        if isinstance(values, Sequence) and len(values) != n:
            given = horizons if law is steps else participation
            rule = f"one number for each of the {n} clients"
            raise invalid(_written(law, given, field), rule, f"{len(values)} of them")
    count = getattr(who, "count", 0)
    if count > n:
        rule = f"at most the {n} clients there are"
        raise invalid(_written(who, participation, "count"), rule, count)


def _written(law: Any, given: Any, field: str) -> str:
    """What the user calls a law's field."""
    kind = "horizons" if type(law).__name__ in HORIZONS else "participation"
    return f"clients.{kind}" + (f".{field}" if isinstance(given, Mapping) else "")


def is_own_law(given: Any, group: str) -> bool:
    """Whether a spec asks for a law of the user's own, which only running it loads."""
    return is_own(given.get("kind") if isinstance(given, Mapping) else given, group)


def _law(
    known: Mapping[str, type[Any]],
    given: Mapping[str, Any] | str,
    where: str,
    group: str = "hewfl.faults",
    kind_of: Any = object,
) -> Any:
    """A law by its name, with its own fields; one of the user's own is loaded."""
    if isinstance(given, str):
        given = {"kind": given}
    kind = given.get("kind")
    checked_name(kind, tuple(known), group, f"{where}.kind")
    rest = {key: value for key, value in given.items() if key != "kind"}
    for key, value in rest.items():
        if value == []:
            raise invalid(f"{where}.{key}", "a list with something in it", value)
    if kind in known:
        return from_table(known[str(kind)], rest, where)
    law = make(load(str(kind), group, f"{where}.kind"), rest, {}, where)
    if not isinstance(law, kind_of):
        rule = "a law with `draw`, or with `draw_after` for participation"
        raise invalid(f"{where}.kind", rule, shown(law))
    return law
