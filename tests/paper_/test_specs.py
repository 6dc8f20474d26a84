"""The paper's experiments as specs."""

import tomllib

from hewfl.experiments.spec import spec_from_table, write_spec
from hewfl.experiments.template import template
from hewfl.experiments.unused import refuse_unused_fields
from hewfl.paper.demo import demo_spec
from hewfl.paper.specs import (
    DATA,
    REGIMES,
    extended_spec,
    main_methods,
    main_spec,
    quick,
)
from hewfl.paper.specs_deep import (
    cnn_equal_spec,
    cnn_spec,
    head_equal_spec,
    head_spec,
)
from tests.experiments.runs import small


def test_the_paper_s_grid() -> None:
    for data in DATA:
        for regime in REGIMES:
            spec = main_spec(data, regime)
            assert (spec.rounds, len(spec.seeds), spec.clients.n) == (90, 7, 20)
            assert spec.clients.batch_size == 32
            assert (spec.tune.rounds, spec.tune.seeds) == (20, (0, 1, 2))
            wide = extended_spec(data, regime)
            assert len(wide.methods) == 4 * 16
            assert quick(spec).data.subsample == 4000
    by_label = {m.label: m for m in main_methods()}
    assert len(by_label["HEW (Alg. 3)"].candidates()) == 25
    assert len(by_label["FedProx"].candidates()) == 8


def test_every_spec_that_hewfl_makes_passes_and_loads_again() -> None:
    specs = [demo_spec(), cnn_spec(), head_spec(), small()]
    specs += [cnn_equal_spec(), head_equal_spec()]
    specs.append(spec_from_table(tomllib.loads(template())))
    for data in DATA:
        for regime in REGIMES:
            for spec in (main_spec(data, regime), extended_spec(data, regime)):
                specs += [spec, quick(spec)]
    for spec in specs:
        again = spec_from_table(tomllib.loads(write_spec(spec)))
        assert again == spec
        refuse_unused_fields(again)
