"""One seed for all tests, one hypothesis profile: the same run everywhere."""

import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests import checked_types  # before hewfl, whose functions it puts checks on
from tests.simulation.unchecked import unchecked

settings.register_profile(
    "hewfl",
    derandomize=True,
    deadline=None,
    max_examples=int(os.environ.get("HEWFL_TEST_EXAMPLES", "25")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("hewfl")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # of a shell in the background; tests interrupt processes, which inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test marked `data` is skipped where the data sets are not there."""
    if "HEWFL_DATA" in os.environ:
        return
    for item in items:
        if item.get_closest_marker("data"):
            item.add_marker(pytest.mark.skip(reason="HEWFL_DATA is not set"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """The first calls of every function in a test are checked, see `checked_types`.

    A test marked `unchecked` runs as users do: checked types take most of its time.

    That is for tests with many thousands of calls; others call the same functions.
    """
    checked_types.begin_test()
    if item.get_closest_marker("unchecked") is None:
        return (yield)
    with unchecked():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file of tests that cannot be imported fails.

    `--doctest-ignore-import-errors` is for modules of src whose extra is missing; it
    would skip a broken file of tests without a word, and all its tests with it.
    """
    del collector
    report = yield
    if report.skipped and "unable to import module" in str(report.longrepr):
        report.outcome = "failed"
    return report


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator; HEWFL_TEST_SEED sweeps it."""
    return np.random.default_rng(int(os.environ.get("HEWFL_TEST_SEED", "7")))


@pytest.fixture(params=["compiled", "numpy"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """The compiled kernels, then their NumPy twins."""
    from hewfl.core import native  # noqa: PLC0415 - after the checks are in place

    if request.param == "numpy":
        with native.disabled():
            yield request.param
    elif native.is_available():
        yield request.param
    else:
        pytest.skip("the compiled kernels are switched off or not built")


@pytest.fixture(scope="session")
def pool() -> Iterator[Any]:
    """Four processes for all tests of torch jobs."""
    from tests.torch.pool import Pool  # noqa: PLC0415 - torch may not be installed

    with Pool(4) as ranks:
        yield ranks
