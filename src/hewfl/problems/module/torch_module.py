"""Any PyTorch module and loss as a federated problem.

    F_i(x) = (1/m_i) Σ_j loss(f_x(a_ij), label_ij) + (λ/2)‖x‖²

in evaluation mode, x the module's trainable parameters one after the other. Local steps
run in training mode, with dropout, clipping and weight decay as in `training`.
The problem is not convex: there is no L and no certified minimiser. The page
docs/torch_module.md explains which methods apply.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Never, final

import numpy as np

from hewfl.core.array_types import Bool, Float, Float64, Int, Int64
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import (
    Array,
    ArrayLike,
    Ints,
    Mask,
    format_value,
    invalid,
)
from hewfl.displacements.backend import to_host
from hewfl.errors import SolverError
from hewfl.problems.array_operations import (
    check_pair,
    check_ranges,
    checked_shards,
    conform,
    two_means,
)
from hewfl.problems.module.loop_branches import branches_in_loop, clipped_gradient
from hewfl.problems.module.module_validation import (
    check_device,
    check_norms,
    check_pass,
    check_tensors,
)
from hewfl.problems.module.network import (
    Loss,
    Network,
    batch_keys,
    cross_entropy,
    flatten,
    network_of,
    parameter_layout,
    torch,
    unflatten,
)
from hewfl.problems.module.scoring import Scores, mean_gradient, scores
from hewfl.problems.module.stacked import StackedBranches, on_host
from hewfl.problems.module.training import LocalTask, Training, choose_route
from hewfl.problems.problem import LocalTests, grouped_means


@final
@dataclass(frozen=True, eq=False)  # no slots: copies of the module are cached
class TorchModule:
    """A module trained by clients on their own samples.

    Attributes:
        module: maps (b, …) features to (b, …) outputs; copied. Parameters that require
            no gradient are constants. Layers with running statistics raise an error,
            as do random numbers other than those of dropout layers.
        features: a_j of all clients, pooled, (m, …); a torch tensor on the device of
            the computation. Reals are converted to the precision of the models.
        labels: (m, …), there too.
        offsets: first row of each client's samples, shape (n,).
        data_sizes: m_i ≥ 1, shape (n,).
        loss: one number per sample, from outputs and labels.
        parts: further samples to evaluate on, such as `validation` and `test`, by name.
        normalise: mean and deviation by which all features are standardised on the
            fly; required for images stored as bytes.
        training: weight decay, clipping, precision, and the route of local steps.
        local_tests: the samples of the part `test` that each client is judged by.

    Raises:
        InvalidInputError: an argument breaks a rule above.

    Examples:
        >>> import numpy as np
        >>> import torch
        >>> rows, labels = torch.ones(8, 3), torch.tensor([0, 1] * 4)
        >>> offsets, sizes = np.array([0, 4]), np.array([4, 4])
        >>> problem = TorchModule(torch.nn.Linear(3, 2), rows, labels, offsets, sizes)
        >>> problem.n, problem.d
        (2, 8)
    """

    module: Any
    features: Any = field(repr=False)
    labels: Any = field(repr=False)
    offsets: Ints
    data_sizes: Ints
    loss: Loss = cross_entropy
    parts: Mapping[str, tuple[Any, Any]] = field(default_factory=dict, repr=False)
    normalise: tuple[float, float] | None = None
    training: Training = field(default_factory=Training)
    local_tests: LocalTests | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check module, loss and samples."""
        check_norms(self.module)
        if not isinstance(self.training, Training):
            raise invalid("training", "a Training", format_value(self.training))
        object.__setattr__(self, "module", copy.deepcopy(self.module))
        sets = {"": (self.features, self.labels)}
        sets |= {f"{name} ": part for name, part in self.parts.items()}
        for kind, (features, labels) in sets.items():
            check_tensors(kind, features, labels, self.normalise)
            network = self._network(torch.float32)
            check_pass(kind, network, (features, labels), self.normalise)
        check_ranges(self.offsets, self.data_sizes, len(self.features))
        if self.training.route == "graph" and self.features.device.type != "cuda":
            rule = "auto, stacked or loop where features are on the CPU"
            raise invalid("training.route", rule, '"graph"')

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.data_sizes)

    @property
    def d(self) -> int:
        """Number of trainable parameters."""
        return self._network(torch.float32).layout.d

    @property
    def smoothness(self) -> float:
        """Infinite: no bound is proven outside the convex theory.

        Algorithms refuse it by name. Give them 1/learning rate instead.
        """
        return float("inf")

    @cached_property
    def start(self) -> Float64[Array, " d"]:
        """The parameters of the module, the default start of `simulate`."""
        vector = flatten(parameter_layout(self.module), self.module.state_dict())
        start: Array = vector.double().cpu().numpy()
        return start

    def state_dict(self, x: Float[Array, " d"]) -> dict[str, Any]:
        """The module's state dict with the parameters x, for `load_state_dict`.

        Args:
            x: all parameters in one vector, as traces and optima hold them.

        Returns:
            Names and tensors.

        Raises:
            InvalidInputError: x has another length.
        """
        state = {k: v.clone() for k, v in self.module.state_dict().items()}
        parameters = unflatten(parameter_layout(self.module), torch.tensor(x))
        return state | {k: v.to(state[k]) for k, v in parameters.items()}

    def class_labels(self) -> tuple[Int64[Ints, " m"], int]:
        """A copy of all labels on the host, and the number of classes.

        Raises:
            InvalidInputError: labels are not classes.
        """
        given = self.labels
        if given.ndim != 1 or given.dtype.is_floating_point:
            rule = "classes, one whole number per sample, for attacks on labels"
            got = f"{given.dtype} of shape {tuple(given.shape)}"
            raise invalid("labels", rule, got)
        labels = np.array(given.cpu().numpy(), dtype=np.int64)
        return labels, int(labels.max()) + 1

    def with_labels(self, labels: Int64[Ints, " m"]) -> "TorchModule":
        """The problem of the same module and samples with other classes."""
        return replace(self, labels=torch.as_tensor(labels).to(self.labels))

    def minibatch_gradients(
        self,
        models: Float[Any, "models a d"],
        samples: Int[Any, "a b"],
        counts: Int[Any, " a"],
    ) -> Float[Any, "models a d"]:
        """Gradients of local steps: in training mode, clipped.

        With decay under SGD; AdamW adds its decay to Adam's direction instead. Computed
        one by one, as they are needed only once, at the start of a run.
        """
        y, rows = conform(models, self.features), conform(samples, self.features)
        keys = conform(batch_keys(samples, counts), self.features)
        task = self._task(y.dtype)
        each = [
            [
                clipped_gradient(task, point, rows[i, : int(counts[i])], keys[i])
                for i, point in enumerate(points)
            ]
            for points in y
        ]
        return conform(torch.stack([torch.stack(row) for row in each]), models)

    def branches(
        self,
        anchors: Float[Array, "models d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> Float[Array, "models s d"]:
        """Displacements of whole local branches, by the route of `training`."""
        return self.measured_branches(anchors, cohort, plans, samples)[0]

    @property
    def hides_gradients(self) -> bool:
        """Whether displacements hide mean gradients: AdamW rescales them."""
        return self.training.optimiser == "adamw"

    def measured_branches(
        self,
        anchors: Float[Array, "models d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> tuple[Float[Array, "models s d"], Float[Array, "measured s d"]]:
        """Displacements, and the mean gradients of corrected models under AdamW.

        The gradients are clipped, without weight decay, and taken before correction,
        proximal term and Adam, as a control variate needs them.
        """
        x = conform(anchors, self.features)
        task = self._task(x.dtype)
        route = choose_route(task, len(plans) * samples.shape[1], samples.shape[2])
        if route == "loop":
            moved, means = branches_in_loop(task, x, cohort, plans, samples)
            return on_host(moved), on_host(means)
        if (x.dtype, route) not in self._stacked:
            self._stacked[x.dtype, route] = StackedBranches(
                task, graphs=route == "graph"
            )
        return self._stacked[x.dtype, route].branches(x, cohort, plans, samples)

    def full_gradients(
        self, anchors: Float[Any, "models d"]
    ) -> Float[Any, "models n d"]:
        """∇F_i(x), exact and not clipped, for every client."""
        x = conform(anchors, self.features)
        task, decay = self._task(x.dtype), self.training.weight_decay
        spans = self._spans
        gradients = [
            torch.stack([mean_gradient(task, point, rows) for rows in spans])
            + decay * point
            for point in x
        ]
        return conform(torch.stack(gradients), anchors)

    def client_losses(
        self, anchors: Float[Any, "models d"]
    ) -> Float64[Any, "models n"]:
        """F_i(x) for every client, with the penalty."""
        x = conform(anchors, self.features)
        penalty = 0.5 * self.training.weight_decay * (x.double() ** 2).sum(dim=1)
        losses = self._client_means(self._train_scores(x).losses)
        return conform(losses + penalty.cpu().numpy()[:, None], anchors)

    def sample_losses(
        self, anchors: Float[Any, "models d"], samples: Int[Any, "a b"]
    ) -> Float64[Any, "models a"]:
        """Mean losses with the penalty on chosen samples, in evaluation mode."""
        x = conform(anchors, self.features)
        rows = torch.as_tensor(np.asarray(samples).reshape(-1)).to(self.features.device)
        task, data = self._task(x.dtype), (self.features[rows], self.labels[rows])
        each = scores(task, x, *data).losses.reshape(len(x), *samples.shape)
        penalty = 0.5 * self.training.weight_decay * (x.double() ** 2).sum(dim=1)
        return conform(each.mean(axis=2) + penalty.cpu().numpy()[:, None], anchors)

    def objectives(self, anchors: Float[Any, "models d"]) -> Float64[Any, "models 2"]:
        """(1/n) Σ F_i and Σ m_i F_i/Σ m_i, both with the penalty."""
        return two_means(self.client_losses(anchors), self.data_sizes)

    def evaluate(
        self, anchors: Float[Any, "models d"]
    ) -> dict[str, Float64[Any, "models ..."]]:
        """Loss without penalty and accuracy: `train_loss`, `train_accuracy`, and so on.

        Those of `train` are means over clients, of each client's mean; those of the
        parts are means over their samples. Accuracies only where labels are classes;
        those of the part `test` for each `class` and, with `local_tests`, `client` too.
        """
        x = conform(anchors, self.features)
        task, train = self._task(x.dtype), self._train_scores(x)
        measures = {"train_loss": self._client_means(train.losses).mean(axis=1)}
        if train.hits is not None:
            measures["train_accuracy"] = self._client_means(train.hits).mean(axis=1)
        for name, part in self.parts.items():
            scored = scores(task, x, *part)
            measures[f"{name}_loss"] = scored.losses.mean(axis=1)
            if scored.hits is not None:
                measures[f"{name}_accuracy"] = scored.hits.mean(axis=1)
                if name == "test":
                    measures |= self._accuracies(scored.hits, part[1])
        return {name: conform(value, anchors) for name, value in measures.items()}

    def _accuracies(
        self, hits: Bool[Mask, "models k"], labels: Any
    ) -> dict[str, Float64[Array, "models _"]]:
        """Accuracy on the test part of each class and of each client."""
        known = np.asarray(to_host(labels))
        classes = 1 + max(int(known.max()), int(self.labels.max()))
        measures = {"class": grouped_means(hits, known, classes)}
        if self.local_tests is not None:
            measures["client"] = self.local_tests.accuracies(hits)
        return measures

    def optimum(self) -> Never:
        """Not available: no minimiser can be certified.

        Raises:
            SolverError: always.
        """
        raise SolverError("the objective of a module has no certified minimiser")

    def pooled_optimum(self) -> Never:
        """Not available: no minimiser can be certified.

        Raises:
            SolverError: always.
        """
        self.optimum()

    @cached_property
    def _networks(self) -> dict[Any, Network]:
        return {}

    @cached_property
    def _stacked(self) -> dict[Any, StackedBranches]:
        return {}

    @cached_property
    def _last(self) -> list[tuple[Any, Scores]]:
        return []

    @cached_property
    def _footprint(self) -> int:
        network = self._network(torch.float32)
        return check_pass("", network, (self.features, self.labels), self.normalise)

    def _network(self, dtype: Any) -> Network:
        if dtype not in self._networks:
            device = self.features.device
            self._networks[dtype] = network_of(self.module, self.loss, device, dtype)
        return self._networks[dtype]

    def _task(self, dtype: Any) -> LocalTask:
        data = self.features, self.labels, self.normalise, self.training
        return LocalTask(self._network(dtype), *data, self._footprint)

    @property
    def _spans(self) -> list[slice]:
        """Rows of each client."""
        pairs = zip(self.offsets, self.data_sizes, strict=True)
        return [slice(int(lo), int(lo + m)) for lo, m in pairs]

    def _client_means(self, values: Any) -> Float64[Array, "models n"]:
        return np.stack([values[:, rows].mean(axis=1) for rows in self._spans], axis=1)

    def _train_scores(self, x: Float[Any, "models d"]) -> Scores:
        """A pass over the training samples; the last result is cached."""
        for known, cached in self._last:
            if known.dtype == x.dtype and torch.equal(known, x):
                return cached
        result = scores(self._task(x.dtype), x, self.features, self.labels)
        self._last[:] = [(x.clone(), result)]
        return result


def torch_from_arrays(  # noqa: PLR0913 - the public door: all but four are optional
    module: Any,
    X: Any,
    y: Any,
    partition: Sequence[ArrayLike],
    *,
    parts: Mapping[str, tuple[Any, Any]] | None = None,
    loss: Loss = cross_entropy,
    normalise: tuple[float, float] | None = None,
    training: Training | None = None,
    device: Any = "cpu",
) -> TorchModule:
    """A module as a federated problem over a partition of the rows of X.

    Rows are copied client by client; a row in no shard is left out, a row in two is
    copied twice. Features keep their type: bytes and half precision stay compact.

    Args:
        module: see `TorchModule`.
        X: samples, shape (m, …); NumPy or torch.
        y: labels, shape (m, …).
        partition: rows of each client, nonempty.
        parts: features and labels to evaluate on, by name.
        loss: one number per sample, from outputs and labels.
        normalise: mean and deviation by which features are standardised.
        training: settings of local training.
        device: of the computation, such as "cuda".

    Returns:
        The problem.

    Raises:
        InvalidInputError: rows, shapes, the module or the device break a rule.

    Examples:
        >>> X = np.arange(8, dtype=np.float32).reshape(4, 2)
        >>> layer = torch.nn.Linear(2, 3)
        >>> problem = torch_from_arrays(layer, X, [0, 1, 2, 1], [[0, 1], [2, 3]])
        >>> problem.n, problem.d
        (2, 9)
    """
    check_norms(module)
    check_device(device)
    features, labels = _tensors("", X, y, "cpu")
    check_tensors("", features, labels, normalise)
    shards = checked_shards(partition, len(features))
    order = torch.tensor(np.concatenate(shards))
    sizes = np.array([len(rows) for rows in shards])
    return TorchModule(
        module,
        features[order].to(device),
        labels[order].to(device),
        offsets=np.cumsum(sizes) - sizes,
        data_sizes=sizes,
        loss=loss,
        parts={} if parts is None else _parts(parts, device),
        normalise=normalise,
        training=Training() if training is None else training,
    )


def _tensors(kind: str, X: Any, y: Any, device: Any) -> tuple[Any, Any]:
    """Copies as tensors on a device; integer labels as int64."""
    features = _tensor(f"{kind}features", X, device)
    labels = _tensor(f"{kind}labels", y, device)
    return features, labels if labels.is_floating_point() else labels.long()


def _tensor(name: str, array: Any, device: Any) -> Any:
    try:
        return torch.tensor(to_host(array), device=device)
    except (TypeError, ValueError, AttributeError) as error:  # texts; ragged; no array
        raise invalid(name, "an array of numbers", format_value(array)) from error


def _parts(given: object, device: Any) -> dict[str, tuple[Any, Any]]:
    if not isinstance(given, Mapping):
        rule = "features and labels by name"
        raise invalid("parts", rule, type(given).__name__)
    tensors = {}
    for name, part in given.items():
        check_pair(f"parts[{name!r}]", part)
        tensors[name] = _tensors(f"{name} ", part[0], part[1], device)
    return tensors
