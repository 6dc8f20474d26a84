"""Federated problems of torch modules from a spec; imported only where one is asked."""

from typing import Any

import numpy as np

from hewfl.core.plugins import load as load_code
from hewfl.core.plugins import make
from hewfl.core.toml_records import rename_errors
from hewfl.core.validation import format_value, invalid
from hewfl.data import (
    TrainingRows,
    class_counts,
    load,
    partition,
    row_clients,
    row_labels,
    split_rows,
)
from hewfl.data.dataset import Dataset
from hewfl.data.prepare import feature_rows
from hewfl.experiments.build_problem import local_tests
from hewfl.experiments.spec import Spec
from hewfl.experiments.spec_sections import MODELS_GROUP, ProblemSpec
from hewfl.problems.module.models import classifier_head, medium_cnn
from hewfl.problems.module.network import torch
from hewfl.problems.module.torch_module import TorchModule
from hewfl.problems.module.training import Training
from hewfl.problems.module.zoo import ZOO

SHAPES = {"medium_cnn": (784, 10), "classifier_head": (768, 4)}
"""Features and classes that the paper's modules are made for."""


def build_module(spec: Spec, seed: int) -> TorchModule:
    """The module of a spec on its data, with validation and test parts.

    Images stay bytes and are normalised on the fly, by mean and deviation of all
    training pixels; features of an encoder are taken as they are; those for a module of
    the user's own are standardised one by one, if `data.standardise` says so.
    """
    data, device = spec.data, "cpu" if spec.device == "numpy" else spec.device
    if device == "cuda" and not torch.cuda.is_available():
        raise invalid("device", "available; PyTorch finds no GPU", '"cuda"')
    dataset = load(
        data.name, label_column=data.label_column, client_column=data.client_column
    )
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
    if spec.clients.partition == "pool":
        raise invalid("clients.partition", "one with shards for a module", "pool")
    table, labels_ = feature_rows(dataset, training), row_labels(dataset, training)
    known = TrainingRows(labels_, table, row_clients(dataset, training))
    shards = partition(known, spec.clients.sharing, seed)
    order = training[np.concatenate(shards)]
    sizes = np.array([len(shard) for shard in shards])
    mean, deviation = 0.0, 1.0
    is_general = spec.problem.model not in SHAPES
    if is_general and data.standardise and table.dtype != np.uint8:
        mean, deviation = table.mean(axis=0), table.std(axis=0)
        deviation[deviation == 0] = 1.0  # a constant feature becomes zero

    def part(chosen: Any) -> tuple[Any, Any]:
        features = feature_rows(dataset, chosen)
        if is_general and features.dtype != np.uint8:
            features = (features - mean) / deviation
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
    return TorchModule(
        _module(spec, seed, dataset),
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
        local_tests=local_tests(
            spec,
            class_counts(labels_, shards, len(dataset.classes)),
            row_labels(dataset, test_rows),
            row_clients(dataset, test_rows),
        ),
    )


def _module(spec: Spec, seed: int, dataset: Dataset) -> Any:
    """A module by its name, or the user's own; torch's generator stays as it is."""
    wanted = spec.problem
    if wanted.model in SHAPES:
        known = medium_cnn if wanted.model == "medium_cnn" else classifier_head
        return known(seed, wanted.dropout)
    width = dataset.features.shape[1]
    offered = {
        "features": width,
        "shape": dataset.shape or (width,),
        "classes": len(dataset.classes),
        "seed": seed,
    }
    with torch.random.fork_rng(devices=[]), rename_errors(_option_names(wanted)):
        torch.manual_seed(seed)
        call = ZOO.get(wanted.model) or load_code(
            wanted.model, MODELS_GROUP, "problem.model"
        )
        module = make(call, wanted.options, offered, "problem.options")
    if not isinstance(module, torch.nn.Module):
        raise invalid(
            "problem.model", "one that makes a torch module", format_value(module)
        )
    return module


def _option_names(problem: ProblemSpec) -> dict[str, str]:
    """What the arguments of a network are called in a spec."""
    names = {name: f"problem.options.{name}" for name in problem.options}
    return names | {"shape": "data.name"}


def _check_fit(spec: Spec, dataset: Dataset) -> None:
    """Require data of the shape that a module of the paper is made for."""
    if spec.problem.model not in SHAPES:
        return
    features, classes = SHAPES[spec.problem.model]
    shape = (dataset.features.shape[1], len(dataset.classes))
    if shape[0] != features or shape[1] > classes:
        has = f"{dataset.name} has {shape[0]} features and {shape[1]} classes"
        wants = f"{spec.problem.model} is for {features} and at most {classes}"
        rule = f"one for data.name = {spec.data.name!r} ({has}; {wants})"
        raise invalid("problem.model", rule, f'"{spec.problem.model}"')
