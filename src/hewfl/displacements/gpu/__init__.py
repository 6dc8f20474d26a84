"""Tensors on a GPU: products and weighted sums in one read, at the speed of its memory.

`kernels.cu` holds two kernels in CUDA C and says how they work. They are compiled at
first use by the run-time compiler that comes with torch's CUDA builds. Where that is
missing, and for products on a GPU without fast float64 matrix units, functions return
None: the portable code of the package then works on the same tensors. This module is
loaded only when a CUDA tensor is given, so that the package itself does not need torch.
"""

from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from hewfl.core.array_types import Float64
from hewfl.errors import MissingExtraError

try:
    import torch
except ImportError as error:
    text = "hewfl.displacements.gpu needs PyTorch: install hewfl's extra torch"
    raise MissingExtraError(text) from error

from hewfl.core.displacements import RoundProducts
from hewfl.core.validation import Array
from hewfl.displacements.gram import ORIGINS, nearer_origin, weight_problem

ELEMENTS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
LONGEST = 2**31 - 2**16
"""Columns and strides are passed as 32-bit integers."""
MOST_VECTORS = 63
"""With the origin after them they must fit into 8 blocks of 8 rows."""
CAPABILITY = (9, 0)
"""Of the GPUs that form products by the kernel: Hopper, whose float64 matrix rate
matches its memory."""
TUNED = {2: (4, 16, 1), 3: (2, 16, 1), 6: (2, 4, 3), 8: (2, 8, 1)}
"""Loads in flight, warps of a block and blocks of a multiprocessor, up to so many
blocks of rows: the fastest on an H200 that benchmarks/gram_gpu.py tried."""
SUM_TUNED = (2, 256)
"""Rows in flight and threads of a block, for weighted sums; likewise."""
LONG = 100.0
"""An origin this many times longer (squared) than the shortest vector is exchanged."""
SAFE = (1e-200, 1e200)
"""Products that are far from the ends of float64."""
_WIDENED = 2**25
"""Entries that are brought to float64 at a time."""


def is_readable(rows: Any) -> bool:
    """Whether these are vectors that the kernels may read."""
    return (
        isinstance(rows, torch.Tensor)
        and rows.is_cuda
        and rows.dtype in ELEMENTS
        and (rows.shape[1] <= 1 or rows.stride(1) == 1)
        and max(rows.shape[1], rows.stride(0)) < LONGEST
        and is_available(rows.device)
    )


@cache
def is_available(device: torch.device) -> bool:
    """Whether kernels can be compiled for a GPU, given with its index."""
    ahead, threads = SUM_TUNED
    settings = {"ELEMENT": 0, "ALIGNED": 1, "AHEAD": ahead, "THREADS": threads}
    try:
        with torch.cuda.device(device):
            _kernel(device, "weighted_sum", **settings)
    except (AttributeError, ImportError, OSError, RuntimeError):
        return False
    return True


def round_products(
    rows: torch.Tensor, reference: torch.Tensor | None, curvature: float
) -> RoundProducts | None:
    """The weight problem of displacements on a GPU, in one pass as a rule.

    The first vector is the origin. Its products tell how long all vectors are: only
    where it is a long one does a second pass start from the shortest.

    Args:
        rows: shape (n, s), on a GPU; see `is_readable`.
        reference: shape (s,), on the same, or None.
        curvature: Λ.

    Returns:
        The problem; None where no kernel can run, a number is not finite, or squares of
        float64 numbers may leave its range: portable code scales them.
    """
    origin, n = 0, len(rows)
    for _ in range(ORIGINS):
        products = vector_products(rows, reference, origin)
        if products is None:
            return None
        numbers = np.concatenate(
            [products.gram.ravel(), products.linear, [products.offset]]
        )
        if not np.abs(numbers).max() < SAFE[1]:  # also where one is not a number
            return None
        problem = weight_problem(products, n, curvature)
        G, cr, rr = products.gram[:n, :n], products.linear[:n], products.offset
        lengths = np.diagonal(G) + 2 * cr + rr
        shortest = int(np.argmin(lengths))
        outside = nearer_origin(G, origin)
        if rr <= LONG * max(float(lengths[shortest]), 0.0) and outside is None:
            break
        nearer = shortest if outside is None else outside
        if nearer == origin:
            break
        origin = nearer
    return problem if float(np.diagonal(G).max()) > SAFE[0] else None


def vector_products(
    rows: torch.Tensor, reference: torch.Tensor | None, origin: int
) -> RoundProducts | None:
    """Products of the rows and the reference after them, around one of the rows.

    Args:
        rows: shape (n, s), on a GPU; see `is_readable`.
        reference: shape (s,), on the same, of any precision, or None.
        origin: row that is subtracted from the rest.

    Returns:
        As `hewfl.displacements.gram.vector_products`; None where no kernel can run.
    """
    n = len(rows)
    m = n + (reference is not None)
    is_fast = torch.cuda.get_device_capability(rows.device) == CAPABILITY
    if m > MOST_VECTORS or not is_fast:
        return None
    parts: Any = [(rows, reference)]
    if reference is not None and reference.dtype != rows.dtype:
        step = max(1, _WIDENED // n)  # the kernel reads one precision: widen in blocks
        pairs = zip(rows.split(step, dim=1), reference.split(step), strict=True)
        parts = ((X.double(), g.double()) for X, g in pairs)
    total: Any = sum(block_sums(X, g, origin).sum(dim=0) for X, g in parts)
    upper = np.triu(total.cpu().numpy()[: m + 1, : m + 1])
    K = upper + np.triu(upper, 1).T
    return RoundProducts(K[:m, :m].copy(), K[:m, m].copy(), float(K[m, m]), 0)


def block_sums(
    rows: torch.Tensor,
    reference: torch.Tensor | None,
    origin: int,
    tuned: tuple[int, int, int] | None = None,
) -> torch.Tensor:
    """Products summed by each thread block, left on the device; see `kernels.cu`.

    Args:
        rows: shape (n, s), contiguous rows.
        reference: shape (s,), of the rows' precision, or None.
        origin: row that is subtracted from the rest.
        tuned: other values of loads, warps and resident blocks, for benchmarks.
    """
    n, s = rows.shape
    m = n + (reference is not None)
    blocks = (m + 8) // 8
    loads, warps, resident = tuned or _launch_settings(blocks)
    last = rows if reference is None else reference.contiguous()
    span = warps * loads * 64 // rows.element_size()
    processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    grid = max(1, min(processors * resident, -(-s // span)))
    shape = (grid, 16 * ((blocks + 1) // 2), 8 * blocks)
    out = torch.empty(shape, dtype=torch.float64, device=rows.device)
    given = [rows, rows[origin], last, out, n, m, s, rows.stride(0)]
    settings = {"BLOCKS": blocks, "LOADS": loads, "WARPS": warps, "RESIDENT": resident}
    _launch("gram", grid, 32 * warps, given, _layout(rows, last) | settings)
    return out


def _launch_settings(blocks: int) -> tuple[int, int, int]:
    return next(best for most, best in TUNED.items() if blocks <= most)


def weighted_sum(
    rows: torch.Tensor,
    weights: Float64[Array, "... n"],
    tuned: tuple[int, int] = SUM_TUNED,
) -> torch.Tensor:
    """Σ w_iΔ_i summed in float64, rounded once to float32, or not for float64 rows.

    Args:
        rows: shape (n, s), on a GPU; see `is_readable`.
        weights: shape (n,), or (k, n) for k sums; vectors of weight zero in a sum are
            not read for it.
        tuned: other values of rows in flight and threads, for benchmarks.
    """
    n, s = rows.shape
    ahead, threads = tuned
    wide = torch.promote_types(rows.dtype, torch.float32)
    out = torch.empty((*weights.shape[:-1], s), dtype=wide, device=rows.device)
    sums = weights.size // n
    w = torch.tensor(weights).to(rows.device, non_blocking=True)
    columns = threads * (8 if rows.element_size() == 2 else 4)
    given = [rows, w, out, n, sums, s, rows.stride(0)]
    settings = _layout(rows) | {"AHEAD": ahead, "THREADS": threads}
    if out.numel() > 0:
        _launch("weighted_sum", -(-s // columns) * sums, threads, given, settings)
    return out


def _layout(rows: torch.Tensor, *more: torch.Tensor) -> dict[str, int]:
    """Settings that both kernels have: see `kernels.cu`."""
    places = [tensor.data_ptr() for tensor in (rows, *more)]
    places.append(rows.stride(0) * rows.element_size())
    aligned = all(place % 16 == 0 for place in places)
    return {"ELEMENT": ELEMENTS[rows.dtype], "ALIGNED": int(aligned)}


def _launch(
    name: str, grid: int, threads: int, given: list[Any], settings: dict[str, int]
) -> None:
    """Run a kernel on the device of its first argument."""
    device = given[0].device
    with torch.cuda.device(device):
        _kernel(device, name, **settings)((grid, 1, 1), (threads, 1, 1), given)


@cache
def _kernel(
    device: torch.device,  # noqa: ARG001 - a part of the key
    name: str,
    **settings: int,
) -> Any:
    """A compiled kernel, loaded on the current device, which must be the given."""
    defined = "".join(f"#define {key} {value}\n" for key, value in settings.items())
    return torch.cuda._compile_kernel(defined + source(), name)


def source() -> str:
    """The kernels in CUDA C, without their settings."""
    file = resources.files("hewfl.displacements.gpu").joinpath("kernels.cu")
    return file.read_text("utf-8")
