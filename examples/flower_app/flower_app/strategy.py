"""The strategy that the run's config asks for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hewfl import ChoiceHorizons, FedAvg
from hewfl.flower import (
    AlgorithmStrategy,
    FedNovaStrategy,
    HewStrategy,
    Options,
    ScaffoldStrategy,
)


def strategy_of(config: Mapping[str, Any], smoothness: float) -> AlgorithmStrategy:
    """One of five, all under the same options."""
    kind, folder = str(config["strategy"]), str(config["folder"])
    by_server = config["horizons"] == "server"
    options = Options(
        population=int(config["clients"]),
        horizons=ChoiceHorizons((1, 2, 4, 8)) if by_server else None,
        seed=int(config["seed"]),
        variates=config["variates"],
        min_replies=int(config["min-replies"]),
        wait_seconds=float(config["round-seconds"]),
        fraction_evaluate=0.0,
        folder=Path(folder) if folder else None,
        name=kind,
    )
    L, eta = smoothness, float(config["step-scale"]) / smoothness
    amplitude, ratio = float(config["amplitude"]), float(config["curvature-ratio"])
    if kind in ("hew", "hew-corrected"):
        return HewStrategy(
            L,
            amplitude,
            corrected=kind == "hew-corrected",
            curvature_ratio=ratio,
            options=options,
        )
    if kind == "fednova":
        return FedNovaStrategy(eta, options=options)
    if kind == "scaffold":
        return ScaffoldStrategy(eta, options=options)
    if kind == "fedavg":
        return AlgorithmStrategy(FedAvg(1.0, eta), options)
    known = "hew, hew-corrected, fednova, scaffold, fedavg"
    raise ValueError(f"strategy must be one of {known}; got {kind!r}")
