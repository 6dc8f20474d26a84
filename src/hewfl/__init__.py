"""Exact-weight aggregation for local SGD with unequal local work."""
