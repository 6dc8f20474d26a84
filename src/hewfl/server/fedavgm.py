"""FedAvgM: FedAvg under server momentum, by its own name."""

from hewfl.baselines import FedAvg
from hewfl.server.outer import Outer
from hewfl.server.state import Lane


def FedAvgM(  # noqa: N802 - named like the method it makes
    smoothness: float, step_scale: float, *, momentum: float = 0.9, step: float = 1.0
) -> Lane:
    """FedAvg with heavy-ball momentum at the server [Hsu2019].

        m ← β m + Σ_i w_iΔ_i,     x ← x + γ m,     w_i = m_i/Σ_j m_j over the active

    Any other method gains momentum likewise: `Lane(HewHom(…), Outer(momentum=0.9))`.

    Args:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        momentum: β from 0 to below 1; 0.9 as in most of its uses.
        step: γ > 0.
    """
    return Lane(FedAvg(smoothness, step_scale), Outer(step, momentum), "FedAvgM")
