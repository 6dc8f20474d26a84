"""Aggregators of hewfl in an NVFLARE job; docs/nvflare.md is the guide."""

from hewfl.errors import MissingExtraError

try:
    import nvflare  # noqa: F401 - imported first, so that users see the text below
except ImportError as error:
    text = "HewAggregator needs nvflare: install hewfl's extra nvflare"
    raise MissingExtraError(text) from error

from hewfl.nvflare.aggregator import HewAggregator

__all__ = ["HewAggregator"]
