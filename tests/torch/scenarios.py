"""What ranks do in the tests: small quadratics whose branches NumPy can repeat.

Rank i minimises ½‖A_i y − b_i‖² with full gradients, so that a round depends on nothing
but the start, the step sizes and the steps of each rank.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hewfl import LocalSGD, Method
from hewfl.aggregators import ExactWeights
from hewfl.torch import HewLocalSGD, SyncOptions
from hewfl.torch.job import DEFAULT
from hewfl.torch.sync_options import SyncReport

Array = NDArray[np.float64]
SHAPES = ((7, 3), (5,), (2, 2, 3), (1,), (11,))
SMALL = SyncOptions(bucket_bytes=64)  # several buckets
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)


EXACT = ExactWeights(kappa=1.0, normalize="length", cross_fit=False)
VARIATE = Method(LocalSGD(1.0, variates="gradient"), ExactWeights("variate", kappa=1.0))
"""Algorithm 2 with a curvature that has no unit."""


def make_aggregator(name: Any) -> Any:
    """What tests call "exact", "variate" and "sieve"; anything else as it is."""
    made = {"exact": EXACT, "variate": VARIATE, "sieve": DEFAULT}
    return made.get(name, name) if isinstance(name, str) else name


@contextmanager
def log_texts() -> Iterator[list[str]]:
    """What hewfl.torch logs in this process, text by text."""
    texts: list[str] = []
    handler, log = logging.Handler(), logging.getLogger("hewfl.torch")
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]  # a class for one line
    log.addHandler(handler)
    try:
        yield texts
    finally:
        log.removeHandler(handler)


def quadratic(rank: int, size: int = SIZE) -> tuple[Array, Array]:
    rng = np.random.default_rng([rank, 3])
    A = rng.standard_normal((size + 5, size)) / np.sqrt(size)
    return A, rng.standard_normal(size + 5) + rank


@final
class Quadratic(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy here
    """Parameters of several shapes, one loss."""

    def __init__(self, rank: int, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        rng = np.random.default_rng(5)
        kinds = [dtypes[k % len(dtypes)] for k in range(len(SHAPES))]
        values = [torch.tensor(rng.standard_normal(shape)) for shape in SHAPES]
        pairs = zip(values, kinds, strict=True)
        self.parts = nn.ParameterList([nn.Parameter(v.to(k)) for v, k in pairs])
        self.become(rank)

    def become(self, rank: int) -> None:
        """Take a rank's data; no buffers, for DDP would give all those of rank 0."""
        self.A, self.b = map(torch.tensor, quadratic(rank))

    def forward(self) -> torch.Tensor:
        y = torch.cat([part.double().reshape(-1) for part in self.parts])
        loss: torch.Tensor = 0.5 * ((self.A @ y - self.b) ** 2).sum()
        return loss


@final
@dataclass(frozen=True)
class Plan:
    """One job.

    Attributes:
        rule: of HewLocalSGD.
        steps: H_i of each rank, per round.
        rates: η_i of each rank.
        rounds: how many.
        dtypes: precisions of the parameters, in turn.
        options: of HewLocalSGD.
        tokens: counted by each rank in every round.
        spoiled: ranks whose model is made not finite in the last round.
        ddp: wrap the module.
    """

    rule: Any = "exact"
    steps: tuple[int, ...] = (1, 3, 2, 5)
    rates: tuple[float, ...] = (0.1, 0.1, 0.1, 0.1)
    rounds: int = 1
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    options: SyncOptions = SMALL
    tokens: tuple[int, ...] = (0, 0, 0, 0)
    spoiled: tuple[int, ...] = ()
    ddp: bool = False


@final
@dataclass(frozen=True)
class RoundView:
    """One round as a rank saw it: models before and after the exchange."""

    start: Array
    before: Array
    after: Array
    report: SyncReport


def flat(model: nn.Module) -> Array:
    parts = [p.detach().double().reshape(-1) for p in model.parameters()]
    values: Array = torch.cat(parts).cpu().numpy()
    return values


def descend(module: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        module().backward()
        optimizer.step()


TRUSTED = 9
"""Whose data the root gradient is on: those of no rank."""


def root_loss(module: nn.Module) -> torch.Tensor:
    """½‖A y − b‖² on the data of the root."""
    A, b = map(torch.tensor, quadratic(TRUSTED))
    y = torch.cat([part.double().reshape(-1) for part in module.parameters()])
    loss: torch.Tensor = 0.5 * ((A @ y - b) ** 2).sum()
    return loss


def play(rank: int, _: int, plan: Plan) -> list[RoundView]:
    """The rounds of a job; each is closed by hand, to look at both sides of it."""
    module: nn.Module = Quadratic(rank, plan.dtypes)
    if plan.ddp:
        module = nn.parallel.DistributedDataParallel(module)
    rate = plan.rates[rank]
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    history = []
    never = 10**9
    with HewLocalSGD(
        module, optimizer, never, make_aggregator(plan.rule), None, plan.options
    ) as local:
        local.set_root(lambda: root_loss(module))
        for t in range(plan.rounds):
            start = flat(module)
            descend(module, optimizer, plan.steps[rank])
            local.add_tokens(plan.tokens[rank])
            if rank in plan.spoiled and t == plan.rounds - 1:
                with torch.no_grad():
                    next(iter(module.parameters())).view(-1)[2] = torch.nan
            before = flat(module)
            report = local.sync()
            assert report is not None
            history.append(RoundView(start, before, flat(module), report))
    return history
