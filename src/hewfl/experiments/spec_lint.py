"""Fields of a spec that the rest of the spec leaves without effect.

A field set to anything but its default that nothing reads is a mistake: whoever wrote
it believes that it did something. Fields at their default pass, as every spec that a
run leaves behind lists them. `tune` is not looked at where nothing is left to tune, so
that a `tuned.toml` can be run anew.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from hewfl.core.plugins import is_user_code
from hewfl.core.validation import invalid
from hewfl.data import CATALOGUE
from hewfl.data.partition import DIRICHLET_KINDS, GROUP, PER_CLIENT_KINDS
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.spec import Spec
from hewfl.experiments.spec_sections import MODELS, ProblemSpec

AUDITED = ("HewHom", "HewHet")
"""Methods with a pathwise certificate."""
OF_SOFTMAX = ("l2", "smoothness", "solve_optimum")
OF_ANY_MODEL = ("model", "factory", "options", "reference_steps")
OF_MODULES = tuple(
    field.name
    for field in dataclasses.fields(ProblemSpec)
    if field.name not in (*OF_SOFTMAX, *OF_ANY_MODEL)
)


def _has_average(method: MethodSpec) -> bool:
    offered = (
        method.parameters.get("average", "none"),
        *method.grid.get("average", ()),
    )
    return any(value != "none" for value in offered)


Rule = tuple[Callable[[Spec], bool], tuple[str, ...], str]

RULES: tuple[Rule, ...] = (
    (
        lambda s: s.data.name in CATALOGUE,
        ("data.label_column",),
        "a data set known by name has its labels",
    ),
    (
        lambda s: s.data.split == "published",
        ("data.test_fraction",),
        'data.split = "published" keeps the publisher\'s test part',
    ),
    (
        lambda s: s.clients.partition not in DIRICHLET_KINDS,
        ("clients.alpha", "clients.min_samples"),
        f"only clients.partition = {', '.join(DIRICHLET_KINDS)} have it",
    ),
    (
        lambda s: s.clients.partition not in PER_CLIENT_KINDS,
        ("clients.classes_per_client",),
        f"only clients.partition = {', '.join(PER_CLIENT_KINDS)} have it",
    ),
    (
        lambda s: not is_user_code(s.clients.partition, GROUP),
        ("clients.options",),
        "only a partition of your own has them",
    ),
    (
        lambda s: s.problem.model in MODELS and s.problem.factory is None,
        ("problem.options",),
        "only a model or a problem of your own has them",
    ),
    (
        lambda s: s.problem.factory is not None,
        ("problem.l2", "problem.learning_rate"),
        "a problem of your own does not use it",
    ),
    (
        lambda s: not s.problem.is_module,
        ("data.validation_fraction", *(f"problem.{name}" for name in OF_MODULES)),
        'problem.model = "softmax" does not use it',
    ),
    (
        lambda s: s.problem.is_module,
        ("data.bias", *(f"problem.{name}" for name in OF_SOFTMAX)),
        'only problem.model = "softmax" uses it',
    ),
    (
        lambda s: s.problem.is_module and s.problem.model in MODELS,
        ("data.standardise",),
        f"problem.model = {', '.join(MODELS[1:])} do not use it",
    ),
    (
        lambda s: not any(map(_is_audited, s.methods)),
        ("audit_every",),
        f"of the methods only {' and '.join(AUDITED)} without kappa have a "
        "certificate to audit",
    ),
    (
        lambda s: (
            s.evaluate_model == "averaged" and not any(map(_has_average, s.methods))
        ),
        ("evaluate_model",),
        "no method has `average`",
    ),
    (
        lambda s: not s.is_tuned and not s.tune.screen_rounds,
        ("tune.screen_seeds", "tune.screen_top_k"),
        "there is no first trial without tune.screen_rounds",
    ),
    (
        lambda s: not s.is_tuned and not s.tune.tie_tolerance,
        ("tune.tie_metrics",),
        "nothing counts as equal without tune.tie_tolerance",
    ),
)


def refuse_unused_fields(spec: Spec) -> None:
    """Require that every field that was set has an effect."""
    for holds, fields, why in RULES:
        if not holds(spec):
            continue
        for field in fields:
            value, default = _looked_up(spec, field)
            if value != default:
                raise invalid(field, f"left out: {why}", repr(value))


def _looked_up(spec: Spec, field: str) -> tuple[Any, Any]:
    """A field's value and its default."""
    *section, name = field.split(".")
    record: Any = getattr(spec, section[0]) if section else spec
    (found,) = (f for f in dataclasses.fields(record) if f.name == name)
    if found.default_factory is not dataclasses.MISSING:
        return getattr(record, name), found.default_factory()
    return getattr(record, name), found.default


def _is_audited(method: MethodSpec) -> bool:
    known = {*method.parameters, *method.grid}
    return method.method in AUDITED and "kappa" not in known
