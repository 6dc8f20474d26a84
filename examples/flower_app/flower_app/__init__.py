"""Exact-weight aggregation of unequal local work on Flower."""
