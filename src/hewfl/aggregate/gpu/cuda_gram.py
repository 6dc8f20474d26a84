"""Inner products on the float64 tensor cores of a GPU, in one read of the data.

`gram.cu` says how. It is compiled at first use by the run-time compiler that comes with
torch's CUDA builds; where that is missing, or the GPU has no such units at full speed,
`hewfl.aggregate.gpu.triton_gram` does the work. The twin of both is
`hewfl.aggregate.gram.vector_products`.
"""

from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import torch

from hewfl.core.displacements import RoundProducts

MOST_VECTORS = 63
"""With the origin after them they must fit into 8 blocks of 8 rows."""
CAPABILITY = (9, 0)
"""Of the GPUs this is used on: Hopper, whose float64 matrix rate matches its memory."""
ELEMENTS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
TUNED = {2: (4, 16, 1), 3: (2, 16, 1), 6: (2, 4, 3), 8: (2, 8, 1)}
"""The fastest of those tried on an H200, up to so many blocks of rows;
benchmarks/gram_gpu.py times others."""
LONGEST = 2**31 - 2**16
"""Columns and strides are passed as 32-bit integers."""


def serves(rows: torch.Tensor, reference: torch.Tensor | None) -> bool:
    """Whether the kernel can take these rows and the reference after them, if any."""
    return (
        rows.is_cuda
        and rows.dtype in ELEMENTS
        and (reference is None or reference.dtype == rows.dtype)
        and len(rows) + (reference is not None) <= MOST_VECTORS
        and max(rows.shape[1], rows.stride(0)) < LONGEST
        and torch.cuda.get_device_capability(rows.device) == CAPABILITY
        and is_available(rows.device)
    )


@cache
def is_available(device: torch.device) -> bool:
    """Whether the kernel compiles for a GPU, given with its index."""
    try:
        with torch.cuda.device(device):
            _kernel(device, 1, 0, True, *_tuned(1))
    except (AttributeError, ImportError, OSError, RuntimeError):
        return False
    return True


def gram(
    rows: torch.Tensor, reference: torch.Tensor | None, origin: int
) -> RoundProducts:
    """What `hewfl.aggregate.gram.vector_products` returns, for CUDA tensors.

    Args:
        rows: shape (n, s), contiguous rows.
        reference: shape (s,), or None.
        origin: row that the others are taken relative to.
    """
    m = len(rows) + (reference is not None)
    S = block_sums(rows, reference, origin).sum(dim=0).cpu().numpy()
    upper = np.triu(S[: m + 1, : m + 1])
    K = upper + np.triu(upper, 1).T
    return RoundProducts(K[:m, :m].copy(), K[:m, m].copy(), float(K[m, m]), 0)


def block_sums(
    rows: torch.Tensor,
    reference: torch.Tensor | None,
    origin: int,
    tuned: tuple[int, int, int] | None = None,
) -> torch.Tensor:
    """Sums of each thread block, left on the device; see `gram.cu`.

    Args:
        rows: shape (n, s), contiguous rows.
        reference: shape (s,), or None.
        origin: row that the others are taken relative to.
        tuned: other values of loads, warps and resident blocks, for benchmarks.
    """
    n, s = rows.shape
    m = n + (reference is not None)
    blocks = (m + 8) // 8
    loads, warps, resident = tuned or _tuned(blocks)
    last = rows if reference is None else reference
    aligned = all(
        place % 16 == 0
        for place in (
            rows.data_ptr(),
            rows.stride(0) * rows.element_size(),
            last.data_ptr(),
        )
    )
    element = ELEMENTS[rows.dtype]
    span = warps * loads * 64 // rows.element_size()
    processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    grid = max(1, min(processors * resident, -(-s // span)))
    shape = (grid, 16 * ((blocks + 1) // 2), 8 * blocks)
    out = torch.empty(shape, dtype=torch.float64, device=rows.device)
    given = [rows, rows[origin], last, out, n, m, s, rows.stride(0)]
    with torch.cuda.device(rows.device):
        kernel = _kernel(rows.device, blocks, element, aligned, loads, warps, resident)
        kernel((grid, 1, 1), (32 * warps, 1, 1), given)
    return out


def _tuned(blocks: int) -> tuple[int, int, int]:
    """Loads in flight, warps of a block, blocks of a multiprocessor: see TUNED."""
    return next(best for most, best in TUNED.items() if blocks <= most)


def source() -> str:
    """The kernel in CUDA C, without its settings."""
    return resources.files("hewfl.aggregate.gpu").joinpath("gram.cu").read_text("utf-8")


@cache
def _kernel(  # noqa: PLR0913, PLR0917 - the settings of gram.cu, and where it is loaded
    device: torch.device,  # noqa: ARG001 - a part of the key
    blocks: int,
    element: int,
    aligned: bool,
    loads: int,
    warps: int,
    resident: int,
) -> Any:
    """The compiled kernel, loaded on the current device, which must be the given."""
    settings = {
        "BLOCKS": blocks,
        "ELEMENT": element,
        "ALIGNED": int(aligned),
        "LOADS": loads,
        "WARPS": warps,
        "RESIDENT": resident,
    }
    defined = "".join(f"#define {name} {value}\n" for name, value in settings.items())
    return torch.cuda._compile_kernel(defined + source(), "gram")
