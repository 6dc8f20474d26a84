"""Methods of an experiment: by name, with hyper-parameters, or grids of them.

A [[methods]] table has four kinds of fields:

    method, label, grid     the name in the registry, the name in tables, lists to tune
    certificate             `certify_f` and `refuse_above`: fields of `Certified`, which
                            then wraps the aggregator of any method that has one
    local work              fields of `LocalSGD`; `step_scale` and `amplitude` give the
                            learning rate and the total step in units of 1/L
    hyper-parameters        of the aggregator, the preset or the paper's algorithm
    server step             fields of `ServerStep`
"""

import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

from hewfl.aggregators import (
    RENAMED_OPTIONS,
    YARDSTICKS,
    Aggregator,
    Certified,
    assemble,
    find_parts,
)
from hewfl.algorithms.online_curvature import OnlineCurvature
from hewfl.core.algorithm import Algorithm
from hewfl.core.plugins import (
    check_name,
    check_repr,
    is_user_code,
    load,
    make,
    parameters_of,
    short_name,
)
from hewfl.core.records import ProblemBounds
from hewfl.core.toml_records import check_names, from_table, path, rename_errors
from hewfl.core.validation import format_value, invalid, positive
from hewfl.errors import InvalidInputError
from hewfl.methods.method import LocalSGD, Method
from hewfl.methods.registry import (
    ALGORITHMS,
    METHODS,
    OLD_NAMES,
    PRESETS,
    is_registered,
)
from hewfl.server.server_step import ServerStep
from hewfl.server.state import Entry, check_algorithm

STEP, SHARE = "server_learning_rate", "average_share"
SERVER_STEP = (
    *(f.name if f.name != "step" else STEP for f in dataclasses.fields(ServerStep)),
    SHARE,
)
"""Fields of the server step, for any method: those of `ServerStep`, whose `step` is
called `server_learning_rate`, and `average_share`, the last part of the rounds that a
tail average is taken over."""
SCALED = {"step_scale": "learning_rate", "amplitude": "total"}
"""Step sizes in units of 1/L, and the fields of `LocalSGD` that they give."""
LOCAL = (*(f.name for f in dataclasses.fields(LocalSGD)), *SCALED)
"""Fields of local work, for every method but the paper's algorithms."""
CERTIFICATE = ("certify_f", "refuse_above")
"""Fields of the certificate of robustness, for every method but the paper's."""
CURVATURE = "curvature"
"""For HewHom and HewHet: "given", Λ = ratio · L, or "online", Λ = ratio · estimate."""
ONLINE = ("curvature_memory", "curvature_floor")
"""Fields of the online estimate."""
FIXED = {
    "Scaffold": ("variates",),
    "MinibatchSGD": ("at_anchor",),
    "FedAdam": ("adapt",),
    "FedYogi": ("adapt",),
    "FedAdagrad": ("adapt",),
}
"""Fields of local work and of the server step that a preset sets itself."""
OLD_FIELDS = {old: f"`{new}`" for old, new in RENAMED_OPTIONS.items()} | {
    "pace": "`step_scale` for plain steps, `amplitude` for a total step",
    "pace_unit": "`unit`",
    "measure": "`line_search_samples`",
    "measure_at": "`line_search_points`",
    "pace_reference": "`problem.reference_steps`",
    "rate_scale": "`step_scale`",
    "proximal": "`prox`",
    "outer_step": f"`{STEP}`",
    "corrected": '`variates`, which is "zero" or "gradient"',
}
"""Fields of earlier versions, and what they are called now."""
_RATE, _SERVER_RATE = ("learning_rate", "amplitude"), ("server_learning_rate",)
SYNONYMS = {
    **dict.fromkeys(("lr", "eta_l", "client_lr", "local_lr", "step_size"), _RATE),
    **dict.fromkeys(("server_lr", "global_lr", "eta_g", "outer_lr"), _SERVER_RATE),
    "eta": (*_RATE[:1], *_SERVER_RATE),
    "learning_rate": _RATE[1:],
    **dict.fromkeys(("server_momentum", "beta", "beta1", "beta_1"), ("momentum",)),
    "beta_2": ("beta2",),
    **dict.fromkeys(("eps", "epsilon"), ("tau",)),
    **dict.fromkeys(("mu", "prox_mu", "proximal_mu"), ("prox",)),
}
"""Fields as other libraries call them, and ours of that meaning, the likeliest first:
one of them that the method has is the hint."""
HINTS = {
    "server_learning_rate": "about the change of one entry in a round, such as 0.01"
}
"""What a field that must be given is like."""
EXACT_FIELDS = ("kappa", "cross_fit", "by")
"""Fields of the aggregator "exact" that HewHom and HewHet had in earlier versions."""

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
        method: a name of the registry, such as "HewHom", "FedAvg", "trust" or
            "clip+nnm+trimmed-mean" (pre-aggregations and a rule); one of the user's own
            is "my_rules:Krum", the name of an entry point, or the path of a file, a
            colon and a name in it (`hewfl.core.plugins`).
        label: what tables and figures call it; the method's name by default.
        parameters: fields of local work, hyper-parameters and fields of the server
            step. Exactly one of `learning_rate`, `step_scale` (times 1/L), `total` and
            `amplitude` (a total step times 1/L) gives the step sizes. HewHom, HewHet
            and HewControl take the smoothness from the data; HewHom and HewHet take
            `curvature = "online"` with `curvature_memory` and `curvature_floor`.
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

    @property
    def is_yardstick(self) -> bool:
        """Whether it is a method of hewfl that knows the truth, as no server does."""
        knows_state = self.parameters.get("source") == "oracle"
        return self.method in YARDSTICKS or (
            self.method == "HewControl" and knows_state
        )

    def entry(
        self, smoothness: float, reference_steps: float = 1.0, rounds: int = 1
    ) -> Entry:
        """The entry of a comparison that it stands for.

        Args:
            smoothness: L, or one over a learning rate.
            reference_steps: h, by which an amplitude is multiplied: a total over the
                steps of a branch is about h times a learning rate.
            rounds: T, of which `average_share` is a share.

        Returns:
            The method with its hyper-parameters, under its server step.

        Raises:
            InvalidInputError: a hyper-parameter is missing or out of range.
        """
        where, names = f"methods.{self.label}", _parameters(self.method)
        server = {
            k: v
            for k, v in self.parameters.items()
            if k in SERVER_STEP and k not in names
        }
        wrapped = {
            k: v
            for k, v in self.parameters.items()
            if k in CERTIFICATE and k not in names
        }
        rest = {
            k: v
            for k, v in self.parameters.items()
            if k not in server and k not in wrapped
        }
        algorithm = _algorithm(self.method, rest, smoothness, reference_steps, where)
        step = _server_step(algorithm, server, rounds, where)
        if wrapped:
            algorithm = _certified(algorithm, wrapped, where)
        if isinstance(algorithm, Method):
            algorithm = replace(algorithm, server_step=step, name=self.label)
        return Entry(algorithm, step, self.label)


def _certified(algorithm: Any, given: Mapping[str, Any], where: str) -> Method:
    """The method with the certificate of robustness around its aggregator."""
    limit = given.get("refuse_above", "none")
    if not isinstance(algorithm, Method):
        rule = "left out for a method without an aggregator"
        raise invalid(path(where, next(iter(given))), rule, algorithm.name)
    if "certify_f" not in given:
        rule = "left out without `certify_f`, the clients that may be faulty"
        raise invalid(path(where, "refuse_above"), rule, limit)
    fields = {
        "f": given["certify_f"],
        "refuse_above": None
        if limit == "none"
        else _number(limit, path(where, "refuse_above")),
    }
    with rename_errors({"f": path(where, "certify_f")}):
        return replace(algorithm, aggregator=Certified(algorithm.aggregator, **fields))


def _server_step(
    algorithm: Any, given: dict[str, Any], rounds: int, where: str
) -> ServerStep:
    """The server step: that of a preset, changed by the fields of the table.

    The word "none" stands for no `adapt` and no `average`, as lists of a grid need it.
    """
    preset: ServerStep | None = getattr(algorithm, "server_step", None)
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
    with rename_errors({f"{where}.step": path(where, STEP)}):
        step = from_table(ServerStep, given, where)
    if preset is None or preset == ServerStep():
        return step
    with rename_errors({name: path(where, name) for name in given}):
        return replace(preset, **{name: getattr(step, name) for name in given})


def method_from_table(table: Any, where: str) -> MethodSpec:
    """Make a method from one [[methods]] table."""
    if not isinstance(table, Mapping):
        raise invalid(where, "a table", repr(table))
    method: Any = table.get("method")
    if method is None:
        raise invalid(path(where, "method"), 'given, such as "FedAvg"', "nothing")
    check_old_name(method, path(where, "method"))
    check_method_name(method, path(where, "method"))
    label = text_field(table.get("label", short_name(method)), path(where, "label"))
    is_ours = is_registered(method)
    known = _known(method) if is_ours else ()
    if is_ours:
        _check_fields(method, table, ("method", "label", "grid", *known), where)
    grid = _grid(table.get("grid", {}), path(where, "grid"))
    if is_ours:
        _check_fields(method, grid, known, path(where, "grid"))
    given = {k: v for k, v in table.items() if k not in ("method", "label", "grid")}
    for name in set(given) & set(grid):
        rule = "either given or in the grid, not both"
        raise invalid(path(where, name), rule, given[name])
    spec = MethodSpec(method, label, given, grid)
    _check_nesterov(spec, where)
    if is_ours:
        check_method(spec, where)
    return spec


def check_method(method: MethodSpec, where: str) -> None:
    """Require fields that the method has, with values that it takes.

    The code of a method of the user's own is loaded for that.
    """
    known = _known(method.method, where)
    _check_fields(method.method, method.parameters, known, where)
    _check_fields(method.method, method.grid, known, path(where, "grid"))
    for candidate in _samples(method):
        candidate.entry(1.0)  # values of every candidate are checked now, not in a run


def check_method_name(method: Any, where: str) -> None:
    """Require a name of the registry, or the form of one of user code."""
    if isinstance(method, str) and "+" in method and ":" not in method:
        with rename_errors({"aggregator": where}):
            find_parts(method)
    elif not is_registered(method):
        check_name(method, tuple(METHODS), GROUP, where)


def check_old_name(method: Any, where: str) -> None:
    """Refuse an old name of a method; the error gives the new one."""
    if not isinstance(method, str) or is_registered(method):
        return
    ours = {_letters(name): name for name in (*ALGORITHMS, *PRESETS)}
    others = {_letters(name): name for name in METHODS}
    if is_user_code(method, GROUP):
        return
    if _letters(method) in ours:
        text = f"is spelled {ours[_letters(method)]}"
    elif method in OLD_NAMES:
        text = f"is now called {OLD_NAMES[method]}"
    elif _letters(method) in others:
        text = f"is spelled {others[_letters(method)]}"
    else:
        return
    raise InvalidInputError(f"`{where}`: {method!r} {text}")


def _letters(name: str) -> str:
    """A name without what spellings differ in: case, hyphens, underscores, spaces."""
    return re.sub(r"[-_ ]", "", name).lower()


def _check_fields(
    method: str, given: Mapping[str, Any], known: tuple[str, ...], where: str
) -> None:
    """Require known fields; the error for an old name gives the new one."""
    for name in given:
        place = f"`{path(where, name)}`"
        if name in FIXED.get(method, ()):
            rule = f"left out: {method} sets it itself"
            raise invalid(path(where, name), rule, repr(given[name]))
        if name in known:
            continue
        if name == "ground":
            text = 'use `amplitude` for ground = "equal", `step_scale` otherwise'
            raise InvalidInputError(f"{place} no longer exists: {text}")
        if name in EXACT_FIELDS and method in ("HewHom", "HewHet"):
            text = f'use method = "exact" with `{name}`'
            raise InvalidInputError(f"{place} is no field of {method}: {text}")
        if name in OLD_FIELDS:
            raise InvalidInputError(f"{place} is now called {OLD_FIELDS[name]}")
        meant = [f"`{word}`" for word in SYNONYMS.get(name, ()) if word in known]
        if meant:
            words = " or ".join(meant if name == "eta" else meant[:1])
            raise InvalidInputError(f"{place} is no field of {method}: use {words}")
    check_names(given, known, where)


def _known(method: str, where: str = "") -> tuple[str, ...]:
    """Every field that the table of a method may have."""
    local = () if method in ALGORITHMS else (*LOCAL, *CERTIFICATE)
    names = (*_parameters(method, where), *local, *SERVER_STEP)
    fixed = FIXED.get(method, ())
    return tuple(name for name in dict.fromkeys(names) if name not in fixed)


def _check_nesterov(method: MethodSpec, where: str) -> None:
    """Require a momentum for a step that looks ahead along it.

    It is given here, in the grid, or by the preset.
    """
    defaults: dict[str, Any] = {}
    if method.method in PRESETS:
        preset = inspect.signature(PRESETS[method.method]).parameters
        defaults = {name: p.default for name, p in preset.items()}

    def offered(name: str) -> tuple[Any, ...]:
        given = method.parameters.get(name, defaults.get(name))
        return method.grid.get(name, (given,))

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
    """Names of the hyper-parameters that are the method's own."""
    if method in PRESETS:
        known = inspect.signature(PRESETS[method]).parameters.values()
        keyword = [p.name for p in known if p.kind is p.KEYWORD_ONLY]
        return tuple(keyword)
    if method not in ALGORITHMS and is_registered(method):
        fields = (
            name
            for maker, fixed in find_parts(method)
            for name in parameters_of(maker)
            if name not in fixed
        )
        return tuple(dict.fromkeys(fields))
    names = parameters_of(_class(method, where))
    if method == "HewControl":
        bounds = tuple(f.name for f in dataclasses.fields(ProblemBounds))
        names = (*bounds, *(name for name in names if name != "bounds"))
    if method in ("HewHom", "HewHet"):
        names = (*names, CURVATURE, *ONLINE)
    return tuple(name for name in names if name != "smoothness")


def _class(method: str, where: str) -> Any:
    """The class of a method; the code of one of the user's own is loaded."""
    if method in METHODS:
        return METHODS[method]
    return load(method, GROUP, path(where, "method"))


def _algorithm(
    method: str,
    given: Mapping[str, Any],
    smoothness: float,
    reference_steps: float,
    where: str,
) -> Algorithm[Any]:
    """The method with its hyper-parameters, in the units of the data."""
    if method in ALGORITHMS:
        return _paper_algorithm(method, given, smoothness, reference_steps, where)
    names = _parameters(method, where)
    options = {k: v for k, v in given.items() if k in names}
    local = {k: v for k, v in given.items() if k not in names}
    if is_user_code(method, GROUP):
        return _own_method(method, options, local, smoothness, reference_steps, where)
    work = _local_fields(local, smoothness, reference_steps, where)
    if method in PRESETS:
        with rename_errors({name: path(where, name) for name in (*options, *work)}):
            preset = PRESETS[method]
            required = [
                p.name
                for p in inspect.signature(preset).parameters.values()
                if p.kind is p.KEYWORD_ONLY and p.default is p.empty
            ]
            for name in required:
                if name not in options:
                    wanted = f"given: {HINTS[name]}" if name in HINTS else "given"
                    raise invalid(path(where, name), wanted, "nothing")
            numbers = {k: float(v) for k, v in options.items() if type(v) is int}
            return preset(**options | numbers, **work)
    rule = assemble(method, options, lambda cls, own: from_table(cls, own, where))
    return Method(from_table(LocalSGD, work, where), rule)


def _number(value: Any, where: str) -> float:
    """A positive number of a spec, which may be written without a point."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(where, "a number", repr(value))
    return float(positive(where, float(value)))


def _local_fields(
    given: Mapping[str, Any], smoothness: float, reference_steps: float, where: str
) -> dict[str, Any]:
    """Fields of `LocalSGD`, with step sizes in the units of the problem."""
    sizes = [
        k for k in ("learning_rate", "step_scale", "total", "amplitude") if k in given
    ]
    if len(sizes) != 1:
        rule = "exactly one of learning_rate, step_scale, total, amplitude"
        raise invalid(where, f"given {rule}", " and ".join(sizes) or "none of them")
    fields = {k: v for k, v in given.items() if k not in SCALED}
    for name, field_name in SCALED.items():
        if name in given:
            value = _number(given[name], path(where, name)) / smoothness
            steps = reference_steps if name == "amplitude" else 1.0
            fields[field_name] = value * steps
    return fields


def _paper_algorithm(
    method: str,
    given: Mapping[str, Any],
    smoothness: float,
    reference_steps: float,
    where: str,
) -> Algorithm[Any]:
    """Algorithm 1, 2 or 3 with the smoothness of the data."""
    online = (CURVATURE, *ONLINE)
    values: dict[str, Any] = {k: v for k, v in given.items() if k not in online}
    L = smoothness / reference_steps
    if method == "HewControl":
        names = [f.name for f in dataclasses.fields(ProblemBounds)]
        limits = {name: values.pop(name) for name in names if name in values}
        limits["smoothness"] = L
        values["bounds"] = from_table(ProblemBounds, limits, where)
    else:
        values["smoothness"] = L
    rule: Algorithm[Any] = from_table(ALGORITHMS[method], values, where)
    kind = given.get(CURVATURE, "given")
    if kind not in ("given", "online"):
        raise invalid(path(where, CURVATURE), "one of given, online", repr(kind))
    options = {name: given[name] for name in ONLINE if name in given}
    if kind == "online":
        return from_table(OnlineCurvature, {"rule": rule, **options}, where)
    for name, value in options.items():
        raise invalid(path(where, name), 'left out unless curvature = "online"', value)
    return rule


def _own_method(
    method: str,
    options: Mapping[str, Any],
    local: Mapping[str, Any],
    smoothness: float,
    reference_steps: float,
    where: str,
) -> Algorithm[Any]:
    """A method or an aggregator of the user's own.

    It is given L where it asks for it by `smoothness`. An aggregator is given local
    work.
    """
    rule: Any = make(_class(method, where), options, {"smoothness": smoothness}, where)
    if isinstance(rule, Aggregator):
        work = _local_fields(local, smoothness, reference_steps, where)
        rule = Method(from_table(LocalSGD, work, where), rule)
    else:
        with rename_errors({"algorithm": path(where, "method")}):
            check_algorithm("algorithm", rule)
        for name, value in local.items():
            text = "left out: the method plans the local work itself"
            raise invalid(path(where, name), text, value)
    aggregator = rule.aggregator if isinstance(rule, Method) else rule
    if getattr(type(aggregator), "decide", None) is Aggregator.decide:
        got = f"{format_value(aggregator)}, which has no `decide`"
        raise invalid(path(where, "method"), "an aggregator with `decide`", got)
    check_repr(aggregator, path(where, "method"))
    algorithm: Algorithm[Any] = rule
    return algorithm
