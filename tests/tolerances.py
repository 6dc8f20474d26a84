"""Every tolerance of the tests, and where it comes from."""

GAP = 1e-13
"""Relative duality gap of an exact solve: the stopping rule's own width."""
COMPONENTWISE = 1e-9
"""Componentwise gap where column lengths span many decades."""
HIDDEN = 1e-6
"""Componentwise gap above which weights among ordinary columns are called wrong."""
PERMUTATION = 1e-11
"""Change of least-norm weights when clients are reordered, over the largest weight."""
WEIGHTS = 1e-9
"""Weights of a well conditioned problem, over the largest weight."""
SECOND_OPINION = 1e-6
"""Objective agreement with a library solved to 1e-10 in its own scaled units."""
