"""The arithmetic of this machine: where it is the recorded one, bytes must be equal.

NumPy and its BLAS choose their inner loops by processor, and sums in another order
round differently. `arithmetic` and `tensors` say nothing of hewfl. `kernels` are
answers of its compiled code, which another compiler may round differently.
"""

import hashlib
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray

from hewfl import (
    FedAvg,
    Federation,
    FixedSteps,
    combine,
    post_local_weights,
    simulate,
    solve_simplex_qp,
)
from hewfl.problems import Softmax, softmax_from_arrays


def digest(arrays: Iterable[NDArray[Any]]) -> str:
    whole = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    return hashlib.sha256(whole).hexdigest()[:16]


def arithmetic() -> dict[str, str]:
    """Products, factorisations and elementary functions on seeded numbers."""
    rng = np.random.default_rng(0)
    A, x = rng.standard_normal((40, 23)), rng.uniform(0.1, 9, 300)
    B = rng.standard_normal((3, 9, 5))
    single = A.astype(np.float32)
    spd = A.T @ A
    return {
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "products": digest([spd, A @ A.T, A @ A[3], single @ single.T, A[:4] @ spd]),
        "batched products": digest([B @ B.swapaxes(1, 2), np.einsum("kab,kac", B, B)]),
        "sums": digest([A.sum(axis=0), A.sum(axis=1), A.mean(), single.sum()]),
        "functions": digest([np.exp(x), np.log(x), np.cos(x), np.arccos(x / 10)]),
        "single functions": digest([np.exp(single), np.log(np.abs(single))]),
        "factors": digest([np.linalg.cholesky(spd), *np.linalg.eigh(spd)]),
    }


def tensors() -> dict[str, str]:
    """Products and gradients of torch."""
    rng = np.random.default_rng(2)
    found = []
    for dtype in (torch.float32, torch.float64):
        A = torch.tensor(rng.standard_normal((9, 5)), dtype=dtype)
        w = torch.linspace(-1, 1, 10, dtype=dtype).reshape(5, 2).requires_grad_()
        ((A @ w) ** 2).mean().backward()
        found += [(A @ A.T).numpy(), w.grad.numpy(), A.sum(dim=0).numpy()]
    return {"torch": torch.__version__, "products": digest(found)}


def kernels() -> dict[str, str]:
    """Whether hewfl runs compiled code, and what it answers."""
    suffixes = (".so", ".pyd")
    files = [
        str(getattr(module, "__file__", None))
        for name, module in list(sys.modules.items())
        if name.startswith("hewfl.")
    ]
    rng = np.random.default_rng(1)
    D, c = rng.standard_normal((7, 60)), rng.standard_normal(60)
    found = [post_local_weights(D.astype(k), c, 2.0) for k in (np.float64, np.float32)]
    law = solve_simplex_qp(D @ D.T, D @ c)
    rows, labels = rng.standard_normal((20, 6)), np.arange(20) % 3
    problem = softmax_from_arrays(rows, labels, [range(20)], l2=0.1)
    losses = problem.client_losses(rng.standard_normal((2, 18)))
    answers = [*(s.weights for s in found), law.weights, combine(D, law.weights)]
    return {
        "compiled": str(any(file.endswith(suffixes) for file in files)),
        "weights": digest(answers),
        "losses": digest([losses]),
        "branches": digest(trained(problem, kind) for kind in ("float32", "float64")),
    }


def trained(problem: Softmax, dtype: str) -> NDArray[Any]:
    """The model after one round of one client."""
    federation, entries = Federation(FixedSteps(3), 4), [FedAvg(0.1)]
    return simulate(problem, federation, entries, rounds=1, seed=0, dtype=dtype).anchors


def probe() -> dict[str, dict[str, str]]:
    """All three, by name."""
    found = {"arithmetic": arithmetic, "kernels": kernels, "tensors": tensors}
    return {name: measure() for name, measure in found.items()}
