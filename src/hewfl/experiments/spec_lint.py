"""Fields of a spec without effect: a field that would be ignored raises an error.

Fields at their default pass, as the spec in a run folder lists all of them. `tune` is
not checked where no method has a grid, so that a `tuned.toml` can be run again.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from hewfl.core.plugins import is_user_code
from hewfl.core.validation import invalid
from hewfl.data import CATALOGUE
from hewfl.data.partitions import DIRICHLET_KINDS, GROUP, PER_CLIENT_KINDS
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.spec import Spec
from hewfl.experiments.spec_sections import ZOO, ProblemSpec

AUDITED = ("HewHom", "HewHet")
"""Methods with a pathwise certificate."""
OF_SOFTMAX = ("l2", "smoothness", "solve_optimum")
OF_ANY_MODEL = ("model", "factory", "options", "reference_steps")
FIXED = ("medium_cnn", "classifier_head")
"""The paper's modules, each for data of one shape."""
OF_MODULES = tuple(
    field.name
    for field in dataclasses.fields(ProblemSpec)
    if field.name not in (*OF_SOFTMAX, *OF_ANY_MODEL)
)


def _has_average(method: MethodSpec) -> bool:
    values = (method.parameters.get("average"), *method.grid.get("average", ()))
    return any(value not in (None, "none") for value in values)


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
        lambda s: s.problem.model in (*FIXED, "softmax") and s.problem.factory is None,
        ("problem.options",),
        f"only {', '.join(ZOO)}, and a model or a problem of your own, have them",
    ),
    (
        lambda s: s.problem.model in ZOO,
        ("problem.dropout",),
        f"only {' and '.join(FIXED)} have it",
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
        lambda s: s.problem.model in FIXED,
        ("data.standardise",),
        f"problem.model = {', '.join(FIXED)} do not use it",
    ),
    (
        lambda s: not any(m.method in AUDITED for m in s.methods),
        ("audit_every",),
        f"only {' and '.join(AUDITED)} have a certificate to audit",
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
            value, default = _value_and_default(spec, field)
            if value != default:
                raise invalid(field, f"left out: {why}", repr(value))


def _value_and_default(spec: Spec, field: str) -> tuple[Any, Any]:
    *section, name = field.split(".")
    record: Any = getattr(spec, section[0]) if section else spec
    (known,) = (f for f in dataclasses.fields(record) if f.name == name)
    if known.default_factory is not dataclasses.MISSING:
        return getattr(record, name), known.default_factory()
    return getattr(record, name), known.default
