"""Four processes for all tests of this folder."""

from collections.abc import Iterator

import pytest
from tests.torch.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    with Pool(4) as ranks:
        yield ranks
