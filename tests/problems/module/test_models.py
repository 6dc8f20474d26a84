"""The modules of the paper's deep-learning lines."""

from typing import Any

import pytest
import torch

from hewfl.problems.module.models import classifier_head, medium_cnn

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("build", "size", "inputs", "classes"),
    [(medium_cnn, 458_570, 784, 10), (classifier_head, 593_668, 768, 4)],
)
def test_sizes_shapes_and_seeds(
    build: Any, size: int, inputs: int, classes: int
) -> None:
    before = torch.get_rng_state()
    one, same, other = build(seed=1), build(seed=1), build(seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert sum(p.numel() for p in one.parameters()) == size
    assert one(torch.zeros(3, inputs)).shape == (3, classes)
    first, again, third = (next(iter(m.parameters())) for m in (one, same, other))
    assert torch.equal(first, again)
    assert not torch.equal(first, third)


def test_head_starts_as_in_distilbert() -> None:
    head = classifier_head(seed=0)
    weights = head[0].weight.detach()
    assert float(weights.std()) == pytest.approx(0.02, rel=0.01)
    assert abs(float(weights.mean())) < 1e-4
    assert not head[0].bias.any()
    assert not head[3].bias.any()


def test_dropout_is_where_it_was_asked() -> None:
    for module in (medium_cnn(0, dropout=0.4), classifier_head(0, dropout=0.4)):
        rates = [m.p for m in module if isinstance(m, torch.nn.Dropout)]
        assert rates
        assert set(rates) == {0.4}
