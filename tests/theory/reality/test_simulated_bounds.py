"""Monte-Carlo runs through the engine against the recursions, round by round.

Quadratics have exact L, v_i², x* and F*; a logistic regression has proven bounds of L
and v_i² that hold at every model. R is the largest distance of an anchor from x* that
was seen, the strictest choice (E-27), and random like the means. A mean counts as above
a bound only by more than three standard errors.

The recursions are iterated from the start; since those soon reach their cap (E-09), a
single step is also asked for from what was measured before every round.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import numpy as np
import pytest

from hewfl import (
    Federation,
    FixedSteps,
    HewControl,
    HewFixed,
    HewHet,
    HewHom,
    ProblemBounds,
    Scaffold,
    simulate,
)
from hewfl.control.certificate import VARIANTS, Variant
from hewfl.core.validation import Array
from hewfl.problems import (
    Quadratic,
    Softmax,
    random_quadratic,
    softmax_common_pool,
    softmax_from_arrays,
)
from hewfl.simulation.audit import control_audit, pathwise_audit
from hewfl.simulation.rounds import Step
from hewfl.theory import System
from hewfl.theory.appendix.lemmas import pl_step
from hewfl.theory.appendix.surrogate_controls import surrogate_under
from hewfl.theory.post_local import (
    PostLocal,
    heterogeneous_coefficients,
    homogeneous_coefficients,
)
from hewfl.theory.statement import all_hold
from hewfl.theory.uniform import pl_rate, uniform_coefficients

pytestmark = pytest.mark.unchecked
N, ROUNDS, SEEDS = 4, 5, 16
UNEQUAL = (1, 2, 4, 8)
BATCH = {"quadratic": 2, "logistic": 32}
ROUNDING = 1e-12
kinds = pytest.mark.parametrize("kind", list(BATCH))
two_variants = pytest.mark.parametrize("variant", ["paper", "sharp"])
variants = pytest.mark.parametrize("variant", VARIANTS)


@cache
def problem_of(kind: str, homogeneous: bool) -> Quadratic | Softmax:
    if kind == "quadratic":
        return random_quadratic(
            1,
            N,
            3,
            samples=8,
            heterogeneity=0.0 if homogeneous else 0.3,
            noise=[0.01, 0.03, 0.1, 0.005],
            common_hessian=homogeneous,
        )
    rng = np.random.default_rng(2)
    X, shift = rng.normal(size=(40, 3)), rng.normal(size=3)
    y = (X @ shift + rng.normal(size=40) > 0).astype(np.int64)
    if homogeneous:
        return softmax_common_pool(X, y, N, l2=0.1)
    order = np.argsort(X[:, 0])
    return softmax_from_arrays(X, y, np.split(order, N), l2=0.1)


# what was measured


def low(samples: Array) -> Array:
    """The mean over the seeds less three standard errors, and less its rounding."""
    spread = samples.std(0, ddof=1) / np.sqrt(len(samples))
    return np.asarray((samples.mean(0) - 3 * spread) * (1 - ROUNDING))


def high(samples: Array) -> Array:
    """The mean over the seeds and three standard errors."""
    spread = samples.std(0, ddof=1) / np.sqrt(len(samples))
    return np.asarray((samples.mean(0) + 3 * spread) * (1 + ROUNDING))


@final
@dataclass(frozen=True, slots=True)
class Runs:
    """All seeds of a comparison.

    Attributes:
        system: L, v_i², and R, the largest distance.
        gap: F(x_t) − F*, shape (seeds, rounds + 1, entries).
        observed: by name, shape (seeds, rounds, entries); NaN where there is nothing.
    """

    system: System
    gap: Array
    observed: Mapping[str, Array]

    @property
    def start(self) -> tuple[float, float]:
        """(U_0, Q_0): x_0 is fixed, and c_i,0 is a minibatch gradient there."""
        v2, b = np.asarray(self.system.variance), np.asarray(self.system.batch_size)
        return float(self.gap[0, 0, 0]), float((v2 / b).max())

    def tracking(self, entry: int) -> Array:
        """‖c_i − ∇F_i(x_t)‖² before every round, shape (seeds, rounds, n)."""
        errors = [self.observed[f"error {i}"][..., entry] for i in range(N)]
        return np.stack(errors, axis=-1)

    def before(self, entry: int) -> tuple[Array, Array]:
        """(g_t, q_t) that rounds 0 to T − 2 began with, at most."""
        g, q = high(self.gap[:, :-2, entry]), high(self.tracking(entry)[:, :-1]).max(-1)
        return np.minimum(g, self.system.cap), q

    def after(self, entry: int) -> tuple[Array, Array]:
        """(g_t, q_t) that they ended with, at least."""
        g, q = low(self.gap[:, 1:-1, entry]), low(self.tracking(entry)[:, 1:]).max(-1)
        return g, q


def errors(step: Step) -> dict[str, float]:
    """Tracking errors before the round, where there are control variates."""
    variates = getattr(step.state, "variates", step.state)
    if variates is None:
        return {}
    gradients = step.problem.full_gradients(step.round.anchor[None])[0]
    result = ((variates.clients - gradients) ** 2).sum(-1)
    return {f"error {i}": float(e) for i, e in enumerate(result)}


def play(
    kind: str,
    problem: Quadratic | Softmax,
    horizons: int | Sequence[int],
    entries: Sequence[Any],
    *observers: Callable[[Step], Mapping[str, float]],
    rounds: int = ROUNDS,
) -> Runs:
    b, best = BATCH[kind], problem.optimum()

    def distance(step: Step) -> dict[str, float]:
        after = step.round.anchor + step.move
        return {"distance": float(np.linalg.norm(after - best.x))}

    gaps, notes = [], []
    for seed in range(SEEDS):
        trace = simulate(
            problem,
            Federation(FixedSteps(horizons), b),
            entries,
            rounds=rounds,
            seed=seed,
            observers=[errors, distance, *observers],
        )
        every = range(len(entries))
        gaps.append([trace.curve(k, "objective") - best.objective for k in every])
        notes.append([[r.observed for r in trace.of(k)[1:]] for k in every])
    names = {name for entry in notes[0] for note in entry for name in note}
    observed = {
        name: np.array(
            [[[n.get(name, np.nan) for n in entry] for entry in run] for run in notes]
        ).swapaxes(1, 2)
        for name in names
    }
    R = max(float(np.linalg.norm(best.x)), float(observed["distance"].max()))
    H, v2 = np.broadcast_to(horizons, N), problem.variance_bounds()
    system = System(problem.smoothness, R, H, b, v2)
    return Runs(system, np.maximum(np.array(gaps).swapaxes(1, 2), 0), observed)


# Algorithm 2

AMPLITUDES, RATIO = (0.02, 0.24), 2.0


@cache
def corrected_runs(kind: str) -> Runs:
    problem = problem_of(kind, False)
    L = problem.smoothness
    entries = [HewHet(L, theta, RATIO) for theta in AMPLITUDES]
    fixed = HewFixed(total=AMPLITUDES[1] / L, variates="gradient", power=0.0)
    return play(kind, problem, UNEQUAL, [*entries, fixed], pathwise_audit)


@kinds
@two_variants
@pytest.mark.parametrize("entry", range(len(AMPLITUDES)))
def test_corrected_runs_stay_below_their_recursion(
    kind: str, variant: Variant, entry: int
) -> None:
    """th:realized-het-global with unequal horizons."""
    runs = corrected_runs(kind)
    controls = PostLocal(AMPLITUDES[entry], RATIO * runs.system.L)
    k = heterogeneous_coefficients(runs.system, controls, variant=variant)
    path = k.trajectory(runs.start, ROUNDS)
    assert all_hold(path.hypotheses)
    assert (low(runs.gap[..., entry]) <= path.gap).all()
    assert (low(runs.tracking(entry)) <= path.tracking[:-1, None]).all()
    step = k.trajectory(runs.before(entry), 1)
    g, q = runs.after(entry)
    assert (g <= step.gap[1]).all()
    assert (q <= step.tracking[1]).all()
    assert (step.gap[1] < runs.system.cap).any()  # it says something
    assert np.nansum(runs.observed["certificate_violated"]) == 0


@kinds
@variants
def test_fixed_weights_stay_below_the_surrogate(kind: str, variant: Variant) -> None:
    """th:sur-majorant for uniform weights and one amplitude."""
    runs, entry = corrected_runs(kind), len(AMPLITUDES)
    controls = np.full(N, 1 / N), np.full(N, AMPLITUDES[1])
    path = surrogate_under(runs.system, controls, runs.start, ROUNDS, variant=variant)
    assert all_hold(path.hypotheses)
    assert (low(runs.gap[..., entry]) <= path.gap).all()
    assert (low(runs.tracking(entry)) <= path.tracking[:-1, None]).all()
    step = surrogate_under(
        runs.system, controls, runs.before(entry), 1, variant=variant
    )
    g, q = runs.after(entry)
    assert (g <= step.gap[1]).all()
    assert (q <= step.tracking[1]).all()
    assert (step.gap[1] < runs.system.cap).any()


@kinds
def test_experiments_keep_their_pathwise_certificate(kind: str) -> None:
    """Amplitudes tuned in experiments leave every theorem but this one (E-02)."""
    problem = problem_of(kind, False)
    entries = [rule(problem.smoothness, 4.0, 1.1) for rule in (HewHet, HewHom)]
    runs = play(kind, problem, UNEQUAL, entries, pathwise_audit, rounds=2)
    assert (runs.observed["certificate_violated"] == 0).all()


# Algorithm 3


@cache
def plain_runs(kind: str) -> Runs:
    problem = problem_of(kind, True)
    L = problem.smoothness
    entries = [HewHom(L, theta, RATIO) for theta in AMPLITUDES]
    fixed = HewFixed(total=AMPLITUDES[1] / L, power=0.0)
    return play(kind, problem, UNEQUAL, [*entries, fixed], pathwise_audit)


@kinds
@two_variants
@pytest.mark.parametrize("entry", [0, 1, 2])
def test_plain_runs_stay_below_their_recursion(
    kind: str, variant: Variant, entry: int
) -> None:
    """th:realized-hom-bellman; its proof compares with uniform weights, the third."""
    runs = plain_runs(kind)
    controls = PostLocal((*AMPLITUDES, AMPLITUDES[1])[entry], RATIO * runs.system.L)
    k = homogeneous_coefficients(runs.system, controls, variant=variant)
    assert all_hold(k.hypotheses)
    path = k.trajectory((runs.start[0], 0.0), ROUNDS).gap
    assert (low(runs.gap[..., entry]) <= path).all()
    bound = k.step((high(runs.gap[:, :-1, entry]), 0.0))[0]
    assert (low(runs.gap[:, 1:, entry]) <= bound).all()
    assert (bound < runs.system.cap).any()
    assert np.nansum(runs.observed["certificate_violated"]) == 0


# uniform controller

H, STEPS = 4, (0.01, 0.058, 0.8)


@cache
def uniform_runs(kind: str) -> Runs:
    problem = problem_of(kind, False)
    L = problem.smoothness
    ours = [
        HewFixed(total=theta / L, variates="gradient", power=0.0) for theta in STEPS
    ]
    same = Scaffold((STEPS[1] / H) / L, start="gradient")
    return play(kind, problem, H, [*ours, same])


@kinds
@pytest.mark.parametrize(
    ("variant", "entry"),
    [("paper", 0), ("paper", 1)] + [(v, k) for v in VARIANTS[1:] for k in range(3)],
)
def test_uniform_runs_stay_below_their_recursion(
    kind: str, variant: Variant, entry: int
) -> None:
    """th:direct-bellman, prop:direct-q and th:pl-global."""
    runs, problem = uniform_runs(kind), problem_of(kind, False)
    mu = problem.l2 if isinstance(problem, Softmax) else problem.strong_convexity
    k = uniform_coefficients(runs.system, STEPS[entry], variant=variant)
    assert all_hold(k.recursion.hypotheses)
    path = k.recursion.trajectory(runs.start, ROUNDS)
    assert (low(runs.gap[..., entry]) <= path.gap).all()
    assert (low(runs.tracking(entry)) <= path.tracking[:-1, None]).all()
    rate = pl_rate(k, mu, runs.start, np.arange(ROUNDS + 1))
    assert (low(runs.gap[..., entry]) <= rate.value).all()
    (g, q), (bound, track) = runs.after(entry), k.recursion.step(runs.before(entry))
    assert (g <= bound).all()
    assert (q <= track).all()
    assert (g <= pl_step(k, mu, runs.before(entry))).all()
    assert (bound < runs.system.cap).any()


@kinds
def test_scaffold_with_equal_work_is_the_uniform_controller(kind: str) -> None:
    runs = uniform_runs(kind)
    np.testing.assert_allclose(runs.gap[..., 3], runs.gap[..., 1], rtol=1e-9)


# Algorithm 1


@variants
def test_the_controller_keeps_its_own_promise(variant: Variant) -> None:
    """th:sur-system and th:predictive-majorant, with the constants it was given."""
    kind = "quadratic"
    problem = problem_of(kind, False)
    v2, R = problem.variance_bounds(), 2 * float(np.linalg.norm(problem.optimum().x))
    bounds = ProblemBounds(problem.smoothness, R, 1e-3, 0.3)
    given = bounds, tuple(float(v) for v in v2), variant
    chi = float(v2.max() / BATCH[kind])
    entries = [HewControl(*given, "surrogate", chi), HewControl(*given, "oracle")]

    def upper(step: Step) -> dict[str, float]:
        known = step.state.upper
        return {"U": known.gap, "Q": float(known.tracking.max())}

    audit = control_audit(problem)
    runs = play(kind, problem, UNEQUAL, entries, upper, audit, rounds=3)
    assert runs.system.R <= R
    U, Q = (runs.observed[name][..., 0] for name in "UQ")
    assert (np.ptp(U, axis=0) == 0).all()  # a schedule, the same in all runs
    assert (low(runs.gap[:, :-1, 0]) <= U[0]).all()
    assert (low(runs.tracking(0)) <= Q[0][:, None]).all()
    excess = runs.observed["next_gap"] - runs.observed["certified_gap"]
    spread = excess.std(0, ddof=1) / np.sqrt(SEEDS)
    assert (excess.mean(0) <= 3 * spread).all()
