"""What a theorem is told: L, R and what each client does, for one system or many."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float64

from hewfl.core.checks import (
    Array,
    ArrayLike,
    Mask,
    as_float64,
    broadcast,
    invalid,
    nonnegatives,
    positives,
    wholes,
)
from hewfl.core.records import ClientProfile, ProblemBounds
from hewfl.core.shapes import broadcasting


@final
@dataclass(frozen=True, slots=True, eq=False)
class System:
    """Constants of the objective and of all n clients.

    Leading axes are configurations, so that one call evaluates a statement for all of
    them; the last axis of the clients' fields is the client. Fields are stored as
    float64 arrays, broadcast against each other.

    Attributes:
        smoothness: L > 0, shape (*c).
        radius: R > 0, shape (*c).
        horizon: H_i ≥ 1, whole numbers, shape (*c, n).
        batch_size: b_i ≥ 1, whole numbers, shape (*c, n).
        variance: v_i² ≥ 0 or proxies not below it, shape (*c, n).
    """

    smoothness: ArrayLike
    radius: ArrayLike
    horizon: ArrayLike
    batch_size: ArrayLike
    variance: ArrayLike

    def __post_init__(self) -> None:
        """Refuse what is out of range or empty; store broadcast float64 arrays."""
        L = positives("smoothness", self.smoothness)
        R = positives("radius", self.radius)
        H = wholes("horizon", self.horizon, least=1)
        b = wholes("batch_size", self.batch_size, least=1)
        v2 = nonnegatives("variance", self.variance)
        values = {"smoothness": L[..., None], "radius": R[..., None]}
        values |= {"horizon": H, "batch_size": b, "variance": v2}
        fields = broadcast(values, rule="arrays that broadcast, clients last")
        for name, value in fields.items():
            if not value.size:
                raise invalid(", ".join(fields), "nonempty", value.shape)
            scalar = name in ("smoothness", "radius")
            object.__setattr__(self, name, value[..., 0] if scalar else value)

    @property
    def n(self) -> int:
        """Number of clients."""
        return int(np.asarray(self.horizon).shape[-1])

    @property
    def L(self) -> Float64[Array, "*c"]:  # noqa: N802 - the paper's letter
        """Smoothness L."""
        return np.asarray(self.smoothness)

    @property
    def R(self) -> Float64[Array, "*c"]:  # noqa: N802 - the paper's letter
        """Radius R."""
        return np.asarray(self.radius)

    @property
    def cap(self) -> Float64[Array, "*c"]:
        """f̄ = LR²/2, the largest gap on the ball (lem:gap)."""
        return np.asarray(self.L * self.R * self.R / 2)

    @property
    def noise(self) -> Float64[Array, "*c n"]:
        """M_i = v_i²/(H_i b_i)."""
        H, b = np.asarray(self.horizon), np.asarray(self.batch_size)
        return np.asarray(np.asarray(self.variance) / (H * b))


@broadcasting
def system_of(profiles: ClientProfile, bounds: ProblemBounds, *, n: int = 1) -> System:
    """The system of the solvers' records; n copies where a profile is scalar.

    Args:
        profiles: H_i, b_i and v_i².
        bounds: L and R.
        n: how many clients, where a profile is one number for all.

    Returns:
        The system of one configuration.

    Raises:
        InvalidInputError: an argument is out of range or does not broadcast.
    """
    n = int(wholes("n", n, least=1))
    fields = (profiles.horizon, profiles.batch_size, profiles.variance)
    arrays = np.broadcast_arrays(*(as_float64("profiles", f) for f in fields))
    H, b, v2 = (np.broadcast_to(a, (n,)) if a.ndim == 0 else a for a in arrays)
    return System(bounds.smoothness, bounds.radius, H, b, v2)


def client_mask(system: System, active: ArrayLike) -> Bool[Mask, "*c n"]:
    """Which clients take part: booleans, clients last.

    A number is no mask: neither a count of clients nor a list of their indices.

    Raises:
        InvalidInputError: not booleans, or not one for each client.
    """
    S = np.asarray(active)
    if S.dtype != np.bool_ or S.shape[-1:] != (system.n,):
        rule = f"booleans, one for each of {system.n} clients"
        raise invalid("active", rule, f"{S.dtype} of shape {S.shape}")
    return S
