"""The records of one round, and what every algorithm is made of.

    roster   environment → server    who takes part, H_i, b_i, m_i
    plan     server → clients        step sizes η_i, additive correction, proximal term
    round    clients → server        anchor x_t, displacements Δ_i: all a rule sees
    decision server                  weights on displacements, with a certificate

An algorithm is a frozen record of hyper-parameters with three pure methods; its state
is a value that goes in and comes out.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar, final, runtime_checkable

from jaxtyping import Float, Float64, Int64

from hewfl.aggregate.pieces import Pieces
from hewfl.core.checks import Array, Ints

State = TypeVar("State")


@final
@dataclass(frozen=True, slots=True)
class Roster:
    """Who takes part in a round, and with how much work.

    Attributes:
        clients: S_t, increasing indices out of the population; may be empty.
        horizons: H_i ≥ 1, local steps.
        batch_sizes: b_i ≥ 1.
        data_sizes: m_i ≥ 1, samples held.
        population: n, clients in all.
    """

    clients: Int64[Ints, " s"]
    horizons: Int64[Ints, " s"]
    batch_sizes: Int64[Ints, " s"]
    data_sizes: Int64[Ints, " s"]
    population: int


@final
@dataclass(frozen=True, slots=True)
class LocalPlan:
    """What each client is told: y ← y − η_i (g − correction_i + μ (y − x)).

    Attributes:
        step_sizes: η_i > 0.
        correction: subtracted from every stochastic gradient (c_i − c), or None.
        proximal: μ ≥ 0, pull towards the anchor.
        hold: take all gradients at the anchor instead of along the branch.
    """

    step_sizes: Float64[Array, " s"]
    correction: Float64[Array, "s d"] | None = None
    proximal: float = 0.0
    hold: bool = False


@final
@dataclass(frozen=True, slots=True)
class Round:
    """All that a rule may look at.

    Attributes:
        anchor: x_t.
        displacements: Δ_i = y_i − x_t, one row per client of the roster.
        roster: who they are.
        plan: what they were told.
        losses: F_i(x_t), for rules that ask for them (`needs_losses`), else None.
    """

    anchor: Float64[Array, " d"]
    displacements: Float[Array, "s d"]
    roster: Roster
    plan: LocalPlan
    losses: Float64[Array, " s"] | None = None


@final
@dataclass(frozen=True, slots=True)
class PiecewiseRound:
    """A round whose displacements are still where they came.

    For rules that read them through `combine` and `post_local_weights` alone
    (`Streaming`); no matrix of s × d numbers is formed.

    Attributes:
        anchor: x_t.
        displacements: Δ_i = y_i − x_t, one vector per client of the roster.
        roster: who they are.
        plan: what they were told.
    """

    anchor: Float64[Array, " d"]
    displacements: Pieces
    roster: Roster
    plan: LocalPlan


@final
@dataclass(frozen=True, slots=True)
class Decision:
    """What the server does with a round.

    Attributes:
        weights: w_i; the step is Σ w_iΔ_i. They sum to one where the rule averages.
        status: one sentence.
        gap: certified distance from the rule's own optimum; zero for closed forms.
        step: given only by rules whose step is not a combination of displacements.
        value: Ψ(w) = ⟨g, d⟩ + (Λ/2)‖d‖² for rules that minimise it, else None.
    """

    weights: Float64[Array, " s"]
    status: str
    gap: float = 0.0
    step: Float64[Array, " d"] | None = None
    value: float | None = None


@final
@dataclass(frozen=True, slots=True)
class Traffic:
    """What a method sends in a round with S active clients and d parameters.

    Attributes:
        down: vectors of d numbers broadcast once to all.
        up: vectors of d numbers from each active client.
        paper_up: the same as the paper counts it (Δc_i sent along, erratum E-17).
        down_scalars: numbers to each active client besides (amplitudes, weights).
        up_scalars: numbers from each active client besides (step counts, losses).
        common_scalars: numbers broadcast once besides (a common amplitude).
    """

    down: int = 1
    up: int = 1
    paper_up: int = 1
    down_scalars: int = 0
    up_scalars: int = 0
    common_scalars: int = 0


@runtime_checkable
class Algorithm(Protocol[State]):
    """A federated method: hyper-parameters, and three pure methods.

    `needs_losses` asks for F_i(x_t) in the round; `needs_gradients` for one minibatch
    gradient of every client at x_0 in `init` (erratum E-29).
    """

    @property
    def name(self) -> str:
        """How tables call it."""

    @property
    def traffic(self) -> Traffic:
        """What it sends."""

    @property
    def needs_losses(self) -> bool:
        """Whether rounds must carry F_i(x_t)."""

    @property
    def needs_gradients(self) -> bool:
        """Whether `init` must be given gradients at the start."""

    def init(self, n: int, d: int, gradients: Float64[Array, "n d"] | None) -> State:
        """The state before the first round."""

    def plan(self, roster: Roster, state: State) -> LocalPlan:
        """What the clients of the roster are told."""

    def decide(self, round_: Round, state: State) -> tuple[Decision, State]:
        """Weights for the displacements, and the state of the next round."""


@runtime_checkable
class Streaming(Protocol[State]):
    """An algorithm that can leave displacements where they lie.

    `decide` is `weigh`, then `follow` with arrays of its own.
    """

    def weigh(self, round_: Round | PiecewiseRound, state: State) -> Decision:
        """Weights for the displacements."""

    def follow(
        self, round_: Round | PiecewiseRound, state: State, *, owned: bool
    ) -> State:
        """The state of the next round; in the arrays of this one where it is `owned`.

        Whoever says so gives up the state passed in.
        """
