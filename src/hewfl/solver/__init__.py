"""The exact weight problem: a convex quadratic on the simplex, solved and certified."""
