"""The paper's statements as functions: bounds, with the conditions that make them true.

**Inputs.** `System` holds L, R and the constants of the clients, `Case` what else is
known of a federation.

**Statements.**

    theorem, theorems        every statement about many rounds, by label or word
    one_step, situation      one round of Algorithm 1 (th:predictive-majorant)
    pathwise_bound           Algorithms 2 and 3, any path (th:realized-het-one-step)
    surrogate                the controls of a whole run (th:sur-system)
    noise_optimal            weights of least noise (eq:realized-het-positive-v)

`theorem` returns a `Recursion`; its `rate` is a `Rate`, its `trajectory` a
`Trajectory`, and each has the `Hypothesis` records that make it true. A hypothesis that
fails makes a number NaN where it is undefined; bad input raises.

**Decisions.** `certify` evaluates every statement for one federation, `design` gives
the amplitude for a target, `improvements` the guarantee after one change, and
`literature` the bounds of other methods at the same constants.

The modules hold what these are made of. `hewfl.theory.appendix` holds the lemmas and
Appendices E, G and H.

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

`variant` is the set of constants: "paper", "sharp", "absorbed" (errata T1 to T6) or
"joint" (T9). `printed` is a statement literally as the paper has it, also where it is
false. E-01 to E-33 and T1 to T9 are the departures that PAPER.md lists. An argument
that is out of range, or does not broadcast, raises `InvalidInputError`; docstrings name
other causes.
"""

from hewfl.theory.appendix.surrogate_controls import surrogate
from hewfl.theory.certificates import certify, improvements
from hewfl.theory.designer import design
from hewfl.theory.noise import noise_optimal
from hewfl.theory.one_step_bound import one_step, situation
from hewfl.theory.other_methods import literature
from hewfl.theory.post_local import pathwise_bound
from hewfl.theory.recursion import Recursion, Trajectory
from hewfl.theory.statement import Hypothesis, Rate
from hewfl.theory.systems import Case, System
from hewfl.theory.theorem_table import theorem, theorems

__all__ = [
    "Case", "Hypothesis", "Rate", "Recursion", "System", "Trajectory", "certify",
    "design", "improvements", "literature", "noise_optimal", "one_step",
    "pathwise_bound", "situation", "surrogate", "theorem", "theorems",
]  # fmt: skip
