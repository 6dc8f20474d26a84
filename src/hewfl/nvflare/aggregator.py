"""A model aggregator for NVFLARE's FedAvg and ScatterAndGather workflows.

Both announce the model that they send (BEFORE_TRAIN_TASK): displacements are measured
from it. A round gives a whole model; where it is rejected, that is the one sent.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import FLMetaKey, ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from hewfl.core.plugins import load
from hewfl.core.validation import invalid, positive, whole
from hewfl.displacements.backend import to_host
from hewfl.methods.registry import client_entry
from hewfl.server import plausibility
from hewfl.server.array_layout import PARAMETERS, root_vector, split_arrays
from hewfl.server.client_updates import (
    ClientResult,
    aggregate_updates,
    read_result,
    reported_cohort,
)
from hewfl.server.finish_round import Outcome
from hewfl.server.plausibility import MAX_COUNT
from hewfl.server.state import ServerState

_STEPS, _FULL = FLMetaKey.NUM_STEPS_CURRENT_ROUND, ParamsType.FULL


class HewAggregator(ModelAggregator):  # type: ignore[misc]  # checked without nvflare
    """An aggregator of hewfl for NVFLARE: `FedAvgRecipe(aggregator=HewAggregator())`.

    Args:
        aggregator: a name of `hewfl.aggregators.NAMES`, such as "clip+krum".
        options: fields of the aggregator, such as {"f": 0.2}.
        server_step: fields of `hewfl.ServerStep`, such as {"momentum": 0.9}.
        weighting: whether clients count alike ("equal"), or by the iterations that they
            report ("size"): in means of metrics, and in rules that weigh by size.
        max_share: largest share of one client in the sum of the sizes.
        judge: name patterns of the arrays that the aggregator sees; one after "!"
            excludes. None: all but running statistics of normalisation layers, which
            take the median of the clients.
        aggregated: patterns of the arrays that clients may change at all.
        max_norm_ratio: a displacement longer than this times the round's median is left
            out. By default 10; 100 for rules that shorten long ones themselves.
        min_results: with fewer usable results a round is rejected.
        learning_rate: of the clients, for aggregators that need it: plain SGD.
        root_fn: "module:function", from the model (NumPy arrays by name) to a gradient
            at it, on samples that the server trusts, for aggregators that need one.

    Raises:
        InvalidInputError: there is no such aggregator, clients that train by themselves
            cannot serve it, or a number is out of range.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - all have defaults
        self,
        aggregator: str = "majority-sieve",
        options: Mapping[str, Any] | None = None,
        server_step: Mapping[str, Any] | None = None,
        weighting: Literal["equal", "size"] = "size",
        max_share: float = 0.2,
        judge: str | Sequence[str] | None = None,
        aggregated: str | Sequence[str] = "*",
        max_norm_ratio: float | None = None,
        min_results: int = 1,
        learning_rate: float | None = None,
        root_fn: str | None = None,
    ) -> None:
        super().__init__()
        # NVFLARE writes the attributes of these names into the job
        self.aggregator, self.options = aggregator, options
        self.server_step, self.root_fn = server_step, root_fn
        self.judge, self.aggregated = judge, aggregated
        plausibility.require_weighting(weighting, max_share)
        self.weighting, self.max_share = weighting, max_share
        self.min_results = whole("min_results", min_results, least=1)
        self.entry = client_entry(aggregator, options or {}, server_step or {})
        demands = self.entry.algorithm.demands
        self._needs, self.max_norm_ratio = demands.needs, max_norm_ratio
        self._norm_ratio = plausibility.norm_ratio(max_norm_ratio, demands)
        self._must_count = "steps" in demands.needs and not demands.clips
        if "step_sizes" in self._needs and learning_rate is None:
            rule = f"given for {self.entry.name}: the step size of the clients' SGD"
            raise invalid("learning_rate", rule, None)
        rate = 1.0 if learning_rate is None else learning_rate
        self._rate, self.learning_rate = positive("learning_rate", rate), learning_rate
        needs_root = "root" in self._needs
        if not isinstance(root_fn, str if needs_root else type(None)):
            rule = '"module:function"' if needs_root else "left out"
            raise invalid("root_fn", f"{rule} for {self.entry.name}", repr(root_fn))
        self._numbers: dict[str, int] = {}
        self._state: ServerState | None = None
        self._sent: Mapping[str, Any] | None = None
        self.reset_stats()

    def reset_stats(self) -> None:
        """Forget the results of the last round; memories of clients stay."""
        self._asked: set[str] = set()
        self._results: dict[str, ClientResult] = {}
        self._excluded: dict[str, tuple[str, str]] = {}

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Note the model that a client is sent."""
        super().handle_event(event_type, fl_ctx)
        if event_type == AppEventType.BEFORE_TRAIN_TASK:
            self.fl_ctx, peer = fl_ctx, fl_ctx.get_peer_context()
            shareable = fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE)
            self._sent = dict(from_shareable(shareable).data)
            if peer is not None:
                self._asked.add(str(peer.get_identity_name()))

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Read a result that ScatterAndGather hands over."""
        self.fl_ctx = fl_ctx
        name = str(shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, "?"))
        begun = shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND)
        now = fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
        if None not in (begun, now) and begun != now:
            self.warning(f"{name} is left out, late: a result of round {begun}")
            return False
        try:
            model = FLModelUtils.from_shareable(shareable, fl_ctx)
        except Exception as error:  # a reader of foreign data raises many kinds
            self._excluded[name] = ("malformed", str(error))
            return False
        model.meta["client_name"] = name
        return self.accept_model(model)

    def accept_model(self, model: FLModel) -> bool:
        """Read a result; whether it can be used so far."""
        name = str(model.meta.get("client_name"))
        if self._results.pop(name, None) is not None or name in self._excluded:
            self._excluded[name] = ("malformed", "two results in one round")
            return False
        try:
            sent, *layouts = self._layouts()
            numbers = self._count(model.meta), model.metrics
            given, is_whole = _host_arrays(model.params), model.params_type == _FULL
            result = read_result(given, sent, layouts, *numbers, is_whole=is_whole)
        except Exception as error:  # a reader of foreign data raises many kinds
            self._excluded[name] = ("malformed", str(error))
            return False
        self._results[name] = result
        return True

    def _count(self, meta: Mapping[str, Any]) -> float:
        """The local iterations that a client reports; 1 where it need not."""
        count = meta.get(_STEPS, None if self._must_count else 1)
        if not isinstance(count, int | float) or not 0 < count <= MAX_COUNT:
            raise invalid(f'meta["{_STEPS}"]', "a number above 0", repr(count))
        if self._must_count and count % 1:
            raise invalid(f'meta["{_STEPS}"]', "a whole number", repr(count))
        return float(count)

    def aggregate_model(self) -> FLModel:
        """The next model; the one that was sent where the round is rejected."""
        _, judged, other = self._layouts()
        usable = self._drop_unusable()
        results = list(usable.values())
        sizes = np.array([r.size if self.weighting == "size" else 1 for r in results])
        sizes = plausibility.cap_shares(sizes.astype(np.float64), self.max_share)
        means = plausibility.plausible_means([r.metrics for r in results], sizes)
        after, status = dict(self._sent or {}), f"{len(usable)} usable results"
        is_enough = len(usable) >= self.min_results
        outcome = self._decide(usable, sizes) if is_enough else None
        if outcome is None or outcome.decision is None:
            self.warning(f"round rejected: {outcome.status if outcome else status}")
        else:
            self._state = outcome.state
            median = np.median(np.stack([r.buffers for r in results]), axis=0)
            after |= judged.arrays(outcome.state.anchor, after)
            after |= other.arrays(median, after)
            shares = zip(usable, outcome.decision.weights, strict=True)
            weights = ", ".join(f"{name} {weight:.3g}" for name, weight in shares)
            self.info(f"{outcome.status}; weights: {weights}")
        return FLModel(_FULL, after, metrics=means or None)

    def _layouts(self) -> Any:
        """The model that was sent; layouts of what is judged, and of the rest."""
        if self._sent is None:
            rule = "in a workflow that announces its model (FedAvg, ScatterAndGather)"
            raise invalid("HewAggregator", rule, "a result and no model")
        sent = _host_arrays(self._sent)
        judge = PARAMETERS if self.judge is None else self.judge
        return sent, *split_arrays(sent, judge, self.aggregated)

    def _drop_unusable(self) -> dict[str, ClientResult]:
        """The results that can be aggregated, in client order."""
        for name in sorted(self._asked | self._results.keys()):
            self._numbers.setdefault(name, len(self._numbers))
        names = sorted(self._results, key=self._numbers.__getitem__)
        held = [self._results[name] for name in names]
        steps = np.array([int(r.size) for r in held], dtype=np.int64)
        parts, known = [(r.row, r.buffers) for r in held], self._must_count
        out = plausibility.unusable_updates(
            parts, self._norm_ratio, steps if known else None
        )
        self._excluded |= {names[k]: why for k, why in out.items()}
        for name in self._asked - self._excluded.keys() - self._results.keys():
            self._excluded[name] = ("missing", "no result that NVFLARE accepted")
        for name, (kind, reason) in sorted(self._excluded.items()):
            self.warning(f"{name} is left out, {kind}: {reason}")
        return {name: held[k] for k, name in enumerate(names) if k not in out}

    def _decide(self, usable: Mapping[str, ClientResult], sizes: Any) -> Outcome:
        """The outcome of the round."""
        (sent, layout, _), root = self._layouts(), None
        if self.root_fn is not None:
            function = load(self.root_fn, "hewfl.root_fn", "root_fn")
            root = root_vector(layout, function(dict(sent)))
        clients = np.array([self._numbers[name] for name in usable])
        t = int(self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND) or 0)
        held, n = list(usable.values()), len(self._numbers)
        cohort = reported_cohort(held, clients, sizes, n, t)
        model = (layout, layout.vector(sent).astype(np.float64))
        round_ = ([result.row for result in held], cohort, self._rate, root)
        return aggregate_updates(self.entry, self._state, model, *round_)


def _host_arrays(params: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Arrays by name; tensors that NVFLARE has put on the disk are read."""
    return {
        str(name): to_host(v.materialize() if hasattr(v, "materialize") else v)
        for name, v in params.items()
    }
