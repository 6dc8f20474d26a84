"""What server and clients say to each other: names of records and keys.

An order travels as `arrays` (the model), `config` (numbers) and, for corrected
branches, `correction`, shaped like the model. The answer is the model after local
training and `metrics`, as any Flower client sends them, under any names; from corrected
branches that are not plain SGD `mean-gradient` besides, shaped like the model.
"""

INTRODUCE, GRADIENT, TRAIN = "query.introduce", "train.gradient", "train"
SKETCH, CERTIFY = "train.sketch", "query.certify"
"""Message types: who are you, one gradient at the start, a local branch; and in rounds
of two phases a sketch of the update, and its product with a vector."""

ARRAYS, CONFIG, METRICS, CORRECTION = "arrays", "config", "metrics", "correction"
MEAN = "mean-gradient"
"""Names of records."""

ROUND, STEPS, STEP_SIZE = "server-round", "local-steps", "step-size"
PROXIMAL, HOLD = "proximal-mu", "hold"
"""Keys of an order; Flower's FedProx has the first and the fourth too."""

EXAMPLES, DONE, PARTITION = "num-examples", "num-steps", "partition-id"
BATCH, RATE = "batch-size", "lr"
"""Keys of an answer or an introduction, and the name under which stock apps are sent
their step size."""

SEED, WIDTH, WEIGHT = "sketch-seed", "sketch-width", "hew-weight"
LARGEST, PRODUCT = "largest-entry", "product"
"""Keys of a round of two phases."""

START = 2**31
"""The round whose draws give the gradients at the start, as in the engine."""
