"""A module's parameters as one vector: order, frozen and tied ones, copies."""

import numpy as np
import pytest
import torch
from tests.problems.module.small import mlp, nn, points, small

from hewfl import InvalidInputError
from hewfl.problems.module.network import flatten, parameter_layout, unflatten

pytestmark = pytest.mark.torch


def test_vectors_and_state_dicts() -> None:
    problem = small()
    module = problem.module
    expected = nn.utils.parameters_to_vector(module.parameters()).detach()
    assert (problem.start == expected.double().numpy()).all()
    layout = parameter_layout(module)
    assert torch.equal(flatten(layout, module.state_dict()), expected)
    assert torch.equal(flatten(layout, unflatten(layout, expected)), expected)
    x = points(problem, 1)[0]
    other = mlp(4, 5, 3)
    other.load_state_dict(problem.state_dict(x))
    loaded = nn.utils.parameters_to_vector(other.parameters()).detach().numpy()
    assert (loaded == x.astype(np.float32)).all()
    with pytest.raises(InvalidInputError, match=r"`vector` must be of shape \(43,\)"):
        problem.state_dict(x[1:])


def test_frozen_parameters_are_constants_and_tied_ones_count_once() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    module[0].requires_grad_(requires_grad=False)
    module[2].bias.requires_grad_(requires_grad=False)
    module[1].bias = module[0].bias
    problem = small(module=module)
    assert parameter_layout(module).names == ("1.weight", "2.weight")
    assert problem.d == 16 + 12
    assert problem.full_gradients(problem.start[None]).shape == (1, 3, 28)
    state = problem.state_dict(np.zeros(28))
    assert torch.equal(state["0.weight"], module[0].weight)
    assert not state["1.weight"].any()
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    tied[1].weight = tied[0].weight
    assert small(module=tied).d == 16 + 4 + 4 + 15


def test_the_module_is_copied() -> None:
    module = mlp(4, 5, 3)
    problem = small(module=module)
    before = problem.start.copy()
    with torch.no_grad():
        module[0].weight.zero_()
    x = points(problem, 1).astype(np.float64)
    problem.client_losses(x)
    assert (problem.start == before).all()
    assert problem.module[0].weight.any()
