"""Federated problems of torch modules from a spec; imported only where one is asked."""

from typing import Any

import numpy as np

from hewfl.core.checks import invalid
from hewfl.data import dirichlet_partition, iid_partition, load, split_rows
from hewfl.data.dataset import Dataset
from hewfl.data.partition import Partition
from hewfl.data.prepare import row_labels
from hewfl.experiments.spec import Spec
from hewfl.problems.module.backend import torch
from hewfl.problems.module.models import classifier_head, medium_cnn
from hewfl.problems.module.torch_module import TorchModule
from hewfl.problems.module.training import Training

SHAPES = {"medium_cnn": (784, 10), "classifier_head": (768, 4)}
"""Features and classes that the models are made for."""


def build_module(spec: Spec, seed: int) -> TorchModule:
    """The module of a spec on its data, with validation and test parts.

    Images stay bytes and are normalised on the fly, by mean and deviation of all
    training pixels; features of an encoder are taken as they are.
    """
    data, device = spec.data, "cpu" if spec.device == "numpy" else spec.device
    if device == "cuda" and not torch.cuda.is_available():
        raise invalid("device", "one that is there; PyTorch sees no GPU", '"cuda"')
    dataset = load(data.name, label=data.label)
    _check_fit(spec, dataset)
    rows, test_rows = split_rows(
        dataset,
        seed,
        test_fraction=data.test_fraction,
        split=data.split,
        subsample=data.subsample,
    )
    held_out = round(data.validation_fraction * len(rows))
    if data.validation_fraction and not 0 < held_out < len(rows):
        rule = f"0, or hold out at least one of {len(rows)} rows and leave one"
        raise invalid("data.validation_fraction", rule, data.validation_fraction)
    validation, training = rows[:held_out], rows[held_out:]
    shards = _shards(spec, row_labels(dataset, training), seed)
    order = training[np.concatenate(shards)]
    sizes = np.array([len(shard) for shard in shards])

    def part(chosen: Any) -> tuple[Any, Any]:
        features = _rows(dataset, chosen)
        labels = torch.as_tensor(row_labels(dataset, chosen))
        return torch.as_tensor(features).to(device), labels.to(device)

    X, y = part(order)
    parts = {"test": part(test_rows)}
    if held_out:
        parts["validation"] = part(validation)
    normalise = None
    if X.dtype == torch.uint8:
        wide = X.double()
        normalise = (float(wide.mean()), float(wide.std()))
    wanted = spec.problem
    make = medium_cnn if wanted.model == "medium_cnn" else classifier_head
    return TorchModule(
        make(seed, wanted.dropout),
        X,
        y,
        np.cumsum(sizes) - sizes,
        sizes,
        parts=parts,
        normalise=normalise,
        training=Training(
            weight_decay=wanted.weight_decay,
            clip=wanted.clip,
            optimiser=wanted.optimiser,
            precision=wanted.precision,
            client_chunk=wanted.client_chunk,
        ),
    )


def _check_fit(spec: Spec, dataset: Dataset) -> None:
    """Require data of the shape that the model is made for."""
    features, classes = SHAPES[spec.problem.model]
    found = (dataset.features.shape[1], len(dataset.classes))
    if found[0] != features or found[1] > classes:
        has = f"{dataset.name} has {found[0]} features and {found[1]} classes"
        wants = f"{spec.problem.model} is for {features} and at most {classes}"
        rule = f"one for data.name = {spec.data.name!r} ({has}; {wants})"
        raise invalid("problem.model", rule, f'"{spec.problem.model}"')


def _shards(spec: Spec, labels: Any, seed: int) -> Partition:
    clients = spec.clients
    if clients.partition == "pool":
        raise invalid("clients.partition", "iid or dirichlet for a module", "pool")
    if clients.partition == "iid":
        return iid_partition(len(labels), clients.n, seed)
    return dirichlet_partition(
        labels, clients.n, clients.alpha, seed, minimum=clients.minimum
    )


def _rows(dataset: Any, rows: Any) -> Any:
    """Features of rows that count through both published parts; halves made whole."""
    first = len(dataset.labels)
    blocks = [dataset.features[rows[rows < first]]]
    if dataset.test is not None:
        blocks.append(dataset.test[0][rows[rows >= first] - first])
    inside = np.concatenate(
        [np.flatnonzero(rows < first), np.flatnonzero(rows >= first)]
    )
    stacked = np.concatenate(blocks)
    found = np.empty_like(stacked)
    found[inside] = stacked
    return found if found.dtype == np.uint8 else found.astype(np.float32)
