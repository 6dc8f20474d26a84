"""Convolutions by matrix products against torch's own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.problems.module.test_stepper import (
    ROUNDING,
    anchors_of,
    close,
    plans_of,
    problem_of,
    roster_of,
    samples_of,
)

from hewfl.problems.module import Training
from hewfl.problems.module.convolution import ProductConv2d, with_products

pytestmark = pytest.mark.torch
nn = torch.nn


@pytest.mark.parametrize("padding", [0, 1, (2, 1)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_layer_and_its_derivatives(padding: Any, bias: bool) -> None:
    torch.manual_seed(0)
    own = nn.Conv2d(3, 5, (3, 2), padding=padding, bias=bias).double()
    x = torch.randn(4, 3, 7, 6, dtype=torch.float64, requires_grad=True)
    product = ProductConv2d(own)
    expected, found = own(x), product(x)
    torch.testing.assert_close(found, expected)
    leaves = [x, *own.parameters()]
    pairs = [torch.autograd.grad((y**3).sum(), leaves) for y in (expected, found)]
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)


def test_names_stay_and_other_layers_are_left() -> None:
    strided = nn.Conv2d(2, 2, 3, stride=2)
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(strided), nn.ReLU())
    names = list(module.state_dict())
    with_products(module)
    assert list(module.state_dict()) == names
    assert isinstance(module[0], ProductConv2d)
    assert module[1][0] is strided


@pytest.mark.parametrize("route", ["stacked", "loop"])
def test_branches_are_the_same(route: Any) -> None:
    problem = problem_of(Training(weight_decay=0.1, clip=0.5, route=route))
    training = replace(problem.training, convolutions="products")
    roster = roster_of(problem)
    plans, samples = plans_of(problem, roster), samples_of(problem, roster)
    given = anchors_of(problem, 4), roster, plans, samples
    found = replace(problem, training=training).branches(*given)
    assert close(found, problem.branches(*given), ROUNDING)
    assert np.abs(found).max() > 0
