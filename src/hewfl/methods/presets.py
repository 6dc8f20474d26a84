"""Methods of the literature by their names, each a `Method` of three parts.

Every preset takes a learning rate, and the other options of `LocalSGD` by name:
`FedAvg(0.1)`, or `FedAvg(total=0.5)` for one total step shared among the local steps of
a client.
"""
# ruff: noqa: N802 - functions named like the methods they make

from typing import Any

from hewfl.aggregators.averaging import Mean, NormalizedMean, PowerWeights
from hewfl.displacements.control_variates import Start
from hewfl.methods.method import LocalSGD, Method
from hewfl.server.server_step import BETA2, TAU, ServerStep


def FedAvg(learning_rate: float | None = None, **local: Any) -> Method:
    """Federated averaging: updates weighted by data size [McMahan2017].

        x⁺ = x + Σ_i (m_i/m) Δ_i,     m = Σ_{j∈S} m_j

    Args:
        learning_rate: η > 0, of every local step.
        **local: other options of `LocalSGD`.

    Returns:
        The method.

    Examples:
        >>> from hewfl import FedAvg
        >>> FedAvg(0.1).aggregator
        Mean(by='size')
    """
    return Method(LocalSGD(learning_rate, **local), Mean(by="size"), name="FedAvg")


def UniformLocalSGD(learning_rate: float | None = None, **local: Any) -> Method:
    """Local SGD, every update with the same weight [Gorbunov2021].

        x⁺ = x + (1/S) Σ_i Δ_i

    Args:
        learning_rate: η > 0, of every local step.
        **local: other options of `LocalSGD`.

    Returns:
        The method.
    """
    return Method(LocalSGD(learning_rate, **local), Mean(), name="Uniform-LocalSGD")


def StepWeighted(learning_rate: float | None = None, **local: Any) -> Method:
    """Updates weighted by the number of local steps (`Mean(by="steps")`).

    Args:
        learning_rate: η > 0, of every local step.
        **local: other options of `LocalSGD`.

    Returns:
        The method.
    """
    name = "Step-weighted"
    return Method(LocalSGD(learning_rate, **local), Mean(by="steps"), name=name)


def FedProx(learning_rate: float | None = None, *, prox: float, **local: Any) -> Method:
    """FedAvg on F_i(y) + (μ/2)‖y − x‖² [Li2020].

        y ← y − η (g + μ (y − x)),     x⁺ = x + Σ_i (m_i/m) Δ_i,     m = Σ_{j∈S} m_j

    The paper draws clients with probability m_i/Σm and averages them equally; here the
    federation draws the clients, and the weights carry the same objective. Its
    γ-inexact local solution is H_i steps of SGD. μ = 0 is FedAvg.

    Args:
        learning_rate: η > 0, of every local step.
        prox: μ ≥ 0.
        **local: other options of `LocalSGD`.

    Returns:
        The method.
    """
    work = LocalSGD(learning_rate, prox=prox, **local)
    return Method(work, Mean(by="size"), name="FedProx")


def FedNova(
    learning_rate: float | None = None, *, by: str = "size", **local: Any
) -> Method:
    """Normalised averaging: a client counts by its mean step [Wang2020].

    Args:
        learning_rate: η > 0, of every local step.
        by: "size" as in the paper, or "equal".
        **local: other options of `LocalSGD`.

    Returns:
        The method, with the aggregator `NormalizedMean`.
    """
    rule = NormalizedMean(by=by)  # type: ignore[arg-type]  # checked there
    return Method(LocalSGD(learning_rate, **local), rule, name="FedNova")


def Scaffold(
    learning_rate: float | None = None,
    *,
    server_learning_rate: float = 1.0,
    start: Start = "zero",
    **local: Any,
) -> Method:
    """Local steps corrected by control variates, option II [Karimireddy2020].

        y ← y − η (g − c_i + c)                                H_i times, from y = x
        c_i⁺ = c_i − c + (x − y)/(η H_i) = c_i − c − Δ_i/(η H_i)
        x⁺ = x + (η_g/S) Σ_{i∈S} Δ_i
        c⁺ = c + (1/n) Σ_{i∈S} (c_i⁺ − c_i)

    Clients that do not take part keep their c_i. The paper has one K for all; with
    unequal horizons each client divides by its own. It sends Δ_i and c_i⁺ − c_i up; the
    second is a function of the first, so here only Δ_i travels (erratum E-17).

    Args:
        learning_rate: η > 0, of every local step.
        server_learning_rate: η_g > 0; 1 in the paper's experiments.
        start: c_i = 0, or one minibatch gradient of each client at x_0 (erratum E-29).
        **local: other options of `LocalSGD`.

    Returns:
        The method.
    """
    work = LocalSGD(learning_rate, variates=start, **local)
    return Method(work, Mean(), ServerStep(server_learning_rate), name="SCAFFOLD")


def MinibatchSGD(learning_rate: float | None = None, **local: Any) -> Method:
    """The round's gradients, all taken at the anchor, in one step [Woodworth2020].

        Δ_i = −η Σ_{ℓ<H_i} g_i(x; ξ_i^ℓ),     x⁺ = x + (1/S) Σ_i Δ_i

    Same samples, same communication as local SGD. The paper writes one step with the
    mean of the gradients, `MinibatchSGD(total=…)`; with a learning rate the step size
    of one gradient is given, so that with equal horizons the step is H η, and with
    unequal ones clients weigh in by their gradients.

    Args:
        learning_rate: η > 0, of every gradient.
        **local: other options of `LocalSGD`.

    Returns:
        The method.
    """
    work = LocalSGD(learning_rate, at_anchor=True, **local)
    return Method(work, Mean(), name="Minibatch SGD")


def HewFixed(
    learning_rate: float | None = None,
    *,
    power: float = 1.0,
    variance: Any = 1.0,
    **local: Any,
) -> Method:
    """HEW's branches with weights w_i ∝ (H_i b_i/v_i²)^λ (erratum E-28).

    Usually with a total step, as Algorithms 2 and 3: `HewFixed(total=0.5)`, and with
    control variates by `variates="gradient"`.

    Args:
        learning_rate: η > 0, of every local step.
        power: λ ≥ 0; 1 is the paper's noise-optimal comparator, 0 gives equal weights.
        variance: v_i², one number or one per client.
        **local: other options of `LocalSGD`.

    Returns:
        The method, with the aggregator `PowerWeights`.
    """
    rule = PowerWeights(power, variance)
    law = "uniform" if power == 0 else "horizon"
    corrected = ", corrected" if local.get("variates") else ""
    name = f"HEW-Fixed ({law}{corrected})"
    return Method(LocalSGD(learning_rate, **local), rule, name=name)


def FedAvgM(
    learning_rate: float | None = None,
    *,
    momentum: float = 0.9,
    server_learning_rate: float = 1.0,
    **local: Any,
) -> Method:
    """FedAvg with heavy-ball momentum at the server [Hsu2019].

        m ← β m + Σ_i w_iΔ_i,     x ← x + γ m,     w_i = m_i/Σ_j m_j over the active

    Any other method gains momentum by its `ServerStep(momentum=0.9)`.

    Args:
        learning_rate: η > 0, of every local step.
        momentum: β from 0 to below 1; 0.9 as in most of its uses.
        server_learning_rate: γ > 0.
        **local: other options of `LocalSGD`.

    Returns:
        The method.
    """
    step = ServerStep(server_learning_rate, momentum)
    return Method(LocalSGD(learning_rate, **local), Mean(by="size"), step, "FedAvgM")


def FedAdam(
    learning_rate: float | None = None,
    *,
    server_learning_rate: float,
    momentum: float = 0.9,
    beta2: float = BETA2,
    tau: float = TAU,
    **local: Any,
) -> Method:
    """FedAvg with Adam at the server [Reddi2021, Algorithm 2].

        m ← β₁ m + (1 − β₁) s,   v ← β₂ v + (1 − β₂) s²,   x ← x + γ m/(√v + τ)

    There is no correction of the first rounds: v starts at τ², m at zero.

    Args:
        learning_rate: η > 0, of every local step.
        server_learning_rate: γ > 0, found by tuning: about the change of one entry.
        momentum: β₁ from 0 to below 1.
        beta2: β₂ from 0 to below 1.
        tau: τ > 0.
        **local: other options of `LocalSGD`.

    Returns:
        The method.
    """
    step = ServerStep(
        server_learning_rate, momentum, adapt="adam", beta2=beta2, tau=tau
    )
    return Method(LocalSGD(learning_rate, **local), Mean(by="size"), step, "FedAdam")


def FedYogi(
    learning_rate: float | None = None,
    *,
    server_learning_rate: float,
    momentum: float = 0.9,
    beta2: float = BETA2,
    tau: float = TAU,
    **local: Any,
) -> Method:
    """FedAvg with Yogi at the server [Reddi2021, Algorithm 2].

        m ← β₁ m + (1 − β₁) s,  v ← v − (1 − β₂) s² sign(v − s²),  x ← x + γ m/(√v + τ)

    Args:
        learning_rate: η > 0, of every local step.
        server_learning_rate: γ > 0.
        momentum: β₁ from 0 to below 1.
        beta2: β₂ from 0 to below 1.
        tau: τ > 0.
        **local: other options of `LocalSGD`.

    Returns:
        The method.
    """
    step = ServerStep(
        server_learning_rate, momentum, adapt="yogi", beta2=beta2, tau=tau
    )
    return Method(LocalSGD(learning_rate, **local), Mean(by="size"), step, "FedYogi")


def FedAdagrad(
    learning_rate: float | None = None,
    *,
    server_learning_rate: float,
    momentum: float = 0.0,
    tau: float = TAU,
    **local: Any,
) -> Method:
    """FedAvg with Adagrad at the server [Reddi2021, Algorithm 2].

        m ← β₁ m + (1 − β₁) s,   v ← v + s²,   x ← x + γ m/(√v + τ)

    Args:
        learning_rate: η > 0, of every local step.
        server_learning_rate: γ > 0.
        momentum: β₁ from 0 to below 1; zero in the experiments of its authors.
        tau: τ > 0.
        **local: other options of `LocalSGD`.

    Returns:
        The method.
    """
    step = ServerStep(server_learning_rate, momentum, adapt="adagrad", tau=tau)
    return Method(LocalSGD(learning_rate, **local), Mean(by="size"), step, "FedAdagrad")
