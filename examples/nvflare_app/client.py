"""One site: softmax regression on its part of the digits, by plain SGD."""

import argparse
from typing import Any

import numpy as np
import nvflare.client as flare

from hewfl.data import dirichlet_partition, load, prepare

parser = argparse.ArgumentParser()
parser.add_argument("--sites", type=int, required=True)
parser.add_argument("--attackers", type=int, default=0, help="that many send -10 Δ")
options = parser.parse_args()

flare.init()
site = int(flare.get_site_name().removeprefix("site-")) - 1
data = prepare(load("digits"), 0)
rows = dirichlet_partition(data.labels, options.sites, 1.0, 0, min_samples=8)[site]
X, labels = data.features[rows], np.eye(10)[data.labels[rows]]
assert data.test is not None, "digits are split"
X_test, y_test = data.test
random = np.random.default_rng(site)


def probabilities(x: Any, weights: Any) -> Any:
    """Softmax of the scores."""
    scores = np.exp(x @ weights - (x @ weights).max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


while flare.is_running():
    received = flare.receive()
    sent = received.params["numpy_key"]
    accuracy = float(((X_test @ sent).argmax(axis=1) == y_test).mean())
    weights = sent.copy()
    for _ in range(20):
        batch = random.integers(len(rows), size=32)
        errors = probabilities(X[batch], weights) - labels[batch]
        weights -= 0.5 * X[batch].T @ errors / len(batch)
    if site < options.attackers:
        weights = sent - 10 * (weights - sent)
    steps = {"NUM_STEPS_CURRENT_ROUND": 20}
    arrays = {"numpy_key": weights.astype(np.float32)}
    metrics = {"accuracy": accuracy}
    flare.send(flare.FLModel(params=arrays, metrics=metrics, meta=steps))
