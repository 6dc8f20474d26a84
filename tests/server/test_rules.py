"""Rules by name, and what they ask for."""

import numpy as np
import pytest

from hewfl import (
    HewFixed,
    HewHet,
    HewHom,
    InvalidInputError,
    LocalSGD,
    Method,
    UniformLocalSGD,
)
from hewfl.aggregators import FedAWARE
from hewfl.methods.registry import RULES, reads, rule_of


@pytest.mark.parametrize("name", RULES)
def test_only_fednova_asks_for_steps_and_nobody_for_step_sizes(name: str) -> None:
    steps, sizes, by_entry = reads(rule_of(name))
    assert steps == (name == "fednova")
    assert not sizes
    assert by_entry == (name in ("median", "trimmed-mean", "centred-clipping"))


def test_exact_weights_from_gradients_ask_for_both() -> None:
    assert reads(HewHom(1.0, 1.0)) == (True, True, False)
    assert rule_of(UniformLocalSGD(1.0)).name == "Uniform-LocalSGD"


@pytest.mark.parametrize(
    "method",
    [
        HewHet(1.0, 1.0),
        Method(LocalSGD(1.0), FedAWARE()),
        HewFixed(total=1.0, variance=tuple(np.ones(2))),
    ],
)
def test_methods_that_know_clients_by_name_are_refused(method: object) -> None:
    with pytest.raises(InvalidInputError, match="knows no client by name"):
        rule_of(method)  # type: ignore[arg-type]  # they are algorithms of some state
