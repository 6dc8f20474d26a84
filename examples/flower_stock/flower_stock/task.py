"""Model, data and training, as Flower's template has them."""

from functools import lru_cache

import torch
from torch.nn.functional import cross_entropy, relu
from torch.utils.data import DataLoader, TensorDataset

from hewfl.data import dirichlet_partition, load, prepare


class Net(torch.nn.Module):  # type: ignore[misc]  # checked without torch
    """Two layers for images of 8 × 8."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(64, 32)
        self.last = torch.nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the ten digits."""
        return self.last(relu(self.hidden(x)))


@lru_cache(maxsize=1)
def datasets(n: int, alpha: float) -> tuple[list[TensorDataset], TensorDataset]:
    """What each of n clients holds, and the test set."""
    prepared = prepare(load("digits"), 0)
    assert prepared.test is not None, "digits are split"
    shards = dirichlet_partition(prepared.labels, n, alpha, 0, min_samples=8)
    X, y = (torch.tensor(a) for a in (prepared.features[:, :64], prepared.labels))
    test = TensorDataset(*(torch.tensor(a) for a in prepared.test))
    held = [TensorDataset(X[rows], y[rows]) for rows in map(torch.tensor, shards)]
    return held, TensorDataset(test.tensors[0][:, :64], test.tensors[1])


def train(net: Net, data: TensorDataset, epochs: int, lr: float, batch: int) -> float:
    """Train in place by SGD with momentum; the mean loss."""
    optimiser = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    losses: list[float] = []
    for _ in range(epochs):
        for x, y in DataLoader(data, batch, shuffle=True):
            optimiser.zero_grad()
            loss = cross_entropy(net(x), y)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def accuracy(net: Net, data: TensorDataset) -> float:
    """The share of samples whose digit is found."""
    x, y = data.tensors
    with torch.no_grad():
        return float((net(x).argmax(1) == y).float().mean())
