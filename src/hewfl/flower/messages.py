"""What travels between server and clients: names of records and keys, and numbers.

An order travels as `arrays` (the model), `config` (numbers) and, for corrected
branches, `correction`, shaped like the model. The reply is the model after local
training and `metrics`, as any Flower client sends them, under any names. Corrected
branches that are not plain SGD also send `mean-gradient`, shaped like the model.
"""

import logging
from typing import Any

from flwr.app import MetricRecord, RecordDict

from hewfl.core.validation import invalid
from hewfl.server.plausibility import MAX_COUNT

INTRODUCE, GRADIENT, TRAIN = "query.introduce", "train.gradient", "train"
SKETCH, CERTIFY = "train.sketch", "query.certify"
"""Message types: an introduction, one gradient at the start, a local branch; and in
rounds of two phases a sketch of the update, and its product with a vector."""

ARRAYS, CONFIG, METRICS, CORRECTION = "arrays", "config", "metrics", "correction"
MEAN_GRADIENT = "mean-gradient"
"""Names of records."""

ROUND, STEPS, STEP_SIZE = "server-round", "local-steps", "step-size"
PROXIMAL, HOLD = "proximal-mu", "hold"
"""Keys of an order; Flower's FedProx has the first and the fourth too."""

EXAMPLES, STEPS_DONE, PARTITION = "num-examples", "num-steps", "partition-id"
BATCH, LEARNING_RATE = "batch-size", "lr"
"""Keys of a reply or an introduction, and the key by which stock apps receive their
step size."""

SEED, WIDTH, WEIGHT = "sketch-2-seed", "sketch-width", "hew-weight"
LARGEST, PRODUCT = "largest-entry", "product"
"""Keys of a round of two phases. Clients of another sketch than the second refuse."""

GRADIENT_ROUND = 2**31
"""The round whose draws give the gradients at the start, as in the engine."""

log = logging.getLogger("flwr")
"""Flower's own logger, so that its users see the reasons of exclusions."""


def metrics_and_size(content: RecordDict, key: str) -> tuple[MetricRecord, float]:
    """The one MetricRecord of a reply, and the number in it that weighs the client."""
    records = list(content.metric_records.values())
    if len(records) != 1:
        raise invalid("the reply", "with one MetricRecord", len(records))
    size = records[0].get(key)
    if not isinstance(size, int | float) or not 0 <= size <= MAX_COUNT:
        raise invalid(f'"{key}"', "a number from 0 to 2^53", repr(size))
    return records[0], float(size)


def read_count(metrics: Any, key: str, *, least: int = 1, most: int = MAX_COUNT) -> int:
    """A whole number out of a record."""
    value: Any = metrics.get(key)
    is_in_range = isinstance(value, int | float) and least <= value <= most
    if not is_in_range or value != int(value):
        rule = f"a whole number from {least} to {most}"
        raise invalid(f'"{key}"', rule, repr(value))
    return int(value)


def is_steps_reported(content: RecordDict) -> bool:
    """Whether a reply says how many local steps were taken."""
    return any(STEPS_DONE in record for record in content.metric_records.values())
