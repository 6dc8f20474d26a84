"""A module as a function of one vector: layout of parameters, keyed dropout."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.problems.module.small import mlp, nn, points, small

from hewfl import InvalidInputError
from hewfl.problems.module.network import (
    DropoutKey,
    KeyedDropout,
    batch_keys,
    flatten,
    parameter_layout,
    unflatten,
    with_keyed_dropout,
)

pytestmark = pytest.mark.torch
Array = NDArray[Any]


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


SIGMAS = 5.0
"""A mean over independent coins leaves this many of its deviations once in 10⁶."""


def mask(
    key: int, shape: tuple[int, ...], drop: float = 0.3, calls: int = 1, **given: Any
) -> Array:
    """What ones become at the last of some calls in one pass."""
    held = DropoutKey()
    layer = KeyedDropout(drop, held, channels=given.get("channels", False))
    with held.set_to(torch.tensor(key)):
        outputs = [layer(torch.ones(shape)) for _ in range(calls)]
    return np.asarray(outputs[-1])


def words(key: int, count: int, call: int) -> NDArray[np.uint32]:
    """The hash as its docstring has it, in unsigned arithmetic."""
    with np.errstate(over="ignore"):
        low = np.uint32((key + call * 0x85EBCA6B) & 0xFFFFFFFF)
        high = np.uint32((key >> 32) & 0xFFFFFFFF)
        z = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B1) + low
        z = (z ^ (z >> np.uint32(16))) * np.uint32(0x7FEB352D)
        z = ((z ^ (z >> np.uint32(15))) + high) * np.uint32(0x846CA68B)
    return np.asarray(z ^ np.uint32(2**31))


@pytest.mark.parametrize("key", [0, 5, -1, 2**62 + 12345, -(2**60) - 7])
def test_masks_are_the_hash_against_a_threshold(key: int) -> None:
    factors = mask(key, (40, 25), calls=3)
    kept = words(key, 1000, call=2) >= 0.3 * 2**32
    assert (factors.ravel() == np.where(kept, np.float32(1 / 0.7), 0)).all()


def test_every_entry_is_dropped_with_its_probability() -> None:
    """Entries, neighbours, keys and layers: means and products as of fair coins."""
    drop, keys, size = 0.3, 400, 500
    drawn = batch_keys(np.arange(keys)[:, None], np.ones(keys, dtype=int))
    held = DropoutKey()
    layer = KeyedDropout(drop, held, channels=False)

    def two_layers(key: Any) -> Any:
        with held.set_to(key):
            return layer(torch.ones(size)) == 0, layer(torch.ones(size)) == 0

    masks = torch.func.vmap(two_layers)(torch.tensor(drawn))
    first, second = (np.asarray(dropped) for dropped in masks)
    assert (first[7] == (mask(int(drawn[7]), (size,), drop) == 0)).all()

    def fair(coins: Array, p: float) -> bool:
        deviation = np.sqrt(p * (1 - p) / coins.size)
        return bool(abs(coins.mean() - p) <= SIGMAS * deviation)

    assert fair(first, drop)
    for pair in (
        first[:, 1:] & first[:, :-1],
        first[1:] & first[:-1],
        first & second,
    ):
        assert fair(pair, drop**2)
    spread = first.mean(axis=0).std() / np.sqrt(drop * (1 - drop) / keys)
    assert 0.9 < spread < 1.1


def test_keys_are_the_samples_in_their_order() -> None:
    rng = np.random.default_rng(0)
    samples, counts = rng.integers(0, 1000, (3, 4, 6)), np.array([6, 3, 1, 6])
    keys = batch_keys(samples, counts)
    assert keys.shape == (3, 4)
    assert len(np.unique(keys)) == 12
    padded = samples.copy()
    padded[:, 1, 3:] = 0
    assert (batch_keys(padded, counts) == keys).all()
    assert (batch_keys(samples[1], counts) == keys[1]).all()
    turned = batch_keys(samples[:, :, ::-1], counts)
    assert (turned != keys).all()
    tensors = torch.tensor(samples), torch.tensor(counts)
    assert (batch_keys(*tensors) == keys).all()


def test_channels_go_as_a_whole() -> None:
    factors = mask(7, (20, 30, 4, 5), channels=True)
    assert (np.ptp(factors, axis=(2, 3)) == 0).all()
    share = (factors[:, :, 0, 0] == 0).mean()
    assert abs(share - 0.3) < SIGMAS * np.sqrt(0.21 / 600)


def test_all_or_nothing() -> None:
    assert (mask(3, (50,), drop=0.0) == 1).all()
    assert (mask(3, (50,), drop=1.0) == 0).all()


def test_layers_are_replaced_wherever_they_are() -> None:
    """Nested, registered twice, called twice: no mask repeats within a pass."""
    shared = nn.Dropout(0.5)
    module = nn.Sequential(shared, nn.Sequential(shared, nn.Dropout1d(0.5)), shared)
    keyed, held = with_keyed_dropout(module)
    assert not [m for m in keyed.modules() if isinstance(m, nn.Dropout | nn.Dropout1d)]
    assert isinstance(module[0], nn.Dropout)
    with held.set_to(torch.tensor(1)):
        once = keyed[0](torch.ones(200))
        twice = keyed[0](torch.ones(200))
    assert (once != twice).any()
    keyed.eval()
    assert (keyed(torch.ones(2, 3, 4)) == 1).all()
