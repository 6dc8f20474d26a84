"""The model: softmax regression as a torch module, and its loss on a minibatch."""

from collections.abc import Callable

import numpy as np
import torch

from hewfl.federation import generator
from hewfl.flower import StepContext
from hewfl.problems import Softmax

_STREAM = 11


def build(problem: Softmax) -> torch.nn.Module:
    """One linear layer from features, the bias among them, to classes; zero."""
    p, c = problem.features.shape[1], problem.classes
    model = torch.nn.Linear(p, c, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model


def minibatch_loss(
    problem: Softmax, client: int, batch: int, seed: int
) -> Callable[[torch.nn.Module, StepContext], torch.Tensor]:
    """Cross-entropy with an l2 penalty; the moment says which samples."""
    begin, size = int(problem.offsets[client]), int(problem.data_sizes[client])
    features = torch.from_numpy(np.asarray(problem.features[begin : begin + size]))
    labels = torch.from_numpy(np.asarray(problem.labels[begin : begin + size]))

    def loss(model: torch.nn.Module, moment: StepContext) -> torch.Tensor:
        rng = generator(seed, _STREAM, client, moment.round, moment.step)
        rows = torch.from_numpy(rng.integers(0, size, batch))
        scores = model(features[rows])
        fit = torch.nn.functional.cross_entropy(scores, labels[rows])
        squares = sum((p**2).sum() for p in model.parameters())
        return fit + 0.5 * problem.l2 * squares

    return loss
