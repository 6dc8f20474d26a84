"""The strategy that the run's config asks for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hewfl import ChoiceSteps, FedAvg, FedNova, HewHet, HewHom, Scaffold
from hewfl.flower import AlgorithmStrategy


def strategy_of(config: Mapping[str, Any], smoothness: float) -> AlgorithmStrategy:
    """One of five methods, all under the same options."""
    kind, folder = str(config["strategy"]), str(config["folder"])
    L, scale = smoothness, float(config["step-scale"])
    amplitude, ratio = float(config["amplitude"]), float(config["curvature-ratio"])
    methods: dict[str, Any] = {
        "hew": HewHom(L, amplitude, ratio),
        "hew-corrected": HewHet(L, amplitude, ratio),
        "fednova": FedNova(scale / L),
        "scaffold": Scaffold(scale / L),
        "fedavg": FedAvg(scale / L),
    }
    if kind not in methods:
        text = f"strategy must be one of {', '.join(methods)}; got {kind!r}"
        raise ValueError(text)
    by_server = config["local-steps-by"] == "server"
    return AlgorithmStrategy(
        methods[kind],
        population=int(config["clients"]),
        local_steps=ChoiceSteps((1, 2, 4, 8)) if by_server else None,
        seed=int(config["seed"]),
        min_replies=int(config["min-replies"]),
        wait_seconds=float(config["round-seconds"]),
        fraction_evaluate=0.0,
        folder=Path(folder) if folder else None,
    )
