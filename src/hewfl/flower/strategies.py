"""The strategies by name: exact weights, and the two rivals Flower does not ship."""

from typing import final

from hewfl.aggregate.variates import Start
from hewfl.baselines.fednova import FedNova
from hewfl.baselines.scaffold import Scaffold
from hewfl.controllers.het import HewHet
from hewfl.controllers.hom import HewHom
from hewfl.flower.options import Options
from hewfl.flower.strategy import AlgorithmStrategy


@final
class HewStrategy(AlgorithmStrategy):
    """Exact weights: Algorithm 3, or with `corrected` Algorithm 2.

    Clients step by η_i = ϑ/(L H_i). A stock Flower client works with plain branches if
    it reports `num-steps`; its step size is then what `train_config` sends as `lr`, or
    what it reports as `step-size`.

    Args:
        smoothness: L.
        amplitude: ϑ.
        corrected: control variates against unlike data; needs `options.population`.
        curvature_ratio: Λ/L > 1.
        start: control variates start at zero or at a minibatch gradient.
        null_endpoint: add standing still to the choice.
        options: how the federation is conducted.
    """

    methods = ("HewHom", "HewHet")

    def __init__(  # noqa: PLR0913 - the public door: all but two are optional
        self,
        smoothness: float,
        amplitude: float,
        *,
        corrected: bool = False,
        curvature_ratio: float = 1.25,
        start: Start = "gradient",
        null_endpoint: bool = False,
        options: Options | None = None,
    ) -> None:
        L, theta, ratio = smoothness, amplitude, curvature_ratio
        if corrected:
            method: HewHet | HewHom = HewHet(L, theta, ratio, start, null_endpoint)
        else:
            method = HewHom(L, theta, ratio, null_endpoint)
        super().__init__(method, options)


@final
class FedNovaStrategy(AlgorithmStrategy):
    """Normalised averaging: every client counts by its mean step [Wang2020].

    Args:
        step_size: η of every local step; stock clients use their own.
        by_size: weigh clients by their examples, as in the paper; else alike.
        options: how the federation is conducted.
    """

    methods = ("FedNova",)

    def __init__(
        self, step_size: float, *, by_size: bool = True, options: Options | None = None
    ) -> None:
        super().__init__(FedNova(1.0, step_size, by_size), options)


@final
class ScaffoldStrategy(AlgorithmStrategy):
    """Stochastic controlled averaging, option II [Karimireddy2020].

    Args:
        step_size: η of every local step.
        server_step: η_g of the server.
        start: control variates start at zero or at a minibatch gradient.
        options: how the federation is conducted; `population` is needed.
    """

    methods = ("Scaffold",)

    def __init__(
        self,
        step_size: float,
        *,
        server_step: float = 1.0,
        start: Start = "zero",
        options: Options | None = None,
    ) -> None:
        super().__init__(Scaffold(1.0, step_size, server_step, start), options)
