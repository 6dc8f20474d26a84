"""The problems of the solver benchmark: local-SGD rounds, Gaussian ones, many clients.

Everything is drawn from fixed seeds. Degenerate cases and ties come from
`tests.known_solutions`, where their answers are known.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from tests.known_solutions import (
    Array,
    QPInstance,
    gaussian_instance,
    interior_instance,
    lognormal_horizons,
    sgd_round,
    softmax_round,
)

from hewfl.data import load

SKEWED, NEAR_IID = 0.3, 100.0


@final
@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """An instance and the series it belongs to, for skipping what grew too slow."""

    series: str
    instance: QPInstance


@final
@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One instance as the solvers get it: (G, q, Λ), the shortest row subtracted.

    What a library needs besides, it gets from `problem` or `lifted` inside its timed
    call, as `solve_simplex_qp` does its own scaling inside its call.
    """

    gram: Array
    linear: Array
    curvature: float
    raw: bool = False

    def problem(self) -> tuple[Array, Array]:
        """ΛG and q, the slope counted from the best single client, of size one."""
        G, q, lam = self.gram, self.linear, self.curvature
        if self.raw:
            return lam * G, q
        diagonal = lam * np.diagonal(G)
        c = q - q[int(np.argmin(diagonal / 2 + q))]
        largest = max(float(diagonal.max()), float(np.abs(c).max()))
        scale = 2.0 ** np.floor(np.log2(largest)) if largest > 0 else 1.0
        return G * (lam / scale), c / scale

    def lifted(self) -> tuple[Array, Array]:
        """H + σ11ᵀ, the same problem on the simplex, for codes that need H > 0."""
        H, c = self.problem()
        diagonal = np.diagonal(H)
        return H + (float(np.median(diagonal)) or float(diagonal.mean()) or 1.0), c


def prepare(instance: QPInstance) -> Prepared:
    """Shifted by the shortest row, which is what makes most libraries work at all."""
    D, g, lam = instance.displacements, instance.reference, instance.curvature
    r = D[int(np.argmin(np.einsum("ij,ij->i", D, D)))]
    slope = (g + np.longdouble(lam) * r).astype(np.float64)
    C = D - r
    return Prepared(C @ C.T, C @ slope, lam)


def unprepared(instance: QPInstance) -> Prepared:
    """G and q as they come."""
    return Prepared(instance.gram, instance.linear, instance.curvature, raw=True)


def _steeper(instance: QPInstance, multiple: float) -> QPInstance:
    return dataclasses.replace(
        instance,
        name=f"{instance.name}, {multiple:g}L"
        if multiple != 1
        else f"{instance.name}, L",
        curvature=multiple * instance.curvature,
    )


def digits_round(n: int) -> QPInstance:
    """Local SGD on the handwritten digits, d = 640."""
    digits = load("digits")
    wide = digits.features.astype(np.float64)
    X = digits.features / np.float32(np.sqrt(np.mean(np.sum(wide**2, axis=1))))
    rng = np.random.default_rng([640, n])
    return softmax_round(
        rng,
        (np.asarray(X, np.float32), digits.labels),
        lognormal_horizons(rng, n),
        skew=SKEWED,
        name=f"digits n={n} d=640 skewed",
    )


def gram_cases(*, quick: bool) -> Iterator[Case]:
    """Rounds solved on their Gram matrix, from small to large."""
    sizes = [(5, 400), (20, 8000), (100, 8000)]
    if not quick:
        sizes += [(500, 8000), (1000, 8000), (1000, 400), (2000, 400)]
    for n, d in sizes:
        kinds = {"skewed": SKEWED, "near-iid": NEAR_IID}
        if n >= 1000 and d < n:
            del kinds["near-iid"]  # keeps the whole run below eight minutes
        for label, skew in kinds.items():
            rng = np.random.default_rng([n, d, int(skew)])
            base = sgd_round(rng, n, d // 10, skew=skew)
            base = dataclasses.replace(base, name=f"sgd n={n} d={d} {label}")
            for multiple in (1.0, 10.0):
                yield Case(f"{label} {multiple:g}L", _steeper(base, multiple))
        rng = np.random.default_rng([n, d])
        yield Case("gaussian", gaussian_instance(rng, n, d))
        if n in {20, 100}:
            yield Case("digits", _steeper(digits_round(n), 1.0))


def large_cases() -> Iterator[QPInstance]:
    """n = 10,000 clients, d = 400: the Gram matrix would have 10^8 entries."""
    n, d = 10_000, 400
    base = sgd_round(np.random.default_rng([n, d]), n, d // 10, skew=SKEWED)
    base = dataclasses.replace(base, name=f"sgd n={n} d={d} skewed")
    yield _steeper(base, 1.0)
    yield _steeper(base, 30.0)
    yield gaussian_instance(np.random.default_rng([n, d, 1]), n, d)
    yield interior_instance(np.random.default_rng([n, d, 2]), n, d)


def batch_cases(count: int = 25, n: int = 20) -> list[QPInstance]:
    """Many small rounds of one size, as entries of one engine."""
    return [
        sgd_round(np.random.default_rng([n, entry]), n, 80, skew=SKEWED)
        for entry in range(count)
    ]
