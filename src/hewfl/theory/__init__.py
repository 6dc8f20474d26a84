"""The paper's statements as functions: bounds, with the conditions that make them true.

**Inputs and results.** `System` (`system_of` the solvers' records) holds L, R and the
constants of the clients, `Case` what else is known, `PostLocal` the controls ϑ and Λ.
A `Rate` or `Bound` is a number with its `Hypothesis` records; a `Recursion` holds the
coefficients of a family of theorems and computes its `Trajectory` and its closed rate.

**Theorems**, with the paper's sections and appendices:

    situation, one_step, advantage, largest_descent_amplitude   one round (3, B)
    surrogate_system, surrogate_under                controls of a whole run (B, C)
    comparator_coefficients                          fixed controls, convex (B, C)
    uniform_coefficients                             uniform weights (3, C)
    pl_rate                                          the same under the PL condition
    higher_order, best_iterate_rate                  similar Hessians (3, C)
    pathwise_bound, is_homogeneous                   Algorithms 2 and 3, any path (D)
    heterogeneous_coefficients                       Algorithm 2 in expectation (D)
    homogeneous_coefficients, homogeneous_pl_rate    Algorithm 3 in expectation (D)
    noise_optimal, best_comparator                   weights of least noise
    communication                                    numbers sent in a round (H)
    scalar_rate, linear_rate                         the two scalar lemmas (A)

**Decisions.**

    certify, Certificate, Guarantee                  every theorem for one federation
    THEOREMS, theorem_curve, Curve                   one theorem over the rounds
    design, Design, rounds_to, certified_amplitudes  the amplitude for a target
    improvements, Improvement                        the guarantee after one change

`hewfl.theory.appendix` holds the lemmas and Appendices E, G and H.

**Symbols.** Functions do not repeat what is said here. All of them broadcast over
configurations, of shape (*c); where a statement is about clients, they are the last
axis.

    L, R, f̄ = LR²/2       smoothness, radius, and the largest gap on the ball (`cap`)
    n, S                  clients, and clients that take part in a round
    H_i, b_i, v_i²        local steps (horizon), batch size, sample-gradient variance
    M_i = v_i²/(H_i b_i)  noise of a branch
    h₁, h₂                `hewfl.control.certificate.horizon_factors` of H_i
    θ_i, ϑ                amplitude L η_i H_i of a client, and one common to all
    θ̲, θ̄                  ends of the box of amplitudes (`box`, `box_end`)
    w, a                  weights of a round; fixed weights to compare with
                          (`comparator`)
    Λ                     curvature of the post-local model, above L
    Ψ(w)                  value of that model at weights w
    f, g, u, U            gap F(x) − F*, its expectation, and upper bounds on it
    e_i, q, χ, Q          tracking error c_i − ∇F_i(x), and bounds on E‖e_i‖²
    a, β, γ, δ            descent, growth, staleness and noise of a recursion
    A, B, C               its tracking part q⁺ = A + B g + C q
    m                     floor: the limit of a bound for many rounds
    ε                     target of a search; as `solver_gap`, by how much the weights
                          or controls used miss the minimum (E-18, E-31)
    μ                     constant of the PL condition ‖∇F‖² ≥ 2μ(F − F*)
    S, M                  similarity and Lipschitz constant of the Hessians
    T, t                  rounds (`rounds`)

`variant` is the set of constants: "paper", "sharp" or "absorbed" (errata T1 to T6).
`printed` is a statement literally as the paper has it, also where it is false. E-01 to
E-33 and T1 to T8 are the departures that PAPER.md lists. An argument that is out of
range, or does not broadcast, raises `InvalidInputError`; docstrings name other causes.
"""

from hewfl.theory.appendix.surrogate import surrogate_system, surrogate_under
from hewfl.theory.certificates import Certificate, Guarantee, certify
from hewfl.theory.comparators import comparator_coefficients
from hewfl.theory.designer import Design, certified_amplitudes, design
from hewfl.theory.heterogeneous import heterogeneous_coefficients
from hewfl.theory.homogeneous import (
    PostLocal,
    homogeneous_coefficients,
    homogeneous_pl_rate,
    pathwise_bound,
)
from hewfl.theory.noise import best_comparator, noise_optimal
from hewfl.theory.one_step_bound import (
    advantage,
    largest_descent_amplitude,
    one_step,
    situation,
)
from hewfl.theory.pl import pl_rate
from hewfl.theory.recursion import Recursion, Trajectory
from hewfl.theory.round_costs import communication
from hewfl.theory.rounds_to_target import rounds_to
from hewfl.theory.scalar import linear_rate, scalar_rate
from hewfl.theory.sensitivity import Improvement, improvements
from hewfl.theory.similar_hessians import best_iterate_rate, higher_order
from hewfl.theory.statement import Bound, Hypothesis, Rate
from hewfl.theory.systems import Case, System, is_homogeneous, system_of
from hewfl.theory.theorems import THEOREMS, Curve, theorem, theorem_curve, theorems
from hewfl.theory.uniform_controller import uniform_coefficients

__all__ = [
    "THEOREMS", "Bound", "Case", "Certificate", "Curve", "Design", "Guarantee",
    "Hypothesis", "Improvement", "PostLocal", "Rate", "Recursion", "System",
    "Trajectory", "advantage", "best_comparator", "best_iterate_rate",
    "certified_amplitudes", "certify", "communication", "comparator_coefficients",
    "design", "heterogeneous_coefficients", "higher_order",
    "homogeneous_coefficients", "homogeneous_pl_rate", "improvements",
    "is_homogeneous", "largest_descent_amplitude", "linear_rate", "noise_optimal",
    "one_step", "pathwise_bound", "pl_rate", "rounds_to", "scalar_rate", "situation",
    "surrogate_system", "surrogate_under", "system_of", "theorem", "theorem_curve",
    "theorems",    "uniform_coefficients",
]  # fmt: skip
