"""The paper's experiments as specs."""

import tomllib
from typing import Any

import numpy as np
from reproduce.specs import (
    DATA,
    REGIMES,
    cnn_equal_spec,
    cnn_spec,
    extended_spec,
    head_equal_spec,
    head_spec,
    main_methods,
    main_spec,
    quick,
    wide_spec,
)

from hewfl.aggregators import NormalizedMean
from hewfl.cli.demo import careless_spec, hostile_spec
from hewfl.core.round import Cohort
from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.spec import spec_from_table, template, write_spec
from hewfl.experiments.spec_lint import refuse_unused_fields
from tests.experiments.runs import small


def test_the_paper_s_grid() -> None:
    for data in DATA:
        for regime in REGIMES:
            spec = main_spec(data, regime)
            assert (spec.rounds, len(spec.seeds), spec.clients.n) == (90, 7, 20)
            assert spec.clients.batch_size == 32
            assert (spec.tune.rounds, spec.tune.seeds) == (20, (0, 1, 2))
            assert quick(spec).data.subsample == 4000
    by_label = {m.label: m for m in main_methods()}
    assert len(by_label["HEW (Alg. 3)"].candidates()) == 25
    assert len(by_label["FedProx"].candidates()) == 8


def test_rivals_are_given_what_hew_has() -> None:
    count = {regime: len(main_methods(regime)) for regime in REGIMES}
    assert count == {
        "hom-equal": 11,
        "hom-random": 11,
        "het-random": 14,
        "het-equal": 12,
    }
    by_label: dict[str, Any] = {m.label: m.entry(2.0).algorithm for m in het_random()}
    fixed = by_label["HEW-Fixed (uniform, corrected)"]
    corrected = by_label["HEW (Alg. 2)"].demands
    assert fixed.demands.traffic == corrected.traffic  # variates, same start
    assert (fixed.demands.variates, fixed.demands.gradients) == (True, True)
    nova: Any = by_label["FedNova (uniform)"]
    assert nova.aggregator == NormalizedMean(by="equal")
    one, many = (by_label[f"minibatch SGD ({k})"] for k in ("one step", "H steps"))
    two = np.arange(2)
    cohort = Cohort(two, np.array([1, 4]), two + 1, two + 1, 2)
    steps = {rule: rule.plan(cohort, None).step_sizes for rule in (one, many)}
    np.testing.assert_allclose(steps[one], steps[many] / [1, 4])


def het_random() -> list[MethodSpec]:
    """The methods of one panel, each at the first point of its lists."""
    return [method.candidates()[0] for method in main_methods("het-random")]


def test_the_lists_beyond_the_paper_hold_its_own() -> None:
    wide, extended = (
        wide_spec("mnist", "het-equal"),
        extended_spec("mnist", "het-equal"),
    )
    for method, own in zip(wide.methods, main_methods("het-equal"), strict=True):
        for name, values in own.grid.items():
            assert min(method.grid[name]) < min(values)
            assert max(method.grid[name]) > max(values)
    assert (wide.tune.local_search, wide.evaluate_model) == (True, "iterate")
    assert all("momentum" not in method.grid for method in wide.methods)
    assert (extended.tune.local_search, extended.evaluate_model) == (True, "averaged")
    for method in extended.methods:
        assert 0.0 in method.grid["momentum"]
        assert method.parameters["average"] == "ema"


def test_every_spec_that_hewfl_makes_passes_and_loads_again() -> None:
    specs = [careless_spec(), hostile_spec(), cnn_spec(), head_spec(), small()]
    specs += [cnn_equal_spec(), head_equal_spec()]
    specs.append(spec_from_table(tomllib.loads(template())))
    specs += [main_spec("mnist", regime) for regime in REGIMES]
    for make in (main_spec, wide_spec, extended_spec):
        specs.append(quick(make("covertype", "het-random")))
    specs.append(extended_spec("covertype", "het-random"))
    for spec in specs:
        again = spec_from_table(tomllib.loads(write_spec(spec)))
        assert again == spec
        refuse_unused_fields(again)
