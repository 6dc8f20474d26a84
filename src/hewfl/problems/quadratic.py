"""Quadratic clients with additive noise: every constant of the theory in closed form.

    φ_ij(x) = ½ (x − b_i)ᵀ A_i (x − b_i) + ⟨ξ_ij, x⟩,      Σ_j ξ_ij = 0
    F_i(x)  = ½ (x − b_i)ᵀ A_i (x − b_i)

The samples of a client share its Hessian, so ∇φ_ij − ∇F_i = ξ_ij wherever x is, and
v_i² = (1/m_i) Σ_j ‖ξ_ij‖² exactly, on every ball (erratum E-27).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import array_api_compat as compat
import numpy as np

from hewfl.core.array_types import Float, Float64, Int, Int64
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Ints,
    as_float64,
    invalid,
    nonnegative,
    positive,
    whole,
)
from hewfl.displacements.backend import to_host
from hewfl.problems.array_operations import conform, gather, shares, two_means
from hewfl.problems.problem import Optimum

ROUNDING = 1e-10
"""Tolerated asymmetry, negative curvature and mean noise, over the largest entry."""


@final
@dataclass(frozen=True, eq=False)  # no slots: eigenvalues and x* are cached
class Quadratic:
    """The quadratic problem above.

    Attributes:
        hessians: A_i, shape (n, d, d): symmetric, positive semidefinite, and their
            mean definite. NumPy or torch, like the next two.
        centers: b_i, shape (n, d); b_i minimises F_i.
        noise: ξ_ij, shape (m, d), client by client, of mean zero in every client.
        data_sizes: m_i ≥ 1, shape (n,).

    Raises:
        InvalidInputError: an array breaks a rule above.

    Examples:
        >>> import numpy as np
        >>> from hewfl.problems import random_quadratic
        >>> problem = random_quadratic(seed=0, n=4, d=3)
        >>> at_best = problem.optimum().x[None]
        >>> bool(np.abs(problem.full_gradients(at_best).mean(axis=1)).max() < 1e-12)
        True
    """

    hessians: Any
    centers: Any
    noise: Any
    data_sizes: Ints

    def __post_init__(self) -> None:
        """Check the arrays."""
        _check_shapes(self.hessians, self.centers, self.noise, self.data_sizes)
        A = to_host(self.hessians)
        slack = ROUNDING * np.abs(A).max()
        if (np.abs(A - A.swapaxes(1, 2)) > slack).any():
            worst = np.abs(A - A.swapaxes(1, 2)).max()
            raise invalid("hessians", "symmetric", f"asymmetry {worst:.1e}")
        low = np.linalg.eigvalsh(A)[:, 0].min()
        if low < -slack:
            raise invalid("hessians", "positive semidefinite", f"eigenvalue {low:.1e}")
        if self.strong_convexity <= slack:
            rule = "positive definite on average"
            raise invalid("hessians", rule, f"eigenvalue {self.strong_convexity:.1e}")
        xi = to_host(self.noise)
        mean = np.abs(np.add.reduceat(xi, self.offsets) / self.data_sizes[:, None])
        if mean.max() > ROUNDING * np.abs(xi).max():
            rule = "of mean zero in every client"
            raise invalid("noise", rule, f"mean {mean.max():.1e}")

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.data_sizes)

    @property
    def d(self) -> int:
        """Number of parameters."""
        return int(self.centers.shape[1])

    @property
    def offsets(self) -> Int64[Ints, " n"]:
        """First row of each client's noise."""
        return np.cumsum(self.data_sizes) - self.data_sizes

    @cached_property
    def smoothness(self) -> float:
        """L = max_i λ_max(A_i), the least that holds for every sample loss."""
        return float(np.linalg.eigvalsh(to_host(self.hessians)).max())

    @cached_property
    def strong_convexity(self) -> float:
        """μ = λ_min((1/n) Σ A_i)."""
        mean = to_host(self.hessians).astype(np.float64).mean(axis=0)
        return float(np.linalg.eigvalsh(mean)[0])

    def variance_bounds(self) -> Float64[Array, " n"]:
        """v_i² = (1/m_i) Σ_j ‖ξ_ij‖², the exact variance at every x.

        Returns:
            v_i² of each client.
        """
        sq_norms = (to_host(self.noise).astype(np.float64) ** 2).sum(axis=1)
        return np.add.reduceat(sq_norms, self.offsets) / self.data_sizes

    def heterogeneity(self) -> float:
        """ζ² = (1/n) Σ_i ‖∇F_i(x*)‖².

        Returns:
            ζ²; zero where all clients share a minimiser.
        """
        gradients = to_host(self.full_gradients(self._optimum.x[None, :]))
        return float((gradients**2).sum() / self.n)

    def distance_to_optimum(
        self, anchors: Float[Any, "models d"]
    ) -> Float64[Any, " models"]:
        """Distance ‖x − x*‖ of each model, in float64.

        Args:
            anchors: models, one per row.

        Returns:
            One distance for each model.
        """
        xp = compat.array_namespace(anchors)
        x = xp.astype(anchors, xp.float64)
        away = x - conform(self._optimum.x, x)[None, :]
        return xp.sqrt(xp.sum(away**2, axis=1))

    def minibatch_gradients(
        self,
        models: Float[Any, "models a d"],
        samples: Int[Any, "a b"],
        counts: Int[Any, " a"],
    ) -> Float[Any, "models a d"]:
        """g_i = A_i (y_i − b_i) + (1/b_i) Σ_{j ≤ b_i} ξ_ij."""
        y = conform(models, self.noise)
        xp = compat.array_namespace(y)
        client = gather(self._owner, samples[:, :1], self._owner.dtype)[:, 0]
        A = xp.astype(xp.take(self.hessians, client, axis=0), y.dtype, copy=False)
        b = xp.astype(xp.take(self.centers, client, axis=0), y.dtype, copy=False)
        xi = gather(self.noise, samples, y.dtype)  # a b d, once for all models
        mean_noise = xp.sum(shares(samples, counts, y)[:, :, None] * xi, axis=1)
        return conform(_apply(A, y - b) + mean_noise, models)

    def full_gradients(
        self, anchors: Float[Any, "models d"]
    ) -> Float[Any, "models n d"]:
        """∇F_i(x) = A_i (x − b_i)."""
        return conform(self._gradients(conform(anchors, self.noise))[0], anchors)

    def client_losses(
        self, anchors: Float[Any, "models d"]
    ) -> Float64[Any, "models n"]:
        """F_i(x) = ½ (x − b_i)ᵀ A_i (x − b_i)."""
        x = conform(anchors, self.noise)
        xp = compat.array_namespace(x)
        gradients, away = self._gradients(xp.astype(x, xp.float64))
        return conform(0.5 * xp.sum(gradients * away, axis=2), anchors)

    def sample_losses(
        self, anchors: Float[Any, "models d"], samples: Int[Any, "a b"]
    ) -> Float64[Any, "models a"]:
        """Mean losses ½ (x − b_i)ᵀ A_i (x − b_i) + ⟨ξ̄, x⟩, ξ̄ the samples' mean."""
        x = conform(anchors, self.noise)
        xp = compat.array_namespace(x)
        x = xp.astype(x, xp.float64)
        client = gather(self._owner, samples[:, :1], self._owner.dtype)[:, 0]
        gradients, away = self._gradients(x)
        losses = xp.take(0.5 * xp.sum(gradients * away, axis=2), client, axis=1)
        noise = xp.mean(gather(self.noise, samples, x.dtype), axis=1)  # a d
        return conform(losses + x @ noise.T, anchors)

    def objectives(self, anchors: Float[Any, "models d"]) -> Float64[Any, "models 2"]:
        """(1/n) Σ F_i and Σ m_i F_i/Σ m_i."""
        return two_means(self.client_losses(anchors), self.data_sizes)

    def evaluate(
        self, anchors: Float[Any, "models d"]
    ) -> dict[str, Float64[Any, "models ..."]]:
        """The measure `distance_to_optimum`, ‖x − x*‖."""
        return {"distance_to_optimum": self.distance_to_optimum(anchors)}

    def optimum(self) -> Optimum:
        """Minimiser x* = (Σ A_i)⁻¹ Σ A_i b_i, computed once."""
        return self._optimum

    def pooled_optimum(self) -> Optimum:
        """Minimiser of the pooled mean, (Σ m_i A_i)⁻¹ Σ m_i A_i b_i."""
        return self._minimiser(self.data_sizes / self.data_sizes.sum())

    @cached_property
    def _optimum(self) -> Optimum:
        return self._minimiser(np.full(self.n, 1 / self.n))

    def _minimiser(self, weights: Float64[Array, " n"]) -> Optimum:
        """Minimiser of Σ weights_i F_i, with the norm of its gradient."""
        import scipy.linalg  # noqa: PLC0415 - slow to import

        A = to_host(self.hessians).astype(np.float64)
        b = to_host(self.centers).astype(np.float64)
        H = np.einsum("i,ijk->jk", weights, A)
        factor = scipy.linalg.cho_factor(H)
        x = weights @ b
        # One solve and two refinements: each takes the gradient anew from the data, so
        # that the residual falls to rounding even where H is ill-conditioned.
        for _ in range(3):
            gradient = np.einsum("i,ijk,ik->j", weights, A, x - b)
            x = x - scipy.linalg.cho_solve(factor, gradient)
        gradient = np.einsum("i,ijk,ik->j", weights, A, x - b)
        value = 0.5 * np.einsum("i,ij,ijk,ik->", weights, x - b, A, x - b)
        residual = float(np.linalg.norm(gradient))
        gap = residual**2 / (2 * float(np.linalg.eigvalsh(H)[0]))
        return Optimum(x, float(value), residual, gap)

    def _gradients(self, x: Float[Any, "models d"]) -> tuple[Any, Any]:
        """A_i (x − b_i) and x − b_i for every model and client."""
        xp = compat.array_namespace(x)
        away = x[:, None, :] - xp.astype(self.centers, x.dtype, copy=False)
        return _apply(xp.astype(self.hessians, x.dtype, copy=False), away), away

    @cached_property
    def _owner(self) -> Int[Any, " m"]:
        return conform(np.repeat(np.arange(self.n), self.data_sizes), self.noise)


def _apply(A: Float[Any, "a d d"], x: Float[Any, "models a d"]) -> Any:
    """A_i x_i for every model: one product per client, the models as its rows."""
    xp = compat.array_namespace(x)
    rows = xp.permute_dims(x, (1, 0, 2))  # a models d; A is symmetric
    return xp.permute_dims(rows @ A, (1, 0, 2))


def _check_shapes(hessians: Any, centers: Any, noise: Any, data_sizes: Ints) -> None:
    if hessians.ndim != 3 or 0 in hessians.shape:
        rule, got = "of shape (n, d, d) with n, d ≥ 1", tuple(hessians.shape)
        raise invalid("hessians", rule, got)
    if data_sizes.dtype.kind not in "iu":
        raise invalid("data_sizes", "whole numbers", f"dtype {data_sizes.dtype}")
    n, d = (int(k) for k in hessians.shape[:2])
    m = int(data_sizes.sum())
    shapes = {
        "hessians": (hessians, (n, d, d)),
        "centers": (centers, (n, d)),
        "data_sizes": (data_sizes, (n,)),
        "noise": (noise, (m, d)),
    }
    for name, (array, shape) in shapes.items():
        if tuple(array.shape) != shape:
            raise invalid(name, f"of shape {shape}", tuple(array.shape))
        if not np.isfinite(to_host(array)).all():
            raise invalid(name, "finite", "NaN or infinite entries")
    if (data_sizes < 1).any():
        raise invalid("data_sizes", "at least 1", data_sizes.min())


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
    """A quadratic problem with prescribed constants.

        A_i = Q_i diag(L/κ, …, L) Q_iᵀ,  x* on the unit sphere,
        b_i = x* − A_i⁻¹ζ_i  with  Σ ζ_i = 0  and  (1/n) Σ ‖ζ_i‖² = ζ²,

    so ∇F_i(x*) = ζ_i; the noise is centred and scaled to (1/m_i) Σ_j ‖ξ_ij‖² = v_i².
    The zero model is at distance 1 of x*.

    Args:
        seed: of all random numbers.
        n: clients.
        d: parameters.
        samples: m_i, a number or one per client; at least 2 where v_i > 0.
        smoothness: L > 0, the largest eigenvalue of every A_i.
        conditioning: κ ≥ 1, of every A_i; spectra are geometric. The mean Hessian is
            better conditioned unless it is common. With d = 1, A_i = L.
        heterogeneity: ζ ≥ 0; zero if n = 1. At zero clients share their minimiser.
        noise: v_i ≥ 0, a number or one per client.
        common_hessian: whether all A_i are equal; then ζ = 0 gives F_i = F.

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
