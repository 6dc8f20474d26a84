"""What every method is made of, and what a transport may ask of it.

An algorithm is a frozen record of hyper-parameters with three pure methods; its state
is a value that goes in and comes out. A transport (the simulator, Flower, torch) never
looks at its class: it reads `demands`, and asks for what only some methods have through
the small protocols below. A rule written by a user has every right that ours have.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, final, runtime_checkable

from hewfl.core.array_types import Float64, Int64
from hewfl.core.records import UpperState
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import Array, Ints, PerClient

Need = Literal[
    "sizes",
    "steps",
    "step_sizes",
    "losses",
    "entries",
    "clients",
    "root",
    "variate",
    "truth",
]
"""What a rule may look at beside the products of the updates.

sizes       data sizes m_i
steps       local steps H_i
step_sizes  local step sizes η_i
losses      F_i at the model that was sent
entries     coordinates of the updates, not products alone
clients     which client is which, from round to round
root        a gradient that the server computed itself
variate     the control variate of the server
truth       which clients are faulty: known in a simulation alone
"""
State = TypeVar("State")
FirstGradients = Float64[Array, "n d"] | None
"""One minibatch gradient of every client at x_0, for methods that ask for them."""
State_contra = TypeVar("State_contra", contravariant=True)
"""A state that is only looked at."""


@final
@dataclass(frozen=True, slots=True)
class Traffic:
    """What a method sends in a round with S active clients and d parameters.

    Attributes:
        down: vectors of d numbers broadcast once to all.
        up: vectors of d numbers from each active client.
        paper_up: `up` as the paper counts it (Δc_i sent along, erratum E-17).
        down_scalars: numbers to each active client besides (amplitudes, weights).
        up_scalars: numbers from each active client besides (step counts, losses).
        common_scalars: numbers broadcast once besides (a common amplitude).
        samples: on which each active client measures losses, beside its local steps.

    Examples:
        >>> from hewfl import FedAvg, Scaffold
        >>> [method(0.1).demands.traffic.down for method in (FedAvg, Scaffold)]
        [1, 2]
    """

    down: int = 1
    up: int = 1
    paper_up: int = 1
    down_scalars: int = 0
    up_scalars: int = 0
    common_scalars: int = 0
    samples: int = 0


@final
@dataclass(frozen=True, slots=True)
class Demands:
    """What a method wants of the server and the clients, and what it sends.

    Attributes:
        traffic: what travels in a round.
        needs: what the rule looks at beside the products of the updates.
        gradients: `init` must be given one minibatch gradient of every client at x_0
            (erratum E-29).
        variates: branches are corrected by control variates: the state has them
            (`Corrected`), and plans carry a correction.
        oracle: `with_truth` must be called with the true state before each round
            (`Informed`): for audits in simulation.
        worker_momentum: β of what each client sends, m_i ← βm_i + (1 − β)Δ_i, over the
            rounds that it takes part in; m_i starts at zero.
        optional: those of `needs` that may have their default, such as one step each,
            where the clients of a transport do not report them.
        clips: long updates are shortened by the rule itself.
    """

    traffic: Traffic = Traffic()
    needs: frozenset[Need] = frozenset()
    gradients: bool = False
    variates: bool = False
    oracle: bool = False
    worker_momentum: float = 0.0
    optional: frozenset[Need] = frozenset()
    clips: bool = False


@runtime_checkable
class Algorithm(Protocol[State]):
    """A federated method: hyper-parameters, and three pure methods."""

    @property
    def name(self) -> str:
        """How tables call it."""

    @property
    def demands(self) -> Demands:
        """What it wants and sends."""

    def init(self, n: int, d: int, gradients: FirstGradients) -> State:
        """The state before the first round.

        Args:
            n: clients in all.
            d: parameters.
            gradients: one minibatch gradient of every client at x_0 where `demands`
                asks for them, else None.

        Returns:
            The state, a value that `plan` and `decide` are given.
        """

    def plan(self, cohort: Cohort, state: State) -> LocalPlan:
        """The instructions for the clients of a round.

        Args:
            cohort: who takes part, with how many steps.
            state: of the method before the round.

        Returns:
            Step sizes, and a correction where the method has one.
        """

    def decide(self, round_: Round, state: State) -> tuple[Decision, State]:
        """Weights for the displacements, and the state of the next round.

        Args:
            round_: all that the rule may look at.
            state: of the method before the round.

        Returns:
            The decision, and the state after the round.
        """


# ------------------ what some have


@final
@dataclass(frozen=True, slots=True, eq=False)
class RoundModel:
    """The quadratic that a rule minimises: ⟨g, d⟩ + (Λ/2)‖d‖², d = Σ w_iΔ_i.

    Where Λ > L and L bounds the smoothness of F, it is a certificate of any step d:

        F(x + d) ≤ F(x) + ⟨g, d⟩ + (Λ/2)‖d‖² + ‖∇F(x) − g‖² / (2(Λ − L))

    (th:realized-het-one-step, th:realized-hom-one-step).

    Attributes:
        reference: g, a vector of the round's space, a `LinearCombination` of its
            displacements, or None for zero.
        curvature: Λ.
        smoothness: L; None where no L is known. Then the model chooses weights and
            certifies nothing: traces carry no terms of a bound, audits skip it.
    """

    reference: Any
    curvature: float
    smoothness: float | None


@runtime_checkable
class Modelled(Protocol[State_contra]):
    """A rule that minimises a quadratic model of the round, certified where L is."""

    def model(self, round_: Round, state: State_contra) -> RoundModel | None:
        """The model that `decide` minimises; None where it minimises none.

        A rule with cross-fitted slopes minimises another function of the weights: its
        model is then only the bound that holds for its step as for any other.

        Args:
            round_: what the rule saw.
            state: before the round.

        Returns:
            The quadratic, with L where a bound on the objective follows from it.
        """


@runtime_checkable
class Corrected(Protocol[State_contra]):
    """A method whose state holds control variates."""

    def variates(self, state: State_contra) -> Any:
        """The control variates in a state, None where this state has none.

        Args:
            state: of the method.

        Returns:
            The variates, or None.
        """


@final
@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """What a simulation knows and a server does not, or learns once; all optional.

    Attributes:
        upper: (U_t, Q_t) as they truly are, for methods that demand an oracle.
        quality: the true batch size of honest clients, 0 of faulty ones: how much a
            sample mean of that client is worth. For yardsticks; simulations alone
            give it, before the first round.
        samples: in the first gradient of each client, 0 for a client without one,
            which started at the mean of the others. Given before the first round.
    """

    upper: UpperState | None = None
    quality: PerClient | None = None
    samples: Int64[Ints, " n"] | None = None


@runtime_checkable
class Informed(Protocol[State]):
    """A method that uses facts which no update shows."""

    def with_truth(self, state: State, truth: Truth) -> State:
        """The state with what is known; unchanged where nothing concerns it.

        Args:
            state: of the method.
            truth: what is known.

        Returns:
            The state that takes it into account.
        """


@runtime_checkable
class Certified(Protocol[State_contra]):
    """A method that bounds the expected next gap before the round."""

    def certified(
        self, round_: Round, state: State_contra, weights: Float64[Array, " s"]
    ) -> tuple[Float64[Array, " s"], float]:
        """The amplitudes of the round, and the bound J on the expected next gap.

        Args:
            round_: what the rule saw.
            state: before the round.
            weights: that were played.

        Returns:
            θ_i of the participants, and J.
        """
