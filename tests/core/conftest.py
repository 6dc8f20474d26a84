"""Tests of the mathematics run on both paths where they differ."""

from collections.abc import Iterator

import pytest

from hewfl.core import native


@pytest.fixture(params=["compiled", "numpy"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    """The compiled kernels, then their NumPy twins."""
    if request.param == "numpy":
        with native.disabled():
            yield request.param
    elif native.is_available():
        yield request.param
    else:
        pytest.skip("the compiled kernels are switched off or not built")
