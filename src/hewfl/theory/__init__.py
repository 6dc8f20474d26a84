"""The paper's statements as functions: bounds, with the conditions that make them true.

    systems      what a theorem is told: `System`
    statement    what it returns: `Rate`, `Bound`, each with its `Hypothesis` records

    scalar       T_a and the scalar recursions                                      A
    one_step_bound    certificate of a round, radii of branches                  3, B
    surrogate    expected gap and tracking under controls fixed beforehand       B, C
    comparators, comparator_rates    fixed controls to compare with              B, C
    uniform_controller, pl, similar_hessians    uniform weights and their rates  3, C
    corrected    Algorithm 2: corrected branches, weights chosen afterwards      4, D
    plain        Algorithm 3: plain branches of one objective                    4, D
    participation    tracking when clients stay away                             E-19
    generators, convex_flow, drift, floors, master, bellman, closure                E
    degeneration     where all is gradient descent                                  G
    counts       numbers sent, gradients computed                                   H
    recursion, scaled    what these share
    laws, designer, certificates    rounds to a target, the best amplitude, the report
    overview     the table of `docs/theory.md`

On the right the paper's sections and appendices. Everything broadcasts over
configurations; where a statement speaks of clients, theirs is the last axis. Arguments
that are empty or do not fit each other are named, as are those out of range.
The names exported here are functions and records; no module is called like one of them.
"""

from hewfl.predictive.certificate import (
    VARIANTS,
    Variant,
)
from hewfl.predictive.tracking import (
    Tracking,
    predictable_tracking,
    realised_tracking,
    server_move,
    tracking_cap,
)
from hewfl.theory.bellman import (
    BoxSelection,
    ControlSet,
    Selection,
    bellman_kernel,
    bellman_operator,
    box_selection,
    epsilon_selection,
)
from hewfl.theory.certificates import (
    Certificate,
    FirstRound,
    Noise,
    Promise,
    Sent,
    certify,
)
from hewfl.theory.closure import (
    Envelope,
    GivenYoung,
    PowerYoung,
    Product,
    YoungPair,
    closed_kernel,
    raw_kernel,
    young_hypothesis,
)
from hewfl.theory.comparator_rates import (
    comparator_rate,
    comparator_recursion,
)
from hewfl.theory.comparators import (
    ComparatorCoefficients,
    best_comparator,
    comparator_coefficients,
    mean_noise,
    noise_of_mean,
    noise_optimal,
    noise_optimal_level,
    noise_term,
    uniform_mean_noise,
    uniform_noise_of_mean,
)
from hewfl.theory.convex_flow import (
    ConvexGenerator,
)
from hewfl.theory.corrected import (
    CorrectedCoefficients,
    PostLocal,
    corrected_coefficients,
    corrected_noise,
    corrected_rate,
    corrected_recursion,
    pathwise_bound,
    post_local_hypotheses,
)
from hewfl.theory.counts import (
    RoundWork,
    communication,
    round_work,
)
from hewfl.theory.degeneration import (
    CentralPath,
    central_path,
    central_round_hypotheses,
    effective_amplitude,
    gradient_step,
    slice_bound,
    slice_excess,
    slice_hypotheses,
    symmetric_exact_hypotheses,
)
from hewfl.theory.designer import (
    Design,
    certified_amplitudes,
    design,
    rounds_to,
)
from hewfl.theory.drift import (
    Terms,
    noisy_drift,
)
from hewfl.theory.floors import (
    evolution,
    floor_hypothesis,
    noisy_contraction,
    noisy_floor,
)
from hewfl.theory.generators import (
    ExponentialGenerator,
    Generator,
    PowerGenerator,
    QuadraticGenerator,
    generator_hypotheses,
    relative_decrease,
    slope_modulus,
)
from hewfl.theory.laws import (
    THEOREMS,
    Case,
    Law,
    Theorem,
    law,
)
from hewfl.theory.master import (
    master_trajectory,
    noiseless_bounds,
    noiseless_coordinate,
    noiseless_rate,
    noisy_bounds,
    noisy_rate,
)
from hewfl.theory.one_step_bound import (
    OneStep,
    advantage,
    branch_sq_radius,
    executable,
    largest_descent_amplitude,
    one_step,
    plain_sq_radius,
    situation,
)
from hewfl.theory.participation import (
    absent_tracking,
    propagated_tracking,
)
from hewfl.theory.pl import (
    Contraction,
    pl_contraction,
    pl_rate,
    pl_step,
    rho_lower,
    safe_amplitude,
    safe_floor,
    safe_rate,
)
from hewfl.theory.plain import (
    PlainCoefficients,
    is_homogeneous,
    plain_advantage,
    plain_coefficients,
    plain_contraction,
    plain_pl_rate,
    plain_rate,
    plain_recursion,
    plain_slope_error,
    plain_step,
    uniform_model_value,
)
from hewfl.theory.recursion import (
    Trajectory,
)
from hewfl.theory.scalar import (
    closed_rate,
    cumulative_gronwall,
    flow,
    flow_excess,
    flow_slope,
    largest_gap,
    largest_sq_gradient,
    linear_rate,
    linear_trajectory,
    printed_scalar_rate,
    scalar_floor,
    scalar_rate,
    scalar_trajectory,
    telescoped,
)
from hewfl.theory.similar_hessians import (
    Closed,
    HigherOrder,
    best_iterate_rate,
    closed,
    common_quadratic_rate,
    curvature_mismatch,
    disagreement,
    higher_order,
    higher_order_step,
    higher_order_trajectory,
)
from hewfl.theory.statement import (
    Bound,
    Hypothesis,
    Rate,
    all_hold,
    at_most,
    below,
)
from hewfl.theory.surrogate import (
    Surrogate,
    surrogate_system,
    surrogate_under,
)
from hewfl.theory.systems import (
    System,
    system,
)
from hewfl.theory.uniform_controller import (
    Uniform,
    uniform,
    uniform_step,
    uniform_tracking_cap,
    uniform_trajectory,
)

__all__ = [
    "THEOREMS",
    "VARIANTS",
    "Bound",
    "BoxSelection",
    "Case",
    "CentralPath",
    "Certificate",
    "Closed",
    "ComparatorCoefficients",
    "Contraction",
    "ControlSet",
    "ConvexGenerator",
    "CorrectedCoefficients",
    "Design",
    "Envelope",
    "ExponentialGenerator",
    "FirstRound",
    "Generator",
    "GivenYoung",
    "HigherOrder",
    "Hypothesis",
    "Law",
    "Noise",
    "OneStep",
    "PlainCoefficients",
    "PostLocal",
    "PowerGenerator",
    "PowerYoung",
    "Product",
    "Promise",
    "QuadraticGenerator",
    "Rate",
    "RoundWork",
    "Selection",
    "Sent",
    "Surrogate",
    "System",
    "Terms",
    "Theorem",
    "Tracking",
    "Trajectory",
    "Uniform",
    "Variant",
    "YoungPair",
    "absent_tracking",
    "advantage",
    "all_hold",
    "at_most",
    "bellman_kernel",
    "bellman_operator",
    "below",
    "best_comparator",
    "best_iterate_rate",
    "box_selection",
    "branch_sq_radius",
    "central_path",
    "central_round_hypotheses",
    "certified_amplitudes",
    "certify",
    "closed",
    "closed_kernel",
    "closed_rate",
    "common_quadratic_rate",
    "communication",
    "comparator_coefficients",
    "comparator_rate",
    "comparator_recursion",
    "corrected_coefficients",
    "corrected_noise",
    "corrected_rate",
    "corrected_recursion",
    "cumulative_gronwall",
    "curvature_mismatch",
    "design",
    "disagreement",
    "effective_amplitude",
    "epsilon_selection",
    "evolution",
    "executable",
    "floor_hypothesis",
    "flow",
    "flow_excess",
    "flow_slope",
    "generator_hypotheses",
    "gradient_step",
    "higher_order",
    "higher_order_step",
    "higher_order_trajectory",
    "is_homogeneous",
    "largest_descent_amplitude",
    "largest_gap",
    "largest_sq_gradient",
    "law",
    "linear_rate",
    "linear_trajectory",
    "master_trajectory",
    "mean_noise",
    "noise_of_mean",
    "noise_optimal",
    "noise_optimal_level",
    "noise_term",
    "noiseless_bounds",
    "noiseless_coordinate",
    "noiseless_rate",
    "noisy_bounds",
    "noisy_contraction",
    "noisy_drift",
    "noisy_floor",
    "noisy_rate",
    "one_step",
    "pathwise_bound",
    "pl_contraction",
    "pl_rate",
    "pl_step",
    "plain_advantage",
    "plain_coefficients",
    "plain_contraction",
    "plain_pl_rate",
    "plain_rate",
    "plain_recursion",
    "plain_slope_error",
    "plain_sq_radius",
    "plain_step",
    "post_local_hypotheses",
    "predictable_tracking",
    "printed_scalar_rate",
    "propagated_tracking",
    "raw_kernel",
    "realised_tracking",
    "relative_decrease",
    "rho_lower",
    "round_work",
    "rounds_to",
    "safe_amplitude",
    "safe_floor",
    "safe_rate",
    "scalar_floor",
    "scalar_rate",
    "scalar_trajectory",
    "server_move",
    "situation",
    "slice_bound",
    "slice_excess",
    "slice_hypotheses",
    "slope_modulus",
    "surrogate_system",
    "surrogate_under",
    "symmetric_exact_hypotheses",
    "system",
    "telescoped",
    "tracking_cap",
    "uniform",
    "uniform_mean_noise",
    "uniform_model_value",
    "uniform_noise_of_mean",
    "uniform_step",
    "uniform_tracking_cap",
    "uniform_trajectory",
    "young_hypothesis",
]
