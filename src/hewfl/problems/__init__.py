"""What simulated clients optimise."""

from hewfl.problems.problem import LinearProblem, Optimum, Problem
from hewfl.problems.quadratic import Quadratic
from hewfl.problems.random_quadratic import random_quadratic
from hewfl.problems.softmax import Softmax
from hewfl.problems.softmax_data import softmax_common_pool, softmax_from_arrays

__all__ = [
    "LinearProblem",
    "Optimum",
    "Problem",
    "Quadratic",
    "Softmax",
    "random_quadratic",
    "softmax_common_pool",
    "softmax_from_arrays",
]
