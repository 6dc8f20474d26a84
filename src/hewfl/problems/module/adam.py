"""Adam's direction, for clients whose local optimiser is AdamW.

    m ← β m + (1 − β) u,   v ← γ v + (1 − γ) u²,   a = m̂/(√v̂ + ε)

with m̂ = m/(1 − βᵏ) and v̂ = v/(1 − γᵏ) in the k-th step of a branch. Moments start at
zero in every round: clients keep nothing from one to the next.
"""

from typing import Any

from jaxtyping import Float

BETA, GAMMA, GUARD = 0.9, 0.999, 1e-8
"""β, γ and ε: the defaults of `torch.optim.AdamW`."""


def adapted(
    u: Float[Any, "*models d"],
    first: Float[Any, "*models d"],
    second: Float[Any, "*models d"],
    step: int | Float[Any, ""],
) -> Float[Any, "*models d"]:
    """Adam's direction a from u; the moments m and v change in place.

    Args:
        u: the direction of plain SGD, without weight decay.
        first: m.
        second: v.
        step: k ≥ 1; a tensor where a CUDA graph is to hold the step.
    """
    first.mul_(BETA).add_(u, alpha=1 - BETA)
    second.mul_(GAMMA).addcmul_(u, u, value=1 - GAMMA)
    spread = (second / (1 - GAMMA**step)).sqrt() + GUARD
    return first / (1 - BETA**step) / spread
