"""The compiled kernels are there when they can be, and equal their NumPy twins."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import known_solutions as problems

from hewfl.aggregate.gram import round_products
from hewfl.aggregate.rows import as_rows
from hewfl.core import native
from hewfl.solver.active_set import active_set
from hewfl.solver.columns import corral

needs_kernels = pytest.mark.skipif(
    not native.is_available(),
    reason="the compiled kernels are switched off or not built",
)


def test_they_are_built_where_a_compiler_is() -> None:
    if os.environ.get("HEWFL_NATIVE") == "0":
        assert not native.is_available()
    elif shutil.which("cc") or shutil.which("gcc"):
        assert native.is_available(), (
            "a compiler is here, but the kernels were not built"
        )


def test_the_setting_switches_them_off() -> None:
    code = "from hewfl.core import native; print(native.is_available())"
    environment = {**os.environ, "HEWFL_NATIVE": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "False"


@needs_kernels
@given(seed=st.integers(0, 10_000))
def test_the_active_sets_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 40)), int(rng.integers(1, 60))
    instance = problems.gaussian_instance(rng, n, d)
    H, c = instance.gram, instance.linear
    size = np.abs(H).max()
    H, c = H / size, c / size
    ours, twin = corral(H, c), active_set(H, c)
    assert ours.solved
    assert twin.solved
    assert ours.pivots == twin.pivots
    assert np.abs(ours.weights - twin.weights).max() <= 1e-9


@needs_kernels
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 21])
@pytest.mark.parametrize("d", [1, 7, 255, 256, 257, 4097, 70_001])
def test_the_products_agree(n: int, d: int, rng: np.random.Generator) -> None:
    D = rng.standard_normal((n, d)).astype(np.float32)
    g = rng.standard_normal(d)
    data = as_rows("displacements", D)
    ours = round_products(data, g, 1.7)
    with native.disabled():
        twin = round_products(data, g, 1.7)
    size = max(float(np.abs(twin.gram).max()), 1e-30)
    assert np.abs(ours.gram - twin.gram).max() <= 1e-13 * size
    assert np.array_equal(ours.gram, ours.gram.T)
    unit = max(float(np.abs(twin.linear).max()), size)
    assert np.abs(ours.linear - twin.linear).max() <= 1e-13 * unit
    assert ours.offset == pytest.approx(twin.offset, rel=1e-12, abs=1e-12)


@needs_kernels
def test_bad_calls_fail_instead_of_crashing() -> None:
    kernels = native.library()
    assert kernels is not None
    with pytest.raises(TypeError):
        kernels.solve(1, 2, 3)
    H, c, w = np.eye(3), np.zeros(3), np.zeros(3)
    for short in ((H[:2], c, w), (H, c[:2], w), (H, c, w[:2])):
        with pytest.raises(ValueError, match="shorter than its declared shape"):
            kernels.corral(*short, 3, False, 10)
    with pytest.raises(ValueError, match="n must be at least 1"):
        kernels.corral(H, c, w, 0, False, 10)
    stack = [H, c, np.ones(1), w, np.zeros(3), np.zeros(4), np.zeros(1, np.int64)]
    for k in range(len(stack)):
        short_stack = [part[:-1] if j == k else part for j, part in enumerate(stack)]
        with pytest.raises(ValueError, match="shorter than its declared shape"):
            kernels.solve(*short_stack, 1, 3, False, 1e-10)
    row, out = np.zeros(5), np.zeros(4)
    with pytest.raises(ValueError, match="shorter than its declared shape"):
        kernels.gram([row, row[:4]], bytes([1, 1]), 5, 1.0, 1.0, 1.0, out, np.zeros(2))
    with pytest.raises(ValueError, match="unknown type of row"):
        kernels.gram([row, row], bytes([1, 9]), 5, 1.0, 1.0, 1.0, out, np.zeros(2))
    with pytest.raises(ValueError, match="shorter than its declared shape"):
        kernels.combine([row], bytes([1]), 5, np.ones(1), np.zeros(4), 1)


@needs_kernels
def test_bad_calls_on_pieces_fail_instead_of_crashing() -> None:
    kernels = native.library()
    assert kernels is not None
    row, out, short = np.zeros(5), np.zeros(10), np.zeros(4)
    given = ([row, row], bytes([1, 1]), 5, 1.0, 1.0, 1.0, np.zeros(1), np.zeros(2))
    with pytest.raises(ValueError, match="shorter than its declared shape"):
        kernels.gram(*given, short, 1)
    with pytest.raises(ValueError, match="unknown type of row"):
        kernels.gram(*given, row, 7)
    with pytest.raises(ValueError, match="shorter than its declared shape"):
        kernels.combine([row], bytes([1]), 5, np.ones(1), out, 1, short, 1)
    with pytest.raises(ValueError, match="shorter than its declared shape"):
        kernels.combine([row], bytes([1]), 5, np.ones(3), out, 1)
    for lo, count, origin, stride in [(1, 5, 0, 5), (0, 5, 0, 6), (0, -1, 0, 5)]:
        with pytest.raises(ValueError, match=r"shorter|outside"):
            kernels.shifted([row, row], b"\1\1", lo, count, origin, 1.0, stride, out)
    for lo, count, origin, stride in [(-1, 2, 0, 5), (0, 5, 2, 5), (0, 5, 0, 4)]:
        with pytest.raises(ValueError, match="outside the rows"):
            kernels.shifted([row, row], b"\1\1", lo, count, origin, 1.0, stride, out)
    rate = np.ones(2)
    for rates, server, own in [
        (rate[:1], row, [row, row]),
        (rate, short, [row, row]),
        (rate, row, [row, short]),
    ]:
        with pytest.raises(ValueError, match="shorter than its declared shape"):
            kernels.advance([row, row], b"\1\1", 5, rates, server, own)
    with pytest.raises(IndexError):
        kernels.advance([row, row], b"\1\1", 5, rate, row, [row])
    fixed = np.zeros(5)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernels.advance([row, row], b"\1\1", 5, rate, row, [row, fixed])
