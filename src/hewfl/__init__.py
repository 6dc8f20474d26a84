"""Exact-weight aggregation for local SGD with unequal local work.

The server solves for the weights of a round instead of fixing them by a rule:

- `solve_simplex_qp`, `threshold_weights`: the exact weight problems;
- `post_local_weights`, `combine`: weights and step from the clients' displacements;
- `predictive_control`: weights and amplitudes before the round.

Every answer carries a certificate that the caller can recompute.
"""

from hewfl.core.control import predictive_control
from hewfl.core.post_local import combine, data_gap, post_local_weights
from hewfl.core.records import (
    ClientProfile,
    ControlSolution,
    ProblemBounds,
    SimplexSolution,
    UpperState,
)
from hewfl.core.simplex import solve_simplex_qp
from hewfl.core.threshold import threshold_weights
from hewfl.errors import (
    DataError,
    HewError,
    InvalidInputError,
    MissingExtraError,
    SolverError,
)
from hewfl.version import __version__

__all__ = [
    "ClientProfile",
    "ControlSolution",
    "DataError",
    "HewError",
    "InvalidInputError",
    "MissingExtraError",
    "ProblemBounds",
    "SimplexSolution",
    "SolverError",
    "UpperState",
    "__version__",
    "combine",
    "data_gap",
    "post_local_weights",
    "predictive_control",
    "solve_simplex_qp",
    "threshold_weights",
]
