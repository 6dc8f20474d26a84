"""Simplex problems whose answer was chosen first, and a judge that trusts no solver.

Every instance is  min over w ∈ Δ_n of  ⟨g, Dᵀw⟩ + (Λ/2) ‖Dᵀw‖²,  with one row of D per
client. Most are built backwards: pick the weights and the multipliers, then the slope
g that makes the optimality conditions hold. Two moves keep the answer known:

- `shifted`: a vector taken off every row and handed to the slope changes nothing;
- repeating rows: the least-norm answer shares the weight of a row among its copies.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Extended = NDArray[np.longdouble]

SGD_BATCH = 8
SGD_SHARD = 64  # samples a client holds
SGD_WARMUP = 2  # full gradient steps that lead to the common model
SGD_STEP = 0.25  # local step size times the smoothness constant


@final
@dataclass(frozen=True, slots=True, eq=False)
class QPInstance:
    """One post-local round.

    Attributes:
        name: unique within its list.
        displacements: D, one row per client, float64.
        reference: g.
        curvature: Λ.
        weights: the least-norm minimiser, where the construction tells it.
        tolerance: error, relative to the largest weight, that rounding of the data and
            of a float64 Gram matrix excuses.
    """

    name: str
    displacements: Array
    reference: Array
    curvature: float
    weights: Array | None = None
    tolerance: float = 1e-10

    @property
    def n(self) -> int:
        """Number of clients."""
        return int(self.displacements.shape[0])

    @property
    def gram(self) -> Array:
        """G = D Dᵀ, as it comes."""
        return self.displacements @ self.displacements.T

    @property
    def linear(self) -> Array:
        """q = D g, as it comes."""
        return self.displacements @ self.reference


# ----------------------------------------------------------------------- the judge


def _shifted_data(
    instance: QPInstance, weights: Array
) -> tuple[Extended, Extended, Extended, Extended]:
    """C = D − 1rᵀ, g + Λr, Cᵀw and w, in extended precision; r is the shortest row."""
    D = instance.displacements.astype(np.longdouble)
    r = D[int(np.argmin(np.einsum("ij,ij->i", D, D)))]
    C = D - r
    w = np.maximum(np.asarray(weights).astype(np.longdouble), 0)
    w = w / w.sum()
    slope = instance.reference.astype(np.longdouble) + instance.curvature * r
    return C, slope, w @ C, w


def _ratio(numerator: Extended, denominator: Extended) -> float:
    """max of numerator / denominator, where 0/0 is 0."""
    tiny = denominator == 0
    if (numerator[tiny] > 0).any():
        return math.inf
    return float(np.max(numerator / np.where(tiny, 1, denominator)))


def relative_gap(instance: QPInstance, weights: Array) -> float:
    """Frank-Wolfe gap from the data in 80-bit arithmetic, free of units.

        max_i ⟨h, x − d_i⟩ / (Λ max‖c_i‖² + max q − min q),   h = g + Λx,  x = Dᵀw,

    with c_i = d_i − r, q = C(g + Λr) and r the shortest row. Weights are clipped at
    zero and renormalised first, so feasibility needs its own test.
    """
    if not np.isfinite(weights).all():
        return math.inf
    C, slope, x, _ = _shifted_data(instance, weights)
    lam = np.longdouble(instance.curvature)
    h = slope + lam * x
    gap = np.max((x - C) @ h)
    q = C @ slope
    scale = lam * np.max(np.einsum("ij,ij->i", C, C)) + q.max() - q.min()
    return _ratio(np.atleast_1d(gap), np.atleast_1d(scale))


def componentwise_gap(instance: QPInstance, weights: Array) -> float:
    """Largest violation of optimality, each in the units of its own column.

        max_i (ν − ∇_i) / e_i,   e_i = |c_i| + √H_ii ρ + Σ_j w_j |c_j| + ρ²,

    with ∇ = Hw + c, ν = wᵀ∇, ρ = Σ_j w_j √H_jj on the shifted data H = ΛCCᵀ and c = q
    less its entry at argmin ½H_ii + q_i. One long column cannot hide wrong weights
    among the ordinary ones here, as it can in `relative_gap`.
    """
    if not np.isfinite(weights).all():
        return math.inf
    C, slope, x, w = _shifted_data(instance, weights)
    lam = np.longdouble(instance.curvature)
    violation = (x - C) @ (slope + lam * x)
    diagonal = lam * np.einsum("ij,ij->i", C, C)
    q = C @ slope
    c = np.abs(q - q[int(np.argmin(diagonal / 2 + q))])
    rho = w @ np.sqrt(diagonal)
    e = c + np.sqrt(diagonal) * rho + w @ c + rho**2
    return _ratio(violation, np.asarray(e))


# --------------------------------------------------------- moves that keep the answer


def shifted(instance: QPInstance, vector: Array) -> QPInstance:
    """D − 1rᵀ and g + Λr: the same problem up to a constant, rounding aside."""
    return dataclasses.replace(
        instance,
        displacements=instance.displacements - vector,
        reference=instance.reference + instance.curvature * vector,
    )


def with_reference(instance: QPInstance, reference: Array) -> QPInstance:
    """The same answer with the slope g replaced, by a shift of the rows."""
    moved = shifted(instance, (reference - instance.reference) / instance.curvature)
    return dataclasses.replace(moved, reference=np.array(reference))


def repeated(instance: QPInstance, copies: NDArray[np.int64]) -> QPInstance:
    """Row i appears `copies[i]` times; its weight is shared evenly."""
    weights = instance.weights
    if weights is not None:
        weights = np.repeat(weights / copies, copies)
    D = np.repeat(instance.displacements, copies, axis=0)
    return dataclasses.replace(instance, displacements=D, weights=weights)


def permuted(instance: QPInstance, order: NDArray[np.int64]) -> QPInstance:
    """Clients in another order."""
    weights = None if instance.weights is None else instance.weights[order]
    D = np.ascontiguousarray(instance.displacements[order])
    return dataclasses.replace(instance, displacements=D, weights=weights)


def rescaled(
    instance: QPInstance, *, data: float = 1.0, slope: float = 1.0, bend: float = 1.0
) -> QPInstance:
    """D, g and Λ multiplied; the answer is dropped unless the problem only scales."""
    same = math.isclose(slope, data * bend, rel_tol=1e-15)
    return dataclasses.replace(
        instance,
        displacements=instance.displacements * data,
        reference=instance.reference * slope,
        curvature=instance.curvature * bend,
        weights=instance.weights if same else None,
    )


def named(instance: QPInstance, name: str, tolerance: float = 1e-10) -> QPInstance:
    """The same instance under another name."""
    return dataclasses.replace(instance, name=name, tolerance=tolerance)


# ---------------------------------------------------------------- chosen minimisers


def dyadic_weights(rng: np.random.Generator, n: int, support: int) -> Array:
    """Weights on a random support: multiples of a power of two, sum exactly one."""
    grid = 2 ** math.ceil(math.log2(8 * support))
    cuts = np.sort(rng.choice(grid - 1, size=support - 1, replace=False) + 1)
    parts = np.diff(np.concatenate(([0], cuts, [grid])))
    weights = np.zeros(n)
    weights[rng.choice(n, size=support, replace=False)] = parts / grid
    return weights


def constructed_instance(
    rng: np.random.Generator,
    n: int,
    d: int,
    support: int,
    *,
    curvature: float = 1.0,
    level: float = 0.0,
) -> QPInstance:
    """A problem whose unique minimiser was chosen; optimality holds exactly in float64.

    Pick w, multipliers m (zero on the support) and h. Rows lie on a coarse binary grid
    with their first entry set so that ⟨d_i, h⟩ = level + m_i; then g = h − Λ Dᵀw.
    Unique because support ≤ d rows on one hyperplane are affinely independent.
    """
    if not 1 <= support <= min(n, d):
        message = f"support must lie in 1..min(n, d); got {support}"
        raise ValueError(message)
    w = dyadic_weights(rng, n, support)
    m = np.where(w > 0, 0.0, np.round(rng.uniform(0.05, 1.0, n) * 256) / 256)
    h = np.round(rng.standard_normal(d) / math.sqrt(d) * 1024) / 1024
    h[0] = 1.0
    D = np.round(rng.standard_normal((n, d)) * 256) / 256
    D[:, 0] = level + m - D[:, 1:] @ h[1:]
    g = h - curvature * (w @ D)
    return QPInstance(f"constructed n={n} d={d} s={support}", D, g, curvature, w)


def interior_instance(
    rng: np.random.Generator, n: int, d: int, *, spread: float = 0.7
) -> QPInstance:
    """Gaussian rows, n > d + 1, whose hull contains the target −g/Λ: many ties.

    The least-norm weights with given Dᵀw and sum are those of the form (Dy + t1)₊, and
    that is how they are chosen; a larger spread puts more of them at zero.
    """
    D = rng.standard_normal((n, d))
    w = np.maximum(1 + spread * (D @ rng.standard_normal(d)) / math.sqrt(d), 0)
    w /= w.sum()
    name = f"gaussian n={n} d={d}, target inside"
    return QPInstance(name, D, -(w @ D), 1.0, w)


def gaussian_instance(
    rng: np.random.Generator, n: int, d: int, *, pull: float = 1.0
) -> QPInstance:
    """Gaussian rows and slope; the answer is not known in advance.

    `pull` is the length of the target −g/Λ over the typical length √d of a row.
    """
    D = rng.standard_normal((n, d))
    g = pull * rng.standard_normal(d)
    return QPInstance(f"gaussian n={n} d={d} pull={pull:g}", D, g, 1.0)


# ------------------------------------------------------------------ degenerate cases


def _long_row(rng: np.random.Generator, factor: float) -> QPInstance:
    """A row `factor` times too long that still carries weight, about 1/factor."""
    base = constructed_instance(rng, 20, 50, 12)
    assert base.weights is not None
    h = base.reference + base.weights @ base.displacements
    scale = np.ones(20)
    scale[int(np.argmax(base.weights))] = factor
    w = base.weights / scale
    w /= w.sum()
    D = base.displacements * scale[:, None]
    return QPInstance("", D, h - w @ D, 1.0, w)


def _short_row(rng: np.random.Generator, factor: float) -> QPInstance:
    """A row `factor` times shorter than the rest, with an ordinary weight."""
    base = constructed_instance(rng, 20, 50, 12)
    assert base.weights is not None
    h = base.reference + base.weights @ base.displacements
    D = base.displacements.copy()
    D[int(np.argmax(base.weights))] *= factor
    return QPInstance("", D, h - base.weights @ D, 1.0, base.weights)


def _one_many_times(rng: np.random.Generator) -> QPInstance:
    base = constructed_instance(rng, 20, 50, 12)
    assert base.weights is not None
    copies = np.ones(20, np.int64)
    copies[int(np.argmax(base.weights))] = 31
    return repeated(base, copies)


def _half_zero(rng: np.random.Generator) -> QPInstance:
    base = constructed_instance(rng, 11, 50, 6)
    assert base.weights is not None
    copies = np.ones(11, np.int64)
    heaviest = int(np.argmax(base.weights))
    copies[heaviest] = 10
    return repeated(shifted(base, base.displacements[heaviest]), copies)


def _vertex(instance: QPInstance) -> QPInstance:
    """The answer of a problem whose linear part decides: all on the smallest slope."""
    w = np.zeros(instance.n)
    w[int(np.argmin(instance.linear))] = 1.0
    return dataclasses.replace(instance, weights=w)


def _cross_polytope(rng: np.random.Generator, half: int, spread: float) -> QPInstance:
    """Rows ±e_k; least-norm weights 1/2k ± t/2 for a target t with |t| < 1/k."""
    target = spread * rng.uniform(-1, 1, half) / half
    D = np.concatenate([np.eye(half), -np.eye(half)])
    w = np.concatenate([1 / half + target, 1 / half - target]) / 2
    return QPInstance("", D, -target, 1.0, w)


def _collinear(rng: np.random.Generator, *, inside: bool) -> QPInstance:
    """Rows t_i u. Inside: w = 1/n + (τ − t̄)(t_i − t̄)/Σ(t − t̄)². Outside: an end."""
    n = 20
    t = rng.permutation(np.linspace(-2, 3, n))
    u = rng.standard_normal(30)
    centred = t - t.mean()
    if inside:
        target = t.mean() + 0.1
        w = 1 / n + 0.1 * centred / (centred @ centred)
    else:
        target = t.max() + 1.0
        w = np.where(t == t.max(), 1.0, 0.0)
    return QPInstance("", np.outer(t, u), -target * u, 1.0, w)


def _near_duplicates(rng: np.random.Generator) -> QPInstance:
    base = repeated(constructed_instance(rng, 20, 50, 12), np.full(20, 2))
    D = base.displacements + 1e-9 * rng.standard_normal((40, 50))
    return dataclasses.replace(base, displacements=D, weights=None)


def degenerate_instances(seed: int = 20) -> list[QPInstance]:
    """The 23 cases on which one solver or another was found to fail."""
    rng = np.random.default_rng(seed)
    base = constructed_instance(rng, 20, 50, 12)
    g = rng.standard_normal(50)
    weak = with_reference(base, 1e-12 * g)  # the quadratic part decides
    same = np.tile(rng.standard_normal(30), (20, 1))
    one = rng.standard_normal((1, 30))
    common = 1e4 * rng.standard_normal(50)
    uniform = np.full(20, 1 / 20)
    return [
        named(repeated(base, np.full(20, 3)), "each column three times"),
        named(_one_many_times(rng), "one column 31 times"),
        QPInstance("all identical", same, rng.standard_normal(30), 1.0, uniform),
        QPInstance("all zero", np.zeros((20, 30)), np.ones(30), 1.0, uniform),
        named(_half_zero(rng), "half zero"),
        QPInstance("one client", one, rng.standard_normal(30), 1.0, np.ones(1)),
        named(_long_row(rng, 1e8), "one column 1e+8", 1e-6),
        named(_short_row(rng, 1e-8), "one column 1e-8"),
        named(rescaled(weak, data=1e12, slope=1e12), "displacements 1e+12"),
        named(_vertex(rescaled(base, data=1e-12)), "displacements 1e-12"),
        named(rescaled(base, data=1e12, slope=1e12), "displacements and slope 1e+12"),
        named(rescaled(base, data=1e-12, slope=1e-12), "displacements and slope 1e-12"),
        named(rescaled(weak, bend=1e12, slope=1e12), "curvature 1e+12"),
        named(_vertex(rescaled(base, bend=1e-12)), "curvature 1e-12"),
        named(with_reference(base, np.zeros(50)), "slope zero"),
        named(shifted(base, common), "common part 1e4", 1e-8),
        named(_near_duplicates(rng), "near-duplicates 1e-9"),
        named(_collinear(rng, inside=True), "collinear, target inside"),
        named(_collinear(rng, inside=False), "collinear, target outside"),
        named(interior_instance(rng, 60, 20), "d < n, target inside"),
        named(constructed_instance(rng, 60, 20, 14), "d < n, target outside"),
        named(_cross_polytope(rng, 10, 0.6), "cross-polytope"),
        named(_cross_polytope(rng, 10, 0.0), "cross-polytope, slope zero"),
    ]


def tie_instances(seed: int = 6) -> list[QPInstance]:
    """Many minimisers, one of least norm, known by construction (section 6)."""
    rng = np.random.default_rng(seed)
    base = constructed_instance(rng, 20, 50, 12)
    same = np.tile(rng.standard_normal(30), (20, 1))
    uniform = np.full(20, 1 / 20)
    twice = repeated(_long_row(rng, 1e6), np.full(20, 2))
    return [
        named(repeated(base, np.full(20, 3)), "each column 3x (n=60)"),
        named(_one_many_times(rng), "one column 31x (n=50)"),
        QPInstance("all identical (n=20)", same, rng.standard_normal(30), 1.0, uniform),
        named(_cross_polytope(rng, 10, 0.6), "cross-polytope (n=20)"),
        named(twice, "one column 1e6x, then each 2x (n=40)", 1e-7),
        named(interior_instance(rng, 60, 20), "d=20 < n=60, target inside"),
        named(interior_instance(rng, 500, 40), "d=40 < n=500, target inside"),
    ]


def _decades(rng: np.random.Generator, span: float) -> float:
    return float(10 ** rng.uniform(-span, span))


def random_degenerate(rng: np.random.Generator) -> QPInstance:
    """Sizes to 60 x 80, scales over 16 decades, duplicates, zeros, common parts."""
    n, d = int(rng.integers(1, 61)), int(rng.integers(1, 81))
    D = rng.standard_normal((n, d))
    traits = []
    if rng.random() < 0.3:
        rank = int(rng.integers(1, min(n, d) + 1))
        D = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, d))
        traits.append(f"rank {rank}")
    if rng.random() < 0.4:
        D *= 10 ** rng.uniform(-8, 8, (n, 1))
        traits.append("row scales")
    if rng.random() < 0.4:
        D = D[rng.integers(0, n, n)]
        traits.append("duplicates")
    if rng.random() < 0.2:
        D[rng.random(n) < 0.3] = 0.0
        traits.append("zeros")
    if rng.random() < 0.3:
        D = D + _decades(rng, 4) * rng.standard_normal(d)
        traits.append("common part")
    g = _decades(rng, 8) * rng.standard_normal(d)
    curvature = _decades(rng, 8)
    if rng.random() < 0.3:  # a target among the rows, so that many of them matter
        g = -curvature * (rng.dirichlet(np.ones(n)) @ D)
        traits.append("target inside")
    return QPInstance(f"n={n} d={d} " + ", ".join(traits), D, g, curvature)


# -------------------------------------------------------------- rounds of local SGD


def lognormal_horizons(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
    """Unequal local work: 1 to 50 steps, log-normal around 8."""
    return np.clip(np.rint(np.exp(rng.normal(2.0, 0.9, n))), 1, 50).astype(np.int64)


def mixture_pool(
    rng: np.random.Generator, size: int, features: int, classes: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Labelled samples of a Gaussian mixture, rows of length about one."""
    labels = rng.integers(0, classes, size)
    centres = rng.standard_normal((classes, features), dtype=np.float32)
    X = rng.standard_normal((size, features), dtype=np.float32)
    X *= np.geomspace(1, 0.1, features, dtype=np.float32)  # a decaying spectrum
    X += centres[labels] * np.float32(0.5)
    X /= np.float32(math.sqrt(float(np.mean(np.sum(X**2, axis=1)))))
    return X, labels


def _shards(
    rng: np.random.Generator, labels: NDArray[np.int64], n: int, skew: float
) -> NDArray[np.int64]:
    """Indices (n, shard) of the samples each client holds, labels Dirichlet(skew)."""
    classes = int(labels.max()) + 1
    mix = rng.dirichlet(np.full(classes, skew), n).cumsum(axis=1)
    draws = rng.random((n, SGD_SHARD))
    wanted = np.minimum((draws[:, :, None] > mix[:, None, :]).sum(2), classes - 1)
    order = np.argsort(labels, kind="stable")
    counts = np.bincount(labels, minlength=classes)
    starts = np.cumsum(counts) - counts
    picks = rng.integers(0, 2**62, (n, SGD_SHARD)) % counts[wanted]
    shards: NDArray[np.int64] = order[starts[wanted] + picks]
    return shards


def _residuals(
    scores: NDArray[np.floating], labels: NDArray[np.int64]
) -> NDArray[np.floating]:
    """Softmax probabilities minus one-hot labels."""
    p: NDArray[np.floating] = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    column = labels[..., None]
    np.put_along_axis(p, column, np.take_along_axis(p, column, -1) - 1, axis=-1)
    return p


def softmax_round(
    rng: np.random.Generator,
    pool: tuple[NDArray[np.float32], NDArray[np.int64]],
    horizons: NDArray[np.int64],
    *,
    skew: float,
    name: str = "sgd",
) -> QPInstance:
    """One round of local SGD on softmax regression over samples of the pool.

    Client i takes `horizons[i]` minibatch steps on its shard from a common model; the
    slope is the exact gradient of the average client loss there; the curvature is its
    smoothness constant, half the largest eigenvalue of the samples' second moment.
    """
    X, labels = pool
    n, features, classes = len(horizons), X.shape[1], int(labels.max()) + 1
    shards = _shards(rng, labels, n, skew)
    usage = np.bincount(shards.ravel(), minlength=len(X)) / shards.size
    moment = (X * usage[:, None]).T @ X.astype(np.float64)
    smoothness = 0.5 * float(np.linalg.eigvalsh(moment)[-1])

    def gradient(model: Array) -> Array:
        weighted = _residuals(X @ model, labels) * usage[:, None]
        return np.asarray(X.T @ weighted, np.float64)

    anchor = np.zeros((features, classes))
    for _ in range(SGD_WARMUP):
        anchor = anchor - gradient(anchor) / smoothness
    displacement = np.zeros((n, features, classes), np.float32)
    common = anchor.astype(np.float32)
    step = np.float32(SGD_STEP / smoothness / SGD_BATCH)
    for t in range(int(horizons.max())):
        busy = np.flatnonzero(horizons > t)
        batch = shards[
            busy[:, None], rng.integers(0, SGD_SHARD, (len(busy), SGD_BATCH))
        ]
        x = X[batch]  # (busy, batch, features)
        model = common + displacement[busy]
        error = _residuals(x @ model, labels[batch])
        displacement[busy] -= step * (x.transpose(0, 2, 1) @ error)
    D = displacement.reshape(n, -1).astype(np.float64)
    return QPInstance(name, D, gradient(anchor).ravel(), smoothness)


def sgd_round(
    rng: np.random.Generator,
    n: int,
    d_features: int,
    classes: int = 10,
    *,
    skew: float,
    horizons: NDArray[np.int64] | None = None,
) -> QPInstance:
    """Local SGD on a Gaussian mixture; d = d_features · classes; float32 client models.

    `skew` is the Dirichlet parameter of the clients' labels: 0.3 skewed, 100 near-iid.
    """
    size = min(20_000, max(2_000, 20 * n))
    pool = mixture_pool(rng, size, d_features, classes)
    if horizons is None:
        horizons = lognormal_horizons(rng, n)
    name = f"sgd n={n} d={d_features * classes} skew={skew:g}"
    return softmax_round(rng, pool, horizons, skew=skew, name=name)
