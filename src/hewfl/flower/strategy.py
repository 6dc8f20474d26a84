"""Flower's FedAvg with another aggregation: the class that a stock app swaps in.

Nodes are sampled, configured and evaluated by Flower's own code. `HewStrategy` replaces
what happens to the replies: they are validated, weighed by an aggregator of hewfl, and
applied by the server step. Displacements are measured from the arrays that Flower hands
over in this round. So wrappers for differential privacy, and subclasses that edit the
model, keep working.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from hewfl.aggregators import Aggregator
from hewfl.aggregators.aggregator import grow_state
from hewfl.core.algorithm import Algorithm, Need
from hewfl.core.array_types import Float64, Int64
from hewfl.core.round import Cohort
from hewfl.core.validation import Array, Ints, format_value, invalid, whole
from hewfl.displacements.count_sketch import CountSketch
from hewfl.errors import InvalidInputError
from hewfl.flower import messages as keys
from hewfl.flower.arrays import (
    gradient_vector,
    layout_of,
    median_buffers,
    split_layout,
    to_record,
    to_vector,
)
from hewfl.flower.client_registry import ClientNumbers
from hewfl.flower.messages import is_steps_reported, log, metrics_and_size
from hewfl.flower.metrics import (
    drop_unusable,
    finite_numbers,
    round_metrics,
    unicast_communication,
    with_sizes,
)
from hewfl.flower.replies import (
    ClientUpdate,
    Exclusion,
    OpenRound,
    Request,
    build_cohort,
    build_round,
    idle_updates,
    implausible_updates,
    read_replies,
    weighting_sizes,
)
from hewfl.flower.saved_run import SavedRun, model_arrays
from hewfl.flower.secure_aggregation import (
    NO_SECOND_REPLY,
    SKETCH_WIDTH,
    SecondPhase,
    finish_two_phase_round,
    request_sketches,
)
from hewfl.methods.registry import (
    as_algorithm,
    require_available,
    require_client_training,
)
from hewfl.server.array_layout import PARAMETERS, ArrayLayout
from hewfl.server.finish_round import Outcome, finish_round
from hewfl.server.plausibility import cap_shares, norm_ratio, require_weighting
from hewfl.server.server_step import ServerStep, next_average
from hewfl.server.state import Entry, ServerState, as_entry, initial_state
from hewfl.server.trace import RoundRecord

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
OnRound = Callable[[int, Mapping[str, float]], object]
RootFunction = Callable[[ArrayRecord], Mapping[str, Any] | Sequence[Any]]
"""From the model to a gradient at it, on samples that the server trusts."""
MAX_SHARE = 0.2
"""Of one client in the sum of the data sizes: docs/results/flower.md."""
DEFAULT = "majority-sieve"
"""For a few bad clients of unknown kind; docs/results/flower.md has what it loses."""
_RENAMED = {
    "rule": "aggregator",
    "outer": "server_step",
    "longest": "max_norm_ratio",
    "horizons": "local_steps",
}


class HewStrategy(FedAvg):  # type: ignore[misc]  # checked without flwr
    """FedAvg whose weights come from an aggregator: `HewStrategy()` for `FedAvg()`.

    Args:
        *args: FedAvg's, in its order.
        aggregator: how replies are weighed: a name of `hewfl.aggregators.NAMES`, an
            aggregator, or a whole method, whose learning rate is not used. By default
            "majority-sieve", for a few bad clients of unknown kind. One that needs
            step sizes and steps, such as `hewfl.HewHom`, declares plain SGD on
            the clients: they receive `lr` by `train_config` and report `num-steps`.
        server_step: what the server does with the aggregated step: momentum, Adam,
            averages. None: that of the method, if it has one.
        weighting: whether clients count alike ("equal"), or by the number that
            `weighted_by_key` names ("size"), where the aggregator weighs by size and in
            the means of metrics. A size is a claim that the server cannot verify.
        max_share: largest share of one client in the sum of the sizes, under "size".
        judge: name patterns of the arrays that the aggregator sees, as in `fnmatch`; a
            pattern after "!" excludes. By default all but running statistics of
            normalisation layers (`hewfl.server.array_layout.BUFFERS`), which take the
            coordinate-wise median of the clients; "*" is FedAvg's treatment.
        aggregate: patterns of the arrays that are aggregated at all; the others stay as
            the server has them (FedBN: "!*bn*").
        max_norm_ratio: a displacement longer than this times the round's median is left
            out. By default 10; 100 for rules that shorten long ones themselves.
        root_fn: from the model that was sent to a gradient at it, on samples that the
            server trusts, for aggregators that need a root gradient: one array for each
            array that the aggregator sees (`judge`), in the model's order; or a mapping
            from names, where those that are absent count as zero. Called once in each
            round. Not finite: the round is rejected.
        min_replies: with fewer usable replies a round is rejected.
        phases: 2 for weights from sketches, with `sketch_client_app` on the clients.
        secure: whether the second phase is masked by Flower's SecAgg+.
        certify: whether the gap of the weights of two phases is computed.
        folder: where to save the run; the same app started again resumes it. Clients
            that an aggregator remembers are known again by the `partition-id` of their
            replies, or by their node if it stayed connected.
        seed: of the run: its folder, and the draws of `AlgorithmStrategy`.
        on_round: called after every round with its number and plain numbers by name.
        **fedavg: FedAvg's, by name.

    Raises:
        InvalidInputError: there is no such aggregator, stock clients cannot serve it,
            or a number is out of range.

    Examples:
        >>> from hewfl.flower import HewStrategy
        >>> HewStrategy(aggregator="geometric-median").entry.name
        'Geometric median'
    """

    def __init__(  # noqa: PLR0913 - all have defaults
        self,
        *args: Any,
        aggregator: str | Aggregator | Algorithm[Any] = DEFAULT,
        server_step: ServerStep | None = None,
        weighting: Literal["equal", "size"] = "size",
        max_share: float = MAX_SHARE,
        judge: str | Sequence[str] | None = None,
        aggregate: str | Sequence[str] = "*",
        max_norm_ratio: float | None = None,
        root_fn: RootFunction | None = None,
        min_replies: int = 1,
        phases: int = 1,
        secure: bool = False,
        certify: bool = False,
        folder: Path | str | None = None,
        seed: int = 0,
        on_round: OnRound | None = None,
        **fedavg: Any,
    ) -> None:
        for old in _RENAMED.keys() & fedavg:
            raise invalid(
                old, f"written as `{_RENAMED[old]}`", format_value(fedavg[old])
            )
        super().__init__(*args, **fedavg)
        if server_step is not None and not isinstance(server_step, ServerStep):
            rule = "a ServerStep, such as ServerStep(momentum=0.9)"
            raise invalid("server_step", rule, format_value(server_step))
        if on_round is not None and not callable(on_round):
            rule = "a function of the round and its numbers"
            raise invalid("on_round", rule, format_value(on_round))
        entry = as_entry(as_algorithm(aggregator), "aggregator")
        self.server_step = entry.server_step if server_step is None else server_step
        # averages are of what is handed over after a round, not of what a round gives
        self.entry = Entry(entry.algorithm, self.server_step.without_average())
        self._check_algorithm()
        self.root_fn = root_fn
        if "root" in entry.algorithm.demands.needs and not callable(root_fn):
            rule = f"a function from the model to a gradient, for {self.entry.name}"
            raise invalid("root_fn", rule, format_value(root_fn))
        if self.server_step.has_search:
            why = "left out: clients are not asked for losses along the step"
            samples = self.server_step.line_search_samples
            raise invalid("server_step.line_search_samples", why, samples)
        self.max_norm_ratio = norm_ratio(max_norm_ratio, self.entry.algorithm.demands)
        require_weighting(weighting, max_share)
        self.weighting, self.max_share = weighting, max_share
        self.min_replies = whole("min_replies", min_replies, least=1)
        self.phases, self.secure, self.certify = phases, secure, certify
        self.folder = _as_folder(folder)
        self.seed, self.on_round = whole("seed", seed), on_round
        if phases not in (1, 2) or ((secure or certify) and phases == 1):
            raise invalid("phases", "1, or 2 as `secure` and `certify` need", phases)
        if phases == 2 and (judge is not None or aggregate != "*"):
            rule = "left out with `phases=2`: sketches are of all arrays"
            raise invalid("judge", rule, format_value(judge or aggregate))
        self.aggregate = aggregate
        self.judge = ("*" if phases == 2 else PARAMETERS) if judge is None else judge
        if phases == 2 and "entries" in self._needs:
            text = "one that uses inner products only"
            raise invalid("aggregator", text, self.entry.name)
        self._reset()

    def _check_algorithm(self) -> None:
        """Require an algorithm that Flower's stock clients can serve."""
        demands, name = self.entry.algorithm.demands, self.entry.name
        require_available(self.entry.algorithm)
        if demands.variates or demands.gradients:
            text = "one without control variates; AlgorithmStrategy runs those"
            raise invalid("aggregator", text, name)
        require_client_training(self.entry.algorithm)
        self._needs: Set[Need] = demands.needs

    def _reset(self) -> None:
        self._numbers = ClientNumbers()
        self._clients = self._numbers.nodes
        self._capped: set[int] = set()
        self._has_steps = self._said_steps = False
        self._state: ServerState | None = None
        self._opened: OpenRound | None = None
        self._note, self._measured = dict[str, Any](), dict[str, float]()
        self._offset, self._timeout = 0, 3600.0
        self._is_running = self._moved = False
        self._saved_run: SavedRun | None = None

    @property
    def state(self) -> ServerState:
        """Model and method's state after the last round."""
        if self._state is None:
            raise invalid("the strategy", "started", "one without a round")
        return self._state

    # -------------------------------------------------------------- the whole run

    def start(  # noqa: PLR0913, PLR0917 - Flower's signature
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600.0,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run until `num_rounds` rounds are done in all, those on disk included.

        As Flower's `Strategy.start`. In addition, rounds keep their numbers when a run
        is resumed, and the metrics of `evaluate_fn` go into the trace. With an averaged
        model, evaluation and the result are of the average.
        """
        self._reset()
        self._is_running, self._timeout = True, timeout
        arrays, layout = initial_arrays, self._layout(initial_arrays)
        saved = None
        if self.folder is not None:
            about = (num_rounds, self._identity(), arrays)
            self._saved_run = SavedRun(self.folder, self.seed, *about)
            saved = self._saved_run.load(lambda n: self._empty_state(arrays, n=n))
        if saved is None:
            self._state = self._initial_state(grid, arrays)
        elif self._saved_run is not None:
            self._offset, self._state = saved
            self._saved_run.restore_clients(self._numbers)
            self._clients = self._numbers.nodes
            arrays = self._saved_run.with_buffers(arrays, layout)
            arrays = to_record(layout, self.state.anchor, arrays)
            log.info("resuming after round %d", self._offset)

        def after(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            t, best = server_round + self._offset, self._accept_model(arrays)
            metrics = None if evaluate_fn is None else evaluate_fn(t, best)
            if server_round > 0 or saved is None:
                self._record_round(t, metrics, best)
            return metrics

        left = max(num_rounds - self._offset, 0)
        configs = (train_config, evaluate_config)
        result = super().start(grid, arrays, left, timeout, *configs, after)
        last = to_record(layout, self.state.anchor, result.arrays or arrays)
        result.arrays = self._accept_model(last)
        for name, by_round in vars(result).items():
            if isinstance(by_round, dict):  # count from the beginning of the run
                shifted = {t + self._offset: value for t, value in by_round.items()}
                setattr(result, name, shifted)
        return result

    def _identity(self) -> dict[str, Any]:
        """What must be the same to resume a run."""
        return {"algorithm": self.entry.algorithm, "server_step": self.server_step}

    def _empty_state(self, arrays: ArrayRecord, *, n: int = 1) -> ServerState:
        """A state of the right shape, for n clients."""
        return initial_state(
            self.entry.algorithm, self._vector(arrays), n, server_step=self.server_step
        )

    def _layout(self, arrays: ArrayRecord) -> ArrayLayout:
        """The layout of the arrays that the aggregator sees."""
        return split_layout(arrays, self.judge, self.aggregate)[0]

    def _vector(self, arrays: ArrayRecord) -> Float64[Array, " d"]:
        """The arrays that the aggregator sees as one vector, in float64."""
        return to_vector(self._layout(arrays), arrays).astype(np.float64)

    def _initial_state(self, grid: Grid, arrays: ArrayRecord) -> ServerState:  # noqa: ARG002 - for subclasses
        """The state before the first round."""
        return self._empty_state(arrays)

    def _accept_model(self, arrays: ArrayRecord) -> ArrayRecord:
        """Take what Flower hands over as the model; return the model to evaluate.

        That is the average, if there is one; it is updated once in a round that moved.
        """
        anchor, average = self._vector(arrays), self.state.average
        if average is not None and self._moved:
            average = next_average(self.server_step, average, anchor)
        self._moved = False
        self._state = replace(self.state, anchor=anchor, average=average)
        model = None if average is None else average.model
        if model is None:
            return arrays
        return to_record(self._layout(arrays), model, arrays)

    def _record_round(
        self, t: int, evaluated: MetricRecord | None, model: ArrayRecord
    ) -> None:
        """Add a finished round to the trace and the checkpoint."""
        measured = {**self._measured, **finite_numbers(evaluated)}
        if self.on_round is not None and measured:
            self.on_round(t, measured)
        state, note, self._note, self._measured = self.state, self._note, {}, {}
        if self._saved_run is not None:
            goals: Any = [measured.pop(key, None) for key in ("objective", "pooled")]
            goals += [measured, state.scalars, state.paper_scalars]
            record = RoundRecord(t, 0, *goals, **note)
            more = {**model_arrays(model), **self._numbers.arrays()}
            self._saved_run.commit(record, state, more)

    # -------------------------------------------------------------- one round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's messages; remember the model that they carry."""
        self._ensure_started(grid, arrays)
        t, rate = server_round + self._offset, config.get(keys.LEARNING_RATE)
        if "step_sizes" in self._needs and not (
            isinstance(rate, int | float) and rate > 0
        ):
            rule = f"given the step size that clients use, for {self.entry.name}"
            raise invalid(
                f'train_config["{keys.LEARNING_RATE}"]', rule, format_value(rate)
            )
        messages = list(super().configure_train(t, arrays, config, grid))
        if self.phases == 2:
            messages = request_sketches(messages, t, self.configrecord_key)
        eta = float(rate) if "step_sizes" in self._needs else 1.0
        requests = [Request(m.metadata, None, eta) for m in messages]
        layout, buffers = split_layout(arrays, self.judge, self.aggregate)
        self._opened = OpenRound(t, arrays, layout, grid, requests, buffers=buffers)
        return messages

    def _ensure_started(self, grid: Grid, arrays: ArrayRecord) -> None:
        """Make the first state, also where a wrapper runs the rounds."""
        hidden = {
            "folder": self.folder,
            "server_step.average": self.server_step.average,
        }
        for name, value in hidden.items():
            if value is not None and not self._is_running:
                rule = "left out inside a wrapper: it would save what the wrapper hides"
                raise invalid(name, rule, value)
        if self._state is None:
            self._state = self._initial_state(grid, arrays)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next model, None if the round is rejected, and the round's metrics."""
        del server_round
        opened, self._opened = self._opened, None
        if opened is None:
            raise invalid("aggregate_train", "called after configure_train", "no round")
        sent = opened
        if self.phases == 2:  # replies hold sketches: displacements from zero
            zero = ArrayRecord([np.zeros(SKETCH_WIDTH)])
            sent = replace(opened, arrays=zero, layout=layout_of(zero))
        updates, excluded = self._read(sent, replies)
        self._require_steps(opened, updates, excluded)
        updates, more = self._drop(updates)
        self._register_replies(opened, updates)
        updates.sort(key=lambda update: self._clients[update.node])
        excluded = [
            replace(e, client=self._clients.get(e.node, e.client))
            for e in (*opened.absent, *excluded, *more)
        ]
        for exclusion in excluded:
            log.warning("round %d: %s", opened.t, exclusion)
        clients = [self._clients[update.node] for update in updates]
        share = None if self.weighting == "equal" else self.max_share
        sizes = weighting_sizes(updates, share)
        self._log_capped(opened.t, updates, clients, sizes)
        population = self._population()
        cohort = build_cohort(updates, clients, population, opened.t - 1, sizes)
        outcome = self._aggregate(opened, updates, cohort, sent.x)
        if outcome.decision is None:
            self._require_pairing(opened, updates, excluded, outcome.status)
        level = logging.WARNING if outcome.decision is None else logging.INFO
        log.log(level, "round %d: %s", opened.t, outcome.status)
        self._state = self._charge(outcome.state, opened, updates)
        self._moved = outcome.decision is not None
        usable = drop_unusable(updates, self.weighted_by_key)
        contents = self._weigh([update.content for update in usable])
        mean = self.train_metrics_aggr_fn
        means = mean(contents, self.weighted_by_key) if contents else {}
        has_steps = self._has_steps or any(r.steps for r in opened.requests)
        self._note, metrics = round_metrics(
            cohort, outcome, excluded, means, has_steps=has_steps
        )
        if self.on_round is not None:
            self.on_round(opened.t, finite_numbers(metrics))
        if not self._moved:
            return None, metrics
        members = [u.buffers for u in updates] if opened.buffers.names else []
        medians = median_buffers(opened.buffers, members)
        template = ArrayRecord({**opened.arrays, **medians})
        return to_record(opened.layout, self.state.anchor, template), metrics

    def _read(
        self, opened: OpenRound, replies: Iterable[Message]
    ) -> tuple[list[ClientUpdate], list[Exclusion]]:
        """Usable updates in client order, and why the other replies are not."""
        replies, key = list(replies), self.weighted_by_key
        self._has_steps = steps = self._are_steps_known(replies)
        return read_replies(
            opened, replies, self._clients, size_key=key, needs_steps=steps
        )

    def _are_steps_known(self, replies: Sequence[Message]) -> bool:
        """Whether the aggregator uses steps, and most clients report them if it may."""
        if "steps" not in self._needs & self.entry.algorithm.demands.optional:
            return "steps" in self._needs
        contents = [reply.content for reply in replies if reply.has_content()]
        known = sum(is_steps_reported(content) for content in contents)
        if contents and 2 * known <= len(contents) and not self._said_steps:
            self._said_steps = True
            text = '%s counts one step for each client: few report "%s"'
            level = (
                logging.INFO if self.entry.algorithm.demands.clips else logging.WARNING
            )
            log.log(level, text, self.entry.name, keys.STEPS_DONE)
        return 2 * known > len(contents)

    def _require_steps(
        self,
        opened: OpenRound,
        updates: Sequence[ClientUpdate],
        excluded: Sequence[Exclusion],
    ) -> None:
        """Raise in the first round if no client reports the steps that are needed."""
        silent = [e.reason for e in excluded if f'"{keys.STEPS_DONE}"' in e.reason]
        if opened.t == self._offset + 1 and silent and not updates:
            rule = f'in the MetricRecord of train replies for {self.entry.name}: add "'
            rule += f'{keys.STEPS_DONE}": <optimiser steps taken>'
            raise invalid(keys.STEPS_DONE, rule, silent[0])

    def _require_pairing(
        self,
        opened: OpenRound,
        updates: Sequence[ClientUpdate],
        excluded: Sequence[Exclusion],
        status: str,
    ) -> None:
        """Raise in the first round if the clients are built for another strategy."""
        if opened.t != self._offset + 1:
            return
        reasons = " ".join(e.reason for e in excluded if e.kind == "error")
        masked = "sketch_client_app(train, mods=[secaggplus_mod])"
        plain = "sketch_client_app(train)"
        if self.phases == 1 and not updates:
            if "secaggplus_configs" in reasons:
                rule = f"2, with `secure=True`, for clients of {masked}"
                raise invalid("phases", rule, 1)
            if f"no {keys.WEIGHT}" in reasons:
                raise invalid("phases", f"2, for clients of {plain}", 1)
        if self.phases == 2 and not updates and "'sketch'" in reasons:
            app = masked if self.secure else plain
            raise invalid("phases", f"1, or the clients built by {app}", 2)
        if NO_SECOND_REPLY in status:
            app = masked if self.secure else plain
            rule = f"{not self.secure}, or the clients built by {app}"
            raise invalid("secure", rule, self.secure)

    def _charge(
        self, state: ServerState, opened: OpenRound, updates: Sequence[ClientUpdate]
    ) -> ServerState:
        """The state after the communication of the round is counted."""
        more = SKETCH_WIDTH if self.phases == 2 else 0
        means = any(update.mean_gradient is not None for update in updates)
        demands, asked = self.entry.algorithm.demands, len(opened.requests)
        charges = unicast_communication(
            demands, asked, opened.layout.d, means=means, more=more
        )
        return state.add_communication(*charges)

    def _drop(
        self, updates: list[ClientUpdate]
    ) -> tuple[list[ClientUpdate], list[Exclusion]]:
        """Updates of plausible length that moved, and why the others are left out."""
        ratio, is_clipped = self.max_norm_ratio, self.entry.algorithm.demands.clips
        uses_steps = self._has_steps and not is_clipped
        idle = idle_updates(updates)
        bad = implausible_updates(updates, ratio, uses_steps=uses_steps)
        out = [Exclusion(updates[k].node, "idle", v) for k, v in idle.items()]
        out += [Exclusion(updates[k].node, "implausible", v) for k, v in bad.items()]
        left = bad.keys() | idle.keys()
        return [update for k, update in enumerate(updates) if k not in left], out

    def _weigh(self, contents: list[RecordDict]) -> list[RecordDict]:
        """Contents with the sizes that count in the means of metrics."""
        key = self.weighted_by_key
        share = None if self.weighting == "equal" else self.max_share
        sizes = np.array([metrics_and_size(c, key)[1] for c in contents])
        capped = np.ones(len(sizes)) if share is None else cap_shares(sizes, share)
        return with_sizes(contents, key, sizes, capped)

    def _log_capped(
        self,
        t: int,
        updates: Sequence[ClientUpdate],
        clients: Sequence[int],
        sizes: Int64[Ints, " s"],
    ) -> None:
        """Log clients whose share of the sizes is bounded."""
        if self.weighting == "equal" or not updates:
            return
        claimed = np.array([update.size for update in updates])
        claimed, counted = claimed / claimed.sum(), sizes / sizes.sum()
        most = 1.001 * max(self.max_share, 1 / len(sizes))
        for client, share, count in zip(clients, claimed, counted, strict=True):
            if share > most and client not in self._capped:  # said once
                self._capped.add(client)
                text = "round %d: client %d reports %.0f %% of the data and counts as"
                text += " %.0f %% (max_share=%g)"
                shares = (100 * share, 100 * count, self.max_share)
                log.warning(text, t, client, *shares)

    def _register_replies(
        self, opened: OpenRound, updates: Sequence[ClientUpdate]
    ) -> None:
        """Number every new node: those with updates first, in their order."""
        asked = [request.node for request in opened.requests]
        replied = [(update.node, update.partition) for update in updates]
        self._numbers.register(asked, replied)

    def _population(self) -> int:
        return max(1, self._numbers.count)

    def _aggregate(
        self,
        opened: OpenRound,
        updates: Sequence[ClientUpdate],
        cohort: Cohort,
        base: Any,
    ) -> Outcome:
        """Decide and step; the state is unchanged if the round is rejected."""
        x = base if self.phases == 1 else to_vector(opened.layout, opened.arrays)
        anchor, fits = x.astype(np.float64), opened.layout.fits
        del x
        # what Flower handed over is the model; the last one takes no memory any more
        self._state = state = replace(self.state, anchor=anchor)
        if "clients" in self._needs:  # nodes that are new have no memory yet
            rule, d = self.entry.algorithm, len(anchor)
            fresh = rule.init(cohort.population, d, None)
            state = replace(state, algorithm=grow_state(state.algorithm, fresh))
        if len(updates) < self.min_replies:
            text = f"rejected: {len(updates)} usable replies, {self.min_replies} needed"
            return Outcome(state, "refused", text)
        variates = self.entry.algorithm.demands.variates
        try:
            round_ = build_round(anchor, updates, cohort, base, variates=variates)
        except InvalidInputError as error:
            return Outcome(state, "refused", f"rejected: {error}")
        if "root" in self.entry.algorithm.demands.needs:
            root = self._root_gradient(opened)
            if not np.isfinite(root).all():
                text = "rejected: the root gradient is not finite"
                return Outcome(state, "refused", text)
            round_ = replace(round_, root=root)
        before = replace(state, average=None)
        if self.phases == 1:
            options: Any = {"with_terms": True, "whole_state": True}
            outcome = finish_round(self.entry, before, round_, fits=fits, **options)
        else:
            where = (opened.grid, opened.layout, opened.t, updates, self._timeout)
            second = SecondPhase(*where, self.secure)
            options = {"fits": fits, "certify": self.certify}
            outcome = finish_two_phase_round(
                self.entry, before, round_, second, **options
            )
        prefix = "" if outcome.decision else "rejected: "
        after = replace(outcome.state, average=state.average)
        return replace(outcome, state=after, status=prefix + outcome.status)

    def _root_gradient(self, opened: OpenRound) -> Any:
        """The gradient that `root_fn` gives: whole, or its sketch in two phases.

        Raises:
            InvalidInputError: it has not the form of the model.
        """
        assert self.root_fn is not None, "checked at construction"
        root = gradient_vector(opened.layout, self.root_fn(opened.arrays))
        if self.phases == 2:
            return CountSketch(SKETCH_WIDTH, opened.t).of([root])
        return root

    # -------------------------------------------------------------- evaluation

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """FedAvg's messages, with the averaged model if there is one."""
        best = self._accept_model(arrays) if self._is_running else arrays
        t = server_round + self._offset
        return list(super().configure_evaluate(t, best, config, grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """FedAvg's means, without clients whose metrics are missing or not finite."""
        by_client = sorted(
            replies, key=lambda r: self._clients.get(r.metadata.src_node_id, -1)
        )
        usable = drop_unusable(by_client, self.weighted_by_key)
        replies = [reply for reply in usable if not reply.has_error()]
        contents = self._weigh([reply.content for reply in replies])
        for reply, content in zip(replies, contents, strict=True):
            reply.content = content
        metrics = super().aggregate_evaluate(server_round, usable)
        self._measured = finite_numbers(metrics)
        return metrics


def _as_folder(folder: object) -> Path | None:
    """The path of a folder, None where the run is not saved."""
    if folder is None:
        return None
    if not isinstance(folder, str | Path) or not str(folder):
        raise invalid("folder", "the path of a folder", format_value(folder))
    return Path(folder)
