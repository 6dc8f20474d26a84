"""Random quadratic problems whose constants are chosen first."""

import numpy as np
from jaxtyping import Float64

from hewfl.core.checks import (
    Array,
    ArrayLike,
    as_float64,
    invalid,
    nonnegative,
    positive,
    whole,
)
from hewfl.problems.quadratic import Quadratic


def random_quadratic(  # noqa: PLR0913 - one keyword for each constant it sets
    seed: int,
    n: int,
    d: int,
    *,
    samples: ArrayLike = 32,
    smoothness: float = 1.0,
    conditioning: float = 10.0,
    heterogeneity: float = 1.0,
    noise: ArrayLike = 1.0,
    common_hessian: bool = False,
) -> Quadratic:
    """A quadratic problem built backwards from its constants.

        A_i = Q_i diag(L/κ, …, L) Q_iᵀ,  x* on the unit sphere,
        b_i = x* − A_i⁻¹ζ_i  with  Σ ζ_i = 0  and  (1/n) Σ ‖ζ_i‖² = ζ²,

    so ∇F_i(x*) = ζ_i; the noise is centred and scaled to (1/m_i) Σ_j ‖ξ_ij‖² = v_i².
    The zero model is at distance 1 of x*.

    Args:
        seed: of all that is random here.
        n: clients.
        d: parameters.
        samples: m_i, a number or one per client; at least 2 where v_i > 0.
        smoothness: L > 0, the largest eigenvalue of every A_i.
        conditioning: κ ≥ 1, of every A_i; spectra are geometric. The mean Hessian is
            better conditioned unless it is common. With d = 1, A_i = L.
        heterogeneity: ζ ≥ 0; zero if n = 1. At zero clients share their minimiser.
        noise: v_i ≥ 0, a number or one per client.
        common_hessian: whether all A_i are equal; with ζ = 0 then F_i = F.

    Raises:
        InvalidInputError: an argument breaks a rule above.

    Examples:
        >>> problem = random_quadratic(0, n=4, d=3, noise=[0.0, 1.0, 2.0, 3.0])
        >>> problem.variance_bounds().round(12).tolist()
        [0.0, 1.0, 4.0, 9.0]

    Returns:
        The problem.
    """
    seed, n, d = whole("seed", seed, least=0), whole("n", n), whole("d", d)
    if n < 1 or d < 1:
        raise invalid("n, d", "at least 1", (n, d))
    L, kappa = (
        positive("smoothness", smoothness),
        positive("conditioning", conditioning),
    )
    zeta = nonnegative("heterogeneity", heterogeneity)
    if kappa < 1:
        raise invalid("conditioning", "at least 1", conditioning)
    sizes, deviations = (
        _per_client("samples", samples, n),
        _per_client("noise", noise, n),
    )
    if (sizes < 1).any() or (sizes != np.floor(sizes)).any():
        raise invalid("samples", "whole numbers of at least 1", samples)
    if ((sizes < 2) & (deviations > 0)).any():
        raise invalid("samples", "at least 2 where `noise` is positive", samples)
    rng = np.random.default_rng(seed)
    m = sizes.astype(np.int64)
    bases = np.linalg.qr(rng.standard_normal((1 if common_hessian else n, d, d)))[0]
    A = (bases * np.geomspace(L, L / kappa, d)) @ bases.swapaxes(1, 2)
    A = np.broadcast_to(0.5 * (A + A.swapaxes(1, 2)), (n, d, d)).copy()
    x = rng.standard_normal(d)
    x /= np.linalg.norm(x)
    slopes = _scaled(rng.standard_normal((n, d)), zeta if n > 1 else 0.0)
    centers = x - np.linalg.solve(A, slopes[:, :, None])[:, :, 0]
    parts = [
        _scaled(rng.standard_normal((k, d)), v)
        for k, v in zip(m, deviations, strict=True)
    ]
    return Quadratic(A, centers, np.concatenate(parts), m)


def _per_client(name: str, value: ArrayLike, n: int) -> Float64[Array, " n"]:
    array = as_float64(name, value)
    if array.shape not in ((), (n,)):
        raise invalid(name, f"a number or {n} of them", f"shape {array.shape}")
    if (array < 0).any():
        raise invalid(name, "nonnegative", array[array < 0].flat[0])
    return np.broadcast_to(array, (n,))


def _scaled(rows: Float64[Array, "k d"], size: float) -> Float64[Array, "k d"]:
    """The rows centred, then scaled to a root mean square norm of `size`."""
    if size == 0:
        return np.zeros_like(rows)
    centred = rows - rows.mean(axis=0)
    scale = size / float(np.sqrt((centred**2).sum() / len(rows)))
    return np.asarray(scale * centred)
