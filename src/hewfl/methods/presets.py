"""FedAvg under other server optimisers, by their own names."""

from hewfl.aggregators import FedAvg
from hewfl.server.server_step import BETA2, TAU, ServerStep
from hewfl.server.state import Entry


def FedAvgM(  # noqa: N802 - named like the method it makes
    smoothness: float, step_scale: float, *, momentum: float = 0.9, step: float = 1.0
) -> Entry:
    """FedAvg with heavy-ball momentum at the server [Hsu2019].

        m ← β m + Σ_i w_iΔ_i,     x ← x + γ m,     w_i = m_i/Σ_j m_j over the active

    Any other method gains momentum likewise: `Entry(HewHom(…), ServerStep(momentum=0.9))`.

    Args:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        momentum: β from 0 to below 1; 0.9 as in most of its uses.
        step: γ > 0.

    Returns:
        A entry for `simulate`, or the rule of a torch job.
    """
    return Entry(FedAvg(smoothness, step_scale), ServerStep(step, momentum), "FedAvgM")


def FedAdam(  # noqa: N802 - named like the method it makes
    smoothness: float,
    step_scale: float,
    *,
    step: float,
    momentum: float = 0.9,
    beta2: float = BETA2,
    tau: float = TAU,
) -> Entry:
    """FedAvg with Adam at the server [Reddi2021, Algorithm 2].

        m ← β₁ m + (1 − β₁) s,   v ← β₂ v + (1 − β₂) s²,   x ← x + γ m/(√v + τ)

    There is no correction of the first rounds: v starts at τ², m at zero. Any other
    method gains it likewise: `Entry(HewHom(…), ServerStep(0.1, 0.9, adapt="adam"))`.

    Args:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        step: γ > 0, which has to be found by tuning: about the change of one entry.
        momentum: β₁ from 0 to below 1.
        beta2: β₂ from 0 to below 1.
        tau: τ > 0.

    Returns:
        A entry for `simulate`, or the rule of a torch job.
    """
    server_step = ServerStep(step, momentum, adapt="adam", beta2=beta2, tau=tau)
    return Entry(FedAvg(smoothness, step_scale), server_step, "FedAdam")


def FedYogi(  # noqa: N802 - named like the method it makes
    smoothness: float,
    step_scale: float,
    *,
    step: float,
    momentum: float = 0.9,
    beta2: float = BETA2,
    tau: float = TAU,
) -> Entry:
    """FedAvg with Yogi at the server [Reddi2021, Algorithm 2].

        m ← β₁ m + (1 − β₁) s,  v ← v − (1 − β₂) s² sign(v − s²),  x ← x + γ m/(√v + τ)

    Args:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        step: γ > 0.
        momentum: β₁ from 0 to below 1.
        beta2: β₂ from 0 to below 1.
        tau: τ > 0.

    Returns:
        A entry for `simulate`, or the rule of a torch job.
    """
    server_step = ServerStep(step, momentum, adapt="yogi", beta2=beta2, tau=tau)
    return Entry(FedAvg(smoothness, step_scale), server_step, "FedYogi")


def FedAdagrad(  # noqa: N802 - named like the method it makes
    smoothness: float,
    step_scale: float,
    *,
    step: float,
    momentum: float = 0.0,
    tau: float = TAU,
) -> Entry:
    """FedAvg with Adagrad at the server [Reddi2021, Algorithm 2].

        m ← β₁ m + (1 − β₁) s,   v ← v + s²,   x ← x + γ m/(√v + τ)

    Args:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
        step: γ > 0.
        momentum: β₁ from 0 to below 1; zero in the experiments of its authors.
        tau: τ > 0.

    Returns:
        A entry for `simulate`, or the rule of a torch job.
    """
    server_step = ServerStep(step, momentum, adapt="adagrad", tau=tau)
    return Entry(FedAvg(smoothness, step_scale), server_step, "FedAdagrad")
