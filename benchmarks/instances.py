"""The problems of the solver benchmark: local-SGD rounds, Gaussian ones, many clients.

Everything is drawn from fixed seeds. Degenerate cases and ties come from
`tests.problems`, where their answers are known.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
from tests.problems import (
    Array,
    QPInstance,
    gaussian_instance,
    interior_instance,
    lognormal_horizons,
    sgd_round,
    softmax_round,
)

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
    """One instance as the solvers get it.

    The shortest row is subtracted before the Gram matrix is formed. `hessian` and
    `slope` are the same problem for the libraries, with the slope counted from the best
    single client and everything divided by a power of two near the largest entry;
    `lifted` is for codes that need a positive definite matrix.
    """

    gram: Array
    linear: Array
    curvature: float
    hessian: Array
    slope: Array
    lifted: Array


def _lift(hessian: Array) -> Array:
    """H + σ11ᵀ, the same problem on the simplex, for codes that need H > 0."""
    diagonal = np.diag(hessian)
    return hessian + (float(np.median(diagonal)) or float(diagonal.mean()) or 1.0)


def prepare(instance: QPInstance) -> Prepared:
    """Shifted and scaled, which is what makes most libraries work at all."""
    D, g, lam = instance.displacements, instance.reference, instance.curvature
    r = D[int(np.argmin(np.einsum("ij,ij->i", D, D)))]
    C = D - r
    G, q = C @ C.T, C @ (g + lam * r)
    H, c = lam * G, q - q[int(np.argmin(lam * np.diag(G) / 2 + q))]
    largest = max(float(np.abs(H).max()), float(np.abs(c).max()))
    scale = 2.0 ** np.floor(np.log2(largest)) if largest > 0 else 1.0
    H, c = H / scale, c / scale
    return Prepared(G, q, lam, H, c, _lift(H))


def unprepared(instance: QPInstance) -> Prepared:
    """G and q as they come."""
    G, q, lam = instance.gram, instance.linear, instance.curvature
    return Prepared(G, q, lam, lam * G, q, _lift(lam * G))


def _steeper(instance: QPInstance, multiple: float) -> QPInstance:
    return dataclasses.replace(
        instance,
        name=f"{instance.name}, {multiple:g}L"
        if multiple != 1
        else f"{instance.name}, L",
        curvature=multiple * instance.curvature,
    )


def digits_round(n: int) -> QPInstance:
    """Local SGD on the handwritten digits of scikit-learn, d = 640."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 -- only this case needs it

    X, labels = load_digits(return_X_y=True)
    X = np.asarray(X, np.float32) / np.float32(np.sqrt(np.mean(np.sum(X**2, axis=1))))
    rng = np.random.default_rng([640, n])
    return softmax_round(
        rng,
        (X, np.asarray(labels, np.int64)),
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
    """Many small rounds of one size, as lanes of one engine."""
    return [
        sgd_round(np.random.default_rng([n, lane]), n, 80, skew=SKEWED)
        for lane in range(count)
    ]
