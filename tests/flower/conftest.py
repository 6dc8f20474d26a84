"""Quiet logs; apps and helpers are not collected for doctests."""

import logging

import pytest

collect_ignore_glob = ["federation.py", "runtime.py", "stock.py", "app/*", "masked/*"]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("flwr").setLevel(logging.WARNING)
