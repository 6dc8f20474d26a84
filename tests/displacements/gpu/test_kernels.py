"""The kernels for CUDA tensors against their portable twins.

Each property is tested on a Hopper GPU, and on the host with `Driver` in place of the
CUDA driver: there it shows that the kernels are given what `kernels.cu` asks for.
"""

import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

import numpy as np
import pytest
import torch

from hewfl.core.displacements import RoundProducts
from hewfl.displacements import gpu
from hewfl.displacements.backend import gpu_kernels
from hewfl.displacements.dense import as_dense
from hewfl.displacements.gram import round_products, vector_products
from hewfl.displacements.post_local import combine

READY = (
    torch.cuda.is_available() and torch.cuda.get_device_capability() == gpu.CAPABILITY
)
DOUBLE = 1e-13
"""float64 sums of up to 300,000 products, relative to the lengths of the vectors."""
HALF_UNIT = 2.0**-24
"""What one rounding to float32 may change, relative."""


@final
class Driver:
    """Stands in for the CUDA driver: notes on which device kernels are loaded and run.

    A kernel is a function on host tensors that does what `kernels.cu` says, and fails
    on another device than it was loaded on.
    """

    def __init__(self) -> None:
        self.current: torch.device | None = None
        self.loaded: list[torch.device | None] = []
        self.ran: list[torch.device | None] = []

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device
        yield
        self.current = before

    def compile(self, source: str, name: str) -> Callable[..., None]:
        home = self.current
        self.loaded.append(home)
        assert f" {name}(" in source.replace("    ", " ")
        does = {"gram": _gram, "weighted_sum": _weighted_sum}[name]

        def kernel(grid: tuple[int, ...], block: tuple[int, ...], given: Any) -> None:
            assert self.current == home
            assert min(*grid, *block) >= 1
            self.ran.append(home)
            does(*given)

        return kernel


def _gram(*given: Any) -> None:
    """All sums by the first thread block; what the kernel does not write is NaN."""
    rows, origin, last, out, n, m, columns, stride = given
    assert rows.shape == (n, columns)
    assert rows.stride(0) == stride
    assert last.dtype == rows.dtype == origin.dtype
    assert m == n or last.is_contiguous()
    vectors = [*rows] if m == n else [*rows, last]
    v, r = torch.stack(vectors).double(), origin.double()
    x = torch.cat([v - r, r[None]])
    out.fill_(torch.nan)
    out[:, : m + 1, : m + 1] = torch.tril(out[0, : m + 1, : m + 1], -1)
    out[0, : m + 1, : m + 1] += torch.triu(x @ x.T)


def _weighted_sum(*given: Any) -> None:
    rows, weights, out, n, sums, columns, stride = given
    assert rows.shape == (n, columns)
    assert rows.stride(0) == stride
    for w, total in zip(weights.view(sums, n), out.view(sums, columns), strict=True):
        used = w != 0
        total.copy_(w[used] @ rows[used].double())


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    result, fresh = Driver(), cache(gpu._kernel.__wrapped__)
    properties = SimpleNamespace(multi_processor_count=4)
    monkeypatch.setattr(torch.cuda, "device", result.device)
    monkeypatch.setattr(torch.cuda, "_compile_kernel", result.compile, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: gpu.CAPABILITY)
    monkeypatch.setattr(gpu, "_kernel", fresh)
    return result


on_hopper = pytest.mark.skipif(not READY, reason="needs a GPU of the Hopper kind")


@pytest.fixture(
    params=["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, on_hopper])]
)
def place(request: pytest.FixtureRequest) -> str:
    """Where the tensors of a test lie: with the driver's stand-in, or on a GPU."""
    if request.param == "cpu":
        request.getfixturevalue("driver")
    return str(request.param)


def rows_of(n: int, s: int, dtype: torch.dtype, place: str) -> torch.Tensor:
    torch.manual_seed(n + s)
    return (torch.randn(n, s, device=place) + 3).to(dtype)


def portable_products(
    rows: torch.Tensor, reference: torch.Tensor | None, origin: int
) -> RoundProducts:
    """The plain twin, in float64 throughout."""
    vectors = rows if reference is None else [*rows.double(), reference.double()]
    return vector_products(as_dense("vectors", vectors), origin)


def assert_twins(result: RoundProducts | None, twin: RoundProducts, what: str) -> None:
    assert result is not None, what
    size, length = np.sqrt(np.diagonal(twin.gram)), np.sqrt(twin.offset)
    apart = np.abs(result.gram - twin.gram)
    assert (apart <= DOUBLE * np.outer(size, size)).all(), (what, apart.max())
    apart = np.abs(result.linear - twin.linear)
    assert (apart <= DOUBLE * size * length).all(), (what, apart.max())
    assert result.offset == pytest.approx(twin.offset, rel=DOUBLE), what


# ------------------------------------------------------------------ products


@pytest.mark.parametrize("dtype", gpu.ELEMENTS, ids=str)
@pytest.mark.parametrize("corrected", [False, True])
def test_products_are_the_twins(
    place: str, dtype: torch.dtype, corrected: bool
) -> None:
    """Aligned and odd lengths, every number of blocks."""
    counts, lengths = [1, 7, 8, 15, 23, 24, 33, 41, 62], [1, 77, 4097, 300_000, 300_016]
    if place == "cpu":
        counts, lengths = [1, 7, 8, 62], [1, 77]
    for n, s in product(counts, lengths):
        rows = rows_of(n, s, dtype, place)
        reference = torch.randn(s, device=place).to(dtype) if corrected else None
        result = gpu.vector_products(rows, reference, n // 2)
        twin = portable_products(rows, reference, n // 2)
        assert_twins(result, twin, f"n = {n}, s = {s}, {dtype}, {corrected}")


@pytest.mark.parametrize(
    ("dtype", "other"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.bfloat16),
        (torch.float32, torch.float64),
        (torch.float32, torch.int64),
    ],
    ids=str,
)
def test_a_reference_may_have_another_precision(
    place: str, dtype: torch.dtype, other: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it may lie apart in memory. In blocks, the last of which is shorter."""
    monkeypatch.setattr(gpu, "_WIDENED", 5 * 400)
    rows = rows_of(5, 1001, dtype, place)
    columns = 1000 * torch.randn(1001, 2, device=place)
    reference = columns.to(other)[:, 0]
    result = gpu.vector_products(rows, reference, 1)
    assert_twins(result, portable_products(rows, reference, 1), f"{dtype}, {other}")
    same = columns.to(dtype)[:, 0]
    result = gpu.vector_products(rows, same, 1)
    assert_twins(result, portable_products(rows, same, 1), f"strided {dtype}")


def test_rows_may_be_parts_of_longer_ones(place: str) -> None:
    """Strides and first places that no load of 16 bytes can take."""
    for dtype, lo, hi in product(gpu.ELEMENTS, (0, 1, 4), (97, 100)):
        rows = rows_of(9, 128, dtype, place)[:, lo:hi]
        what = f"{dtype}, columns {lo} to {hi}"
        assert_twins(
            gpu.vector_products(rows, None, 3), portable_products(rows, None, 3), what
        )
        w = np.linspace(-1.0, 1.0, 9)
        result, exact = (
            gpu.weighted_sum(rows, w).double(),
            w @ rows.double().cpu().numpy(),
        )
        assert np.abs(result.cpu().numpy() - exact).max() <= 1e-5, what


def test_what_is_not_finite_spoils_its_own_products(place: str) -> None:
    rows = rows_of(4, 1000, torch.float32, place)
    rows[2] *= 1e30
    result, twin = gpu.vector_products(rows, None, 0), portable_products(rows, None, 0)
    assert result is not None
    assert result.gram == pytest.approx(twin.gram, rel=1e-9)  # squares beyond float32
    rows[1, 3] = torch.nan
    result = gpu.vector_products(rows, None, 0)
    assert result is not None
    finite = np.isfinite(np.diagonal(result.gram))
    assert finite.tolist() == [True, False, True, True]
    assert gpu.round_products(rows, None, 1.0) is None


@pytest.mark.parametrize("kind", [None, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("longest", [0, 2])
def test_problems_are_those_of_the_host(
    place: str, kind: torch.dtype | None, longest: int
) -> None:
    """Also where the first vector is a long one: then another is the origin."""
    rows = rows_of(6, 500, torch.float32, place)
    rows[longest] *= 1e4
    reference = None if kind is None else torch.randn(500, device=place).to(kind)
    result = gpu.round_products(rows, reference, 1.3)
    assert result is not None
    host = None if reference is None else reference.cpu()
    twin = round_products(as_dense("rows", rows.cpu()), host, 1.3)
    w = np.full(6, 1 / 6)
    w[longest] = 1e-5
    w /= w.sum()  # the origin does not matter then
    value, expected = (
        p.offset + p.linear @ w + 0.65 * w @ p.gram @ w for p in (result, twin)
    )
    assert value == pytest.approx(expected, rel=1e-12)
    assert (np.diagonal(result.gram)[np.arange(6) != longest] < 1e5).all()


@pytest.mark.parametrize("size", [0.0, 1e-110, 1e110])
def test_squares_near_the_ends_of_float64_are_left_to_portable_code(
    place: str, size: float
) -> None:
    rows = size * rows_of(4, 50, torch.float64, place)
    assert gpu.vector_products(rows, None, 0) is not None
    assert gpu.round_products(rows, None, 1.0) is None


@pytest.mark.usefixtures("driver")
def test_too_many_vectors_and_other_gpus_are_left_to_portable_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = rows_of(63, 9, torch.float32, "cpu")
    assert gpu.vector_products(rows, None, 0) is not None
    assert gpu.vector_products(rows, rows[0], 0) is None
    assert gpu.round_products(rows, rows[0], 1.0) is None
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert gpu.vector_products(rows, None, 0) is None


@pytest.mark.gpu
@on_hopper
def test_two_runs_agree_in_every_bit() -> None:
    rows = rows_of(20, 300_000, torch.float32, "cuda")
    first, again = (gpu.vector_products(rows, None, 0) for _ in range(2))
    assert first is not None
    assert again is not None
    assert np.array_equal(first.gram, again.gram)


# ------------------------------------------------------------------ weighted sums


@pytest.mark.parametrize("dtype", gpu.ELEMENTS, ids=str)
@pytest.mark.parametrize("sums", [None, 1, 3])
def test_sums_are_the_twins_rounded_once(
    place: str, dtype: torch.dtype, sums: int | None
) -> None:
    """A vector of weight zero is not read, also where another sum has it."""
    rng = np.random.default_rng(0)
    lengths = (1, 3, 77) if place == "cpu" else (1, 3, 8, 77, 1024, 70_001, 300_000)
    for n, s in product((1, 4, 5, 20), lengths):
        what = f"n = {n}, s = {s}, {dtype}, {sums}"
        rows = rows_of(n, s, dtype, place)
        w = rng.standard_normal(n if sums is None else (sums, n))
        w[..., -1] = 0.0
        clean = rows.double().cpu().numpy()
        rows[-1] = torch.nan
        expected = w @ clean
        if w.ndim == 2 and sums == 3:
            w[1, -1], expected[1] = 1.0, np.nan
        result = gpu.weighted_sum(rows, w)
        assert result.shape == expected.shape, what
        assert result.device == rows.device
        wide = dtype == torch.float64
        assert result.dtype == (torch.float64 if wide else torch.float32), what
        # float64 sums in another order, then one rounding
        bound = 1e-14 * (np.abs(w) @ np.abs(clean))
        bound += 0.0 if wide else HALF_UNIT * np.abs(expected)
        apart = np.abs(result.double().cpu().numpy() - expected)
        assert np.array_equal(np.isnan(apart), np.isnan(expected)), what
        assert (apart <= bound)[~np.isnan(expected)].all(), (what, np.nanmax(apart))


def test_sums_of_nothing(place: str) -> None:
    rows = rows_of(3, 5, torch.float32, place)
    assert gpu.weighted_sum(rows, np.zeros(3)).tolist() == [0.0] * 5
    assert gpu.weighted_sum(rows, np.zeros((0, 3))).shape == (0, 5)
    assert gpu.weighted_sum(rows[:, :0], np.ones(3)).shape == (0,)


# ------------------------------------------------------------------ the kernels


def test_host_tensors_are_left_to_the_host() -> None:
    rows = torch.randn(3, 50)
    assert not gpu.is_readable(rows)
    assert gpu_kernels(rows) is None
    assert combine(rows, np.ones(3)).dtype == torch.float32


@pytest.mark.gpu
@on_hopper
def test_which_tensors_are_served() -> None:
    rows = torch.randn(4, 6, device="cuda")
    assert gpu_kernels(rows) is gpu
    assert gpu.is_readable(rows[:, 1:5])
    assert gpu.is_readable(rows.double())
    assert not gpu.is_readable(rows.T)
    assert not gpu.is_readable(rows.int())


def test_every_number_of_rows_has_its_shape() -> None:
    """Threads of a block and of a multiprocessor stay within the hardware's limits."""
    for blocks in range(1, 9):
        loads, warps, resident = gpu._launch_settings(blocks)
        assert loads in (1, 2, 4)
        assert 32 * warps <= 1024
        assert 32 * warps * resident <= 2048


def test_the_source_is_shipped() -> None:
    """All settings are in it, and the wheel takes what is no Python file."""
    source = gpu.source()
    both = ("ELEMENT", "ALIGNED")
    for setting in (*both, "BLOCKS", "LOADS", "WARPS", "RESIDENT", "AHEAD", "THREADS"):
        assert setting in source
    folder = Path(gpu.__file__).parent
    project = tomllib.loads(
        (Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8")
    )
    globs = project["tool"]["setuptools"]["package-data"]["hewfl.displacements.gpu"]
    assert [file.name for glob in globs for file in folder.glob(glob)] == ["kernels.cu"]


def test_every_device_has_a_kernel_of_its_own(driver: Driver) -> None:
    devices = [torch.device("cuda", k) for k in (0, 1, 0)]
    is_available = gpu.is_available.__wrapped__
    assert [is_available(device) for device in devices] == [True, True, True]
    assert driver.loaded == devices[:2]


def test_kernels_are_loaded_where_the_rows_lie(driver: Driver) -> None:
    """Host tensors, with the driver's stand-in: their device is never the current."""
    rows = torch.randn(3, 50)
    for _ in range(2):
        gpu.block_sums(rows, None, 0)
        gpu.weighted_sum(rows, np.ones(3))
    assert driver.loaded == [rows.device] * 2
    assert driver.ran == [rows.device] * 4


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    "failure", [AttributeError, ImportError, OSError, RuntimeError]
)
def test_without_a_compiler_nothing_is_served(
    failure: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: str) -> None:
        raise failure

    monkeypatch.setattr(torch.cuda, "_compile_kernel", fails)
    assert not gpu.is_available.__wrapped__(torch.device("cuda", 0))
