"""Evaluation at the server, which here knows all data."""

from collections.abc import Callable

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from hewfl.problems import Softmax


def evaluation(problem: Softmax) -> Callable[[int, ArrayRecord], MetricRecord]:
    """Objective, mean over all samples, and the test part's accuracy."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        del server_round
        parts = [array.ravel() for array in arrays.to_numpy_ndarrays()]
        x = np.concatenate(parts)[None]
        objective, pooled = np.asarray(problem.objectives(x))[0]
        measured = {name: v[0] for name, v in problem.evaluate(x).items()}
        others = {name: float(v) for name, v in measured.items() if v.ndim == 0}
        known = {"objective": float(objective), "pooled": float(pooled)}
        return MetricRecord(known | others)

    return evaluate
