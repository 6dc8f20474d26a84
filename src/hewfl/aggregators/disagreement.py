"""Weights by inverse variance, the variances read off the clients' disagreement."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from hewfl.aggregators.distances import sq_distances
from hewfl.aggregators.one_step_size import Memoryless
from hewfl.core.round import Decision, Round

FLOOR = 1e-3
"""Smallest variance, over the mean of r. It has no unit, and n hardly matters: clients
of equal variance have σ² = (n − 2)/(2(n − 1)) · mean r, so the floor is 0.4 % of that
for n = 3 and 0.2 % for many. It only keeps weights finite: whom it lifts has nearly all
the weight. Among 3 to 5 clients of equal noise that is 0 of 400 rounds if the noise has
100 dimensions or more; with 10 dimensions 15 %, 5 % and 3 % of rounds for n = 3, 4, 5,
and the squared error of the step is 1.5 to 1.3 times that of equal weights. A floor of
0.1 makes this 1.25, but lets a client of five times the noise have 7 % of the weight
instead of 2 % (n = 3, 1000 dimensions), and one far away pulls a hundred times more."""


@final
@dataclass(frozen=True, slots=True)
class Disagreement(Memoryless):
    """Clients far from all the others weigh less; nothing to tune.

        r_i = Σ_j ‖Δ_i − Δ_j‖² / (n − 2)
        σ_i² = max{r_i − Σ_j r_j/(2(n − 1)),  10⁻³ · mean r}
        w_i = σ_i^{−2} / Σ_j σ_j^{−2}

    A rule of this library. If displacements have one mean and independent noises of
    variance σ_i², then E‖Δ_i − Δ_j‖² = σ_i² + σ_j² for i ≠ j; these equations, summed
    over j, are solved by the second line without its floor. Inverse variances are then
    the weights of the mean with the least error. Where clients have different means
    (unequal data, unequal horizons) their distance to the others counts as noise too.

    Three clients are the fewest that have variances: σ_i² = ⟨Δ_j − Δ_i, Δ_k − Δ_i⟩, so
    one that lies between the two others has none, and all the weight. Two are equally
    far from each other, so they weigh ½ each; one weighs 1; clients that all agree
    weigh alike.

    A client at a distance R far beyond the others gets about 2·10⁻³/n² of the weight
    because of the floor: it is damped, not ignored, and its pull grows with R.

    Attributes:
        smoothness: L > 0.
        step_scale: s > 0; every client takes every step with η = s/L.
    """

    name: ClassVar[str] = "Disagreement"

    def decide(self, round_: Round, state: None) -> tuple[Decision, None]:
        """w_i ∝ σ_i^{−2}; equal weights where there are no variances."""
        n = round_.displacements.n
        equal = np.full(n, 1 / n)
        if n < 3:
            return Decision(equal, "equal weights: too few to have variances"), state
        apart = sq_distances(round_.displacements.products().gram)
        r = apart.sum(axis=1) / (n - 2)
        if r.max() == 0:
            return Decision(equal, "equal weights: all displacements agree"), state
        variances = np.maximum(r - r.sum() / (2 * (n - 1)), FLOOR * r.mean())
        weights = variances.min() / variances
        weights /= weights.sum()
        return Decision(weights, "weights by disagreement"), state
