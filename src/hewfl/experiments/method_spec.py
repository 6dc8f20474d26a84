"""Methods of an experiment: by name, with hyper-parameters, or grids of them."""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from hewfl.aggregators.equal_ground import EqualGround
from hewfl.algorithms.hew_het import HewHet
from hewfl.algorithms.hew_hom import HewHom
from hewfl.algorithms.online_curvature import OnlineCurvature
from hewfl.algorithms.paced import Paced
from hewfl.core.algorithm import Algorithm
from hewfl.core.plugins import (
    checked_name,
    is_own,
    load,
    make,
    parameters_of,
    short_name,
)
from hewfl.core.records import ProblemBounds
from hewfl.core.toml_records import (
    check_names,
    errors_naming,
    from_table,
    path,
)
from hewfl.core.validation import invalid, positive, shown
from hewfl.methods.registry import METHODS
from hewfl.server.server_step import ServerStep
from hewfl.server.state import Entry, check_algorithm

STEP, SHARE = "server_learning_rate", "average_share"
OUTER = (
    *(f.name if f.name != "step" else STEP for f in dataclasses.fields(ServerStep)),
    SHARE,
)
"""Fields of the server optimiser, for any method: those of `ServerStep`, whose `step` is
called `server_learning_rate`, and `average_share`, the last part of the rounds that a tail
average is taken over."""
RATE = "rate_scale"
"""A multiplier of the learning rate, for any method: it is given L over this."""
PACE = {"pace": "pace", "pace_unit": "unit", "pace_reference": "reference"}
"""How clients step, for any method with an `amplitude` or a `step_scale`: `Paced`."""
CURVATURE = "curvature"
"""For HewHom and HewHet: "given", Λ = ratio · L, or "online", Λ = ratio · estimate."""
GROUND = "ground"
"""For methods with a step scale s: "steps", η = s/L for all, or "equal", s/(LH_i)."""
ONLINE = ("curvature_memory", "curvature_floor")
"""Fields of the online estimate."""


GROUP = "hewfl.methods"
"""Entry points by which installed packages offer methods of their own."""
_BREAKS = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]")
"""Control characters and line breaks: no table has room for them."""
MANY = 100
"""Candidates of a method up to which each is checked when its spec is read."""


@final
@dataclass(frozen=True, slots=True)
class MethodSpec:
    """One line of a comparison.

    Attributes:
        method: name of the algorithm, such as "HewHom"; one of the user's own is
            "my_rules:Krum", the name of an entry point, or the path of a file, a colon
            and a name in it (`hewfl.core.plugins`).
        label: what tables and figures call it; the algorithm's name by default.
        parameters: hyper-parameters of the algorithm, without the smoothness, which the
            data give; those of the server optimiser (`OUTER`);
            `rate_scale`, which divides the smoothness; `ground = "equal"`, which
            makes a `step_scale` an amplitude; `pace` ("plain" or "equal"), `pace_unit`
            ("steps" or "epochs") and `pace_reference`, for step sizes other than the
            method's own: amplitude or step scale over L is then the step size; and for
            HewHom and HewHet `curvature = "online"` with `curvature_memory` and
            `curvature_floor`, or `kappa` instead of `curvature_ratio`: the smoothness
            is then the unit of the amplitude alone.
        grid: lists of values to choose from by tuning.
    """

    method: str
    label: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def candidates(self) -> tuple["MethodSpec", ...]:
        """The method once for every point of its grid, in the order of the lists.

        Returns:
            One method for each point, without a grid.
        """
        names = tuple(self.grid)
        return tuple(
            replace(
                self,
                label=self.label,
                parameters=dict(self.parameters) | dict(zip(names, point, strict=True)),
                grid={},
            )
            for point in itertools.product(*(self.grid[name] for name in names))
        )

    def entry(
        self, smoothness: float, reference_steps: float = 1.0, rounds: int = 1
    ) -> Entry:
        """The entry it runs in.

        Args:
            smoothness: L, or one over a learning rate.
            reference_steps: h; methods with an amplitude, which is a total over the
                steps of a branch, are given L/h.
            rounds: T, of which `average_share` is a share.

        Returns:
            The method with its hyper-parameters, under its server step.

        Raises:
            InvalidInputError: a hyper-parameter is missing or out of range.
        """
        server_step = {k: self.parameters[k] for k in OUTER if k in self.parameters}
        pace = {k: self.parameters[k] for k in PACE if k in self.parameters}
        known = (*OUTER, RATE, GROUND, *PACE)
        own = {k: v for k, v in self.parameters.items() if k not in known}
        where = f"methods.{self.label}"
        smoothness = smoothness / positive(RATE, self.parameters.get(RATE, 1.0))
        is_equal = self._on_equal_ground(where)
        own_names = _parameters(self.method, where)
        if is_equal or ("amplitude" in own_names and not pace):
            smoothness = smoothness / reference_steps
        algorithm = _algorithm(self.method, own, smoothness, where)
        if is_equal:
            with errors_naming({"rule": path(where, GROUND)}):
                algorithm = EqualGround(algorithm)
        if pace:
            algorithm = _paced(algorithm, pace, own, smoothness, where)
        optimiser = _outer(server_step, rounds, where)
        return Entry(algorithm, optimiser, self.label)

    def _on_equal_ground(self, where: str) -> bool:
        """Whether step sizes are divided by H_i, which amplitudes are anyway."""
        kind = self.parameters.get(GROUND, "steps")
        if kind not in ("steps", "equal"):
            raise invalid(path(where, GROUND), "one of steps, equal", repr(kind))
        if kind == "equal" and "step_scale" not in _parameters(self.method, where):
            rule = "left out: only methods with a `step_scale` have it"
            raise invalid(path(where, GROUND), rule, repr(kind))
        return bool(kind == "equal")


def _outer(given: dict[str, Any], rounds: int, where: str) -> ServerStep:
    """The server optimiser from the fields of a method.

    The word "none" stands for no `adapt` and no `average`, as lists of a grid need it.
    """
    given = {k: v for k, v in given.items() if v != "none"}
    if STEP in given:
        given["step"] = given.pop(STEP)
    if SHARE in given:
        share, place = positive(SHARE, given.pop(SHARE)), path(where, SHARE)
        if share > 1:
            raise invalid(place, "at most 1", share)
        if given.get("average") != "tail" or "average_from" in given:
            rule = 'left out unless average = "tail", and beside average_from'
            raise invalid(place, rule, share)
        given["average_from"] = 1 + int((1 - share) * rounds)
    with errors_naming({f"{where}.step": path(where, STEP)}):
        return from_table(ServerStep, given, where)


def method_from_table(table: Any, where: str) -> MethodSpec:
    """Make a method from one [[methods]] table."""
    if not isinstance(table, Mapping):
        raise invalid(where, "a table", repr(table))
    method: Any = table.get("method")
    checked_name(method, tuple(METHODS), GROUP, path(where, "method"))
    label = text_field(table.get("label", short_name(method)), path(where, "label"))
    is_ours = method in METHODS
    known = _known(method, where) if is_ours else ()
    if is_ours:
        check_names(table, ("method", "label", "grid", *known), where)
    grid = _grid(table.get("grid", {}), path(where, "grid"))
    if is_ours:
        check_names(grid, known, path(where, "grid"))
    given = {k: v for k, v in table.items() if k not in ("method", "label", "grid")}
    for name in set(given) & set(grid):
        rule = "either given or in the grid, not both"
        raise invalid(path(where, name), rule, given[name])
    found = MethodSpec(method, label, given, grid)
    _check_nesterov(found, where)
    if is_ours:
        check_method(found, where)
    return found


def check_method(method: MethodSpec, where: str) -> None:
    """Require fields that the method has, with values that it takes.

    The code of a method of the user's own is loaded for that.
    """
    known = _known(method.method, where)
    check_names(method.parameters, known, where)
    check_names(method.grid, known, path(where, "grid"))
    for candidate in _samples(method):
        candidate.entry(1.0)  # values of every candidate are checked now, not in a run


def _known(method: str, where: str) -> tuple[str, ...]:
    """Every field that the table of a method may have."""
    return (*_parameters(method, where), *OUTER, RATE, GROUND, *PACE)


def _check_nesterov(method: MethodSpec, where: str) -> None:
    """Require a momentum, here or in the grid, for a step that looks ahead along it."""

    def offered(name: str) -> tuple[Any, ...]:
        return method.grid.get(name, (method.parameters.get(name),))

    if any(v is True for v in offered("nesterov")) and not any(offered("momentum")):
        rule = "left out without `momentum`: there is nothing to look ahead along"
        raise invalid(path(where, "nesterov"), rule, "true")


def _samples(method: MethodSpec) -> tuple[MethodSpec, ...]:
    """Candidates that hold every value of the grid; all of them unless they are many.

    Of thousands each value comes once, with the first of the other lists.
    """
    if math.prod(len(values) for values in method.grid.values()) <= MANY:
        return method.candidates()
    first = {name: values[:1] for name, values in method.grid.items()}
    return tuple(
        candidate
        for name, values in method.grid.items()
        for candidate in replace(method, grid=first | {name: values}).candidates()
    )


def recorded_method(table: Any, where: str) -> MethodSpec:
    """Make a method from a [[methods]] table of a job that is no simulation.

    Args:
        table: `method` and `label`; everything else is a hyper-parameter, unchecked.
        where: path of the table, for errors.

    Returns:
        The method, which may be one that hewfl does not know.
    """
    if not isinstance(table, Mapping):
        raise invalid(where, "a table", repr(table))
    method = text_field(table.get("method"), path(where, "method"))
    label = text_field(table.get("label", method), path(where, "label"))
    rest = {k: v for k, v in table.items() if k not in ("method", "label")}
    return MethodSpec(method, label, rest)


def text_field(value: Any, where: str) -> str:
    """Require a text of one line that is not empty, as tables and figures show it."""
    if not isinstance(value, str) or not value.strip() or _BREAKS.search(value):
        raise invalid(where, "text on one line", repr(value))
    return value


def method_table(method: MethodSpec) -> dict[str, Any]:
    """The table that `method_from_table` reads."""
    table = {"method": method.method, "label": method.label, **method.parameters}
    if method.grid:
        table["grid"] = {name: list(values) for name, values in method.grid.items()}
    return table


def _grid(table: Any, where: str) -> dict[str, tuple[Any, ...]]:
    if not isinstance(table, Mapping):
        raise invalid(where, "a table of lists", repr(table))
    for name, values in table.items():
        if not isinstance(values, list | tuple) or len(values) == 0:
            raise invalid(path(where, name), "a list of values", repr(values))
        for k, value in enumerate(values):
            if value in values[:k]:
                rule = "different values, each tried once"
                raise invalid(path(where, name), rule, f"{value!r} twice")
    return {name: tuple(values) for name, values in table.items()}


def _parameters(method: str, where: str = "") -> tuple[str, ...]:
    """Names of the hyper-parameters that a spec may set."""
    own = parameters_of(_class(method, where))
    if method == "HewControl":
        bounds = tuple(f.name for f in dataclasses.fields(ProblemBounds))
        own = (*bounds, *(name for name in own if name != "bounds"))
    if method in ("HewHom", "HewHet"):
        own = (*own, CURVATURE, *ONLINE)
    return tuple(name for name in own if name != "smoothness")


def _class(method: str, where: str) -> Any:
    """The class of a method; the code of one of the user's own is loaded."""
    if method in METHODS:
        return METHODS[method]
    return load(method, GROUP, path(where, "method"))


def _own_algorithm(
    method: str, values: Mapping[str, Any], smoothness: float, where: str
) -> Algorithm[Any]:
    """A rule of the user's own, given L where it asks for it by `smoothness`."""
    rule = make(_class(method, where), values, {"smoothness": smoothness}, where)
    with errors_naming({"algorithm": path(where, "method")}):
        check_algorithm("algorithm", rule)
    if getattr(type(rule), "__repr__", None) is object.__repr__:
        # A checkpoint knows its entry by this text, and the address of an object in
        # memory would be another one when the run goes on.
        wanted = "one that shows its hyper-parameters by `repr`, such as a dataclass"
        raise invalid(path(where, "method"), wanted, shown(rule))
    found: Algorithm[Any] = rule
    return found


def _algorithm(
    method: str, own: Mapping[str, Any], smoothness: float, where: str
) -> Algorithm[Any]:
    """The algorithm with its hyper-parameters and the smoothness of the data."""
    if is_own(method, GROUP):
        return _own_algorithm(method, own, smoothness, where)
    extra = (CURVATURE, *ONLINE)
    values: dict[str, Any] = {k: v for k, v in own.items() if k not in extra}
    if method == "HewControl":
        names = [f.name for f in dataclasses.fields(ProblemBounds)]
        limits = {name: values.pop(name) for name in names if name in values}
        limits["smoothness"] = smoothness
        values["bounds"] = from_table(ProblemBounds, limits, where)
    elif METHODS[method] in (HewHom, HewHet) and "kappa" in values:
        values |= _ground(values, smoothness)
    else:
        values["smoothness"] = smoothness
    found: Algorithm[Any] = from_table(METHODS[method], values, where)
    return _under_curvature(found, {k: own[k] for k in extra if k in own}, where)


def _ground(values: Mapping[str, Any], smoothness: float) -> dict[str, Any]:
    """ϑ/L: methods with κ are given no L; in specs it is the unit of steps for all."""
    theta = values.get("amplitude")
    if isinstance(theta, int | float) and not isinstance(theta, bool):
        return {"amplitude": theta / smoothness}
    return {}


def _paced(
    rule: Algorithm[Any],
    pace: Mapping[str, Any],
    own: Mapping[str, Any],
    smoothness: float,
    where: str,
) -> Algorithm[Any]:
    """The rule under the step sizes that `pace` names."""
    scale: Any = own.get("amplitude", own.get("step_scale"))
    if scale is None:
        rule_ = "left out of a method without an amplitude or a step scale"
        raise invalid(path(where, "pace"), rule_, pace.get("pace"))
    step = positive(path(where, "step"), scale) / smoothness
    with errors_naming({own: path(where, name) for name, own in PACE.items()}):
        return Paced(rule, step, **{PACE[name]: value for name, value in pace.items()})


def _under_curvature(
    rule: Algorithm[Any], given: Mapping[str, Any], where: str
) -> Algorithm[Any]:
    """The rule as it is, or with a curvature estimated on the way."""
    kind = given.get(CURVATURE, "given")
    if kind not in ("given", "online"):
        raise invalid(path(where, CURVATURE), "one of given, online", repr(kind))
    options = {name: given[name] for name in ONLINE if name in given}
    if kind == "online":
        return from_table(OnlineCurvature, {"rule": rule, **options}, where)
    for name, value in options.items():
        raise invalid(path(where, name), 'left out unless curvature = "online"', value)
    return rule
