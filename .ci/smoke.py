"""Smoke test of an installed package: import, solve, simulate, the command."""

import subprocess
import sys
import tempfile

import numpy as np

import hewfl
from hewfl.core import native


def main() -> None:
    """Run what every installation supports."""
    solution = hewfl.solve_simplex_qp(np.eye(3), np.array([0.0, 0.0, 0.0]))
    np.testing.assert_allclose(solution.weights, np.full(3, 1 / 3))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hewfl.cli", "demo", "--output", folder]
        subprocess.run(command, check=True, timeout=600)
    kernels = "with" if native.is_available() else "without"
    print(f"hewfl {hewfl.__version__} works, {kernels} compiled kernels")


if __name__ == "__main__":
    main()
