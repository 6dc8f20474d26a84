"""Any PyTorch module and loss as a federated problem.

    F_i(x) = (1/m_i) Σ_j loss(f_x(a_ij), label_ij) + (λ/2)‖x‖²

in evaluation mode, x the module's trainable parameters one after the other. Local steps
run in training mode, with dropout, clipping and weight decay as `task` says.
Nothing here is convex: there is no L and no certified minimiser. Give algorithms
1/learning rate for their smoothness; docs/torch_module.md says what that means.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Never, final

import numpy as np

from hewfl.core.array_types import Float, Float64, Int, Int64
from hewfl.core.round import Cohort, LocalPlan
from hewfl.core.validation import Array, ArrayLike, Ints, invalid, shown
from hewfl.displacements.backend import to_host
from hewfl.errors import SolverError
from hewfl.problems.arrays import (
    check_pair,
    check_ranges,
    conform,
    shards_of,
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
    layout_of,
    network_of,
    torch,
    unflatten,
)
from hewfl.problems.module.scoring import Scores, mean_gradient, scores
from hewfl.problems.module.stacked import Stepper, on_host
from hewfl.problems.module.training import Task, Training, choose_route


@final
@dataclass(frozen=True, eq=False)  # no slots: copies of the module are kept once made
class TorchModule:
    """A module trained by clients on their own samples.

    Attributes:
        module: answers (b, …) features with (b, …) outputs; copied. Parameters that
            require no gradient are constants. Layers with running statistics are
            refused, as are random numbers other than those of dropout layers.
        features: a_j of all clients, pooled, (m, …); a torch tensor on the device where
            everything is to run. Reals are taken to the precision of the models.
        labels: (m, …), there too.
        offsets: first row of each client's samples, shape (n,).
        data_sizes: m_i ≥ 1, shape (n,).
        loss: one number per sample, from outputs and labels.
        parts: further samples to evaluate on, such as `validation` and `test`, by name.
        normalise: mean and deviation taken off all features on the fly; a must for
            images stored as bytes.
        training: weight decay, clipping, precision, and how clients are stacked.

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

    def __post_init__(self) -> None:
        """Refuse a module, loss and samples that do not fit together."""
        check_norms(self.module)
        if not isinstance(self.training, Training):
            raise invalid("training", "a Training", shown(self.training))
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
        """The module's own parameters, where `simulate` starts by default."""
        vector = flatten(layout_of(self.module), self.module.state_dict())
        found: Array = vector.double().cpu().numpy()
        return found

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
        parameters = unflatten(layout_of(self.module), torch.tensor(x))
        return state | {k: v.to(state[k]) for k, v in parameters.items()}

    def class_labels(self) -> tuple[Int64[Ints, " m"], int]:
        """Labels of all samples, in memory of their own on the host, and their number.

        Raises:
            InvalidInputError: labels are no classes.
        """
        given = self.labels
        if given.ndim != 1 or given.dtype.is_floating_point:
            rule = (
                "classes, one whole number a sample, where a scenario gets them wrong"
            )
            raise invalid(
                "labels", rule, f"{given.dtype} of shape {tuple(given.shape)}"
            )
        found = np.array(given.cpu().numpy(), dtype=np.int64)
        return found, int(found.max()) + 1

    def with_labels(self, labels: Int64[Ints, " m"]) -> "TorchModule":
        """The problem of the same module and samples with other classes."""
        return replace(self, labels=torch.as_tensor(labels).to(self.labels))

    def minibatch_gradients(
        self,
        models: Float[Any, "lanes a d"],
        samples: Int[Any, "a b"],
        counts: Int[Any, " a"],
    ) -> Float[Any, "lanes a d"]:
        """Gradients that a local step follows: in training mode, clipped.

        With decay under SGD; AdamW adds its decay to Adam's direction instead. Model by
        model, as the engine asks for these once, at the start of a run.
        """
        y, rows = conform(models, self.features), conform(samples, self.features)
        keys = conform(batch_keys(samples, counts), self.features)
        task = self._task(y.dtype)
        each = [
            [
                clipped_gradient(task, point, rows[i, : int(counts[i])], keys[i])
                for i, point in enumerate(lane)
            ]
            for lane in y
        ]
        found = torch.stack([torch.stack(lane) for lane in each])
        return conform(found, models)

    def branches(
        self,
        anchors: Float[Array, "lanes d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> Float[Array, "lanes s d"]:
        """Displacements of whole local branches, by the route of `training`."""
        return self.measured_branches(anchors, cohort, plans, samples)[0]

    @property
    def hides_gradients(self) -> bool:
        """Whether displacements do not show mean gradients: AdamW scales them."""
        return self.training.optimiser == "adamw"

    def measured_branches(
        self,
        anchors: Float[Array, "lanes d"],
        cohort: Cohort,
        plans: Sequence[LocalPlan],
        samples: Int64[Ints, "steps s b"],
    ) -> tuple[Float[Array, "lanes s d"], Float[Array, "measured s d"]]:
        """Displacements, and the mean gradients of corrected lanes under AdamW.

        The gradients are clipped as those of every step, without weight decay, and are
        taken before correction, proximal term and Adam: what a control variate stands
        for.
        """
        x = conform(anchors, self.features)
        task = self._task(x.dtype)
        route = choose_route(task, len(plans) * samples.shape[1], samples.shape[2])
        if route == "loop":
            moved, means = branches_in_loop(task, x, cohort, plans, samples)
            return on_host(moved), on_host(means)
        if (x.dtype, route) not in self._steppers:
            self._steppers[x.dtype, route] = Stepper(task, graphs=route == "graph")
        return self._steppers[x.dtype, route].branches(x, cohort, plans, samples)

    def full_gradients(self, anchors: Float[Any, "lanes d"]) -> Float[Any, "lanes n d"]:
        """∇F_i(x), exact and not clipped, for every client."""
        x = conform(anchors, self.features)
        task, decay = self._task(x.dtype), self.training.weight_decay
        spans = self._spans
        found = [
            torch.stack([mean_gradient(task, lane, rows) for rows in spans])
            + decay * lane
            for lane in x
        ]
        return conform(torch.stack(found), anchors)

    def client_losses(self, anchors: Float[Any, "lanes d"]) -> Float64[Any, "lanes n"]:
        """F_i(x) for every client, with the penalty."""
        x = conform(anchors, self.features)
        penalty = 0.5 * self.training.weight_decay * (x.double() ** 2).sum(dim=1)
        losses = self._client_means(self._train_scores(x).losses)
        return conform(losses + penalty.cpu().numpy()[:, None], anchors)

    def sample_losses(
        self, anchors: Float[Any, "lanes d"], samples: Int[Any, "a b"]
    ) -> Float64[Any, "lanes a"]:
        """Mean losses with the penalty on chosen samples, in evaluation mode."""
        x = conform(anchors, self.features)
        rows = torch.as_tensor(np.asarray(samples).reshape(-1)).to(self.features.device)
        task, data = self._task(x.dtype), (self.features[rows], self.labels[rows])
        each = scores(task, x, *data).losses.reshape(len(x), *samples.shape)
        penalty = 0.5 * self.training.weight_decay * (x.double() ** 2).sum(dim=1)
        return conform(each.mean(axis=2) + penalty.cpu().numpy()[:, None], anchors)

    def objectives(self, anchors: Float[Any, "lanes d"]) -> Float64[Any, "lanes 2"]:
        """(1/n) Σ F_i and Σ m_i F_i/Σ m_i, both with the penalty."""
        return two_means(self.client_losses(anchors), self.data_sizes)

    def evaluate(
        self, anchors: Float[Any, "lanes d"]
    ) -> dict[str, Float64[Any, " lanes"]]:
        """Loss without penalty and accuracy: `train_loss`, `train_accuracy`, and so on.

        Those of `train` are means over clients, of each client's mean; those of the
        parts are means over their samples. Accuracies only where labels are classes.
        """
        x = conform(anchors, self.features)
        task, train = self._task(x.dtype), self._train_scores(x)
        found = {"train_loss": self._client_means(train.losses).mean(axis=1)}
        if train.hits is not None:
            found["train_accuracy"] = self._client_means(train.hits).mean(axis=1)
        for name, part in self.parts.items():
            scored = scores(task, x, *part)
            found[f"{name}_loss"] = scored.losses.mean(axis=1)
            if scored.hits is not None:
                found[f"{name}_accuracy"] = scored.hits.mean(axis=1)
        return {name: conform(value, anchors) for name, value in found.items()}

    def optimum(self) -> Never:
        """Refuse, as no minimiser can be certified.

        Raises:
            SolverError: always.
        """
        raise SolverError("a module's objective has no certified minimiser: ask none")

    def pooled_optimum(self) -> Never:
        """Refuse, as no minimiser can be certified.

        Raises:
            SolverError: always.
        """
        self.optimum()

    @cached_property
    def _networks(self) -> dict[Any, Network]:
        return {}

    @cached_property
    def _steppers(self) -> dict[Any, Stepper]:
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

    def _task(self, dtype: Any) -> Task:
        data = self.features, self.labels, self.normalise, self.training
        return Task(self._network(dtype), *data, self._footprint)

    @property
    def _spans(self) -> list[slice]:
        """Rows of each client."""
        pairs = zip(self.offsets, self.data_sizes, strict=True)
        return [slice(int(lo), int(lo + m)) for lo, m in pairs]

    def _client_means(self, values: Any) -> Float64[Array, "lanes n"]:
        return np.stack([values[:, rows].mean(axis=1) for rows in self._spans], axis=1)

    def _train_scores(self, x: Float[Any, "lanes d"]) -> Scores:
        """A pass over the training samples; the last is kept, as it is asked twice."""
        for known, found in self._last:
            if known.dtype == x.dtype and torch.equal(known, x):
                return found
        found = scores(self._task(x.dtype), x, self.features, self.labels)
        self._last[:] = [(x.clone(), found)]
        return found


# ------------------ Federated modules from arrays and a partition of their rows


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
    """The module trained by clients that hold given rows of X.

    Rows are copied client by client; a row in no shard is left out, a row in two is
    copied twice. Features keep their type, so that bytes and halves stay small.

    Args:
        module: see `TorchModule`.
        X: samples, shape (m, …); NumPy or torch.
        y: labels, shape (m, …).
        partition: rows of each client, nonempty.
        parts: features and labels to evaluate on, by name.
        loss: one number per sample, from outputs and labels.
        normalise: mean and deviation taken off features on the fly.
        training: settings of local training.
        device: where everything is to run, such as "cuda".

    Returns:
        The problem.

    Raises:
        InvalidInputError: rows, shapes, the module or the device break a rule.

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
    shards = shards_of(partition, len(features))
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
    """Tensors of their own, there; whole numbers among the labels as int64."""
    features = _tensor(f"{kind}features", X, device)
    labels = _tensor(f"{kind}labels", y, device)
    return features, labels if labels.is_floating_point() else labels.long()


def _tensor(name: str, array: Any, device: Any) -> Any:
    try:
        return torch.tensor(to_host(array), device=device)
    except (TypeError, ValueError, AttributeError) as error:  # texts; ragged; no array
        raise invalid(name, "an array of numbers", shown(array)) from error


def _parts(given: object, device: Any) -> dict[str, tuple[Any, Any]]:
    if not isinstance(given, Mapping):
        rule = "features and labels by name"
        raise invalid("parts", rule, type(given).__name__)
    found = {}
    for name, part in given.items():
        check_pair(f"parts[{name!r}]", part)
        found[name] = _tensors(f"{name} ", part[0], part[1], device)
    return found
