"""The middle of a round: the rule decides, the step travels, the model moves.

The rule sees of the displacements what it asks for (`exchange.py`): nothing, their
sketches, or all entries. One that asks for more than it was given says so on all ranks
alike, is given it, and from then on is given it at once. Every rank has the same step,
sees that the new model is finite, and only then moves.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import torch

from hewfl.core.algorithm import Modelled
from hewfl.core.array_types import Int64
from hewfl.core.round import Cohort, Decision, LocalPlan, Round
from hewfl.core.validation import Ints, invalid
from hewfl.displacements.sketched_displacements import (
    NeedsEntriesError,
    NeedsProductsError,
    SketchedDisplacements,
)
from hewfl.server.line_search import LineSearchResult
from hewfl.server.state import checked_decision
from hewfl.torch.job import Replica, Want, are_same
from hewfl.torch.probe import measured_step
from hewfl.torch.rank_errors import RankError
from hewfl.torch.rendezvous import Arrivals
from hewfl.torch.shared_model import is_finite


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a round.

    Attributes:
        cohort: ranks heard, and their work.
        decision: the rule's.
        state: of the rule after it.
        measured: along the step, where losses are.
    """

    cohort: Cohort
    decision: Decision
    state: Any
    measured: LineSearchResult | None = None


def concluded(replica: Replica, arrivals: Arrivals) -> Outcome:
    """Weigh and move, with no more than the rule asks for."""
    while replica.want < Want.ENTRIES:
        try:
            return _by_sums(replica, arrivals)
        except NeedsProductsError:
            replica.want = Want.PRODUCTS
        except NeedsEntriesError:
            if replica.options.overlap:
                text = "False for rules that ask for entries of displacements"
                raise invalid("overlap", text, replica.options.overlap) from None
            replica.want = Want.ENTRIES
    return _by_entries(replica, arrivals)


def _by_sums(replica: Replica, arrivals: Arrivals) -> Outcome:
    """Sketch, solve, send."""
    heard, rows, exchange = arrivals.active, None, replica.exchange
    if replica.want is Want.PRODUCTS:
        table = arrivals.sketches
        if table is None:
            table = replica.wire.table(exchange.sketch(replica.rounds))
        rows = exchange.sketches(table)
        heard = heard[np.asarray(np.isfinite(rows).all(axis=1))[heard]]
        rows = rows if len(heard) == len(rows) else rows[heard]
    sketches = SketchedDisplacements(len(heard), replica.model.layout.parameters, rows)
    round_ = _round_of(replica, NoAnchor(), sketches, heard, arrivals)
    decision, following = checked_decision(replica.algorithm, round_, replica.state)
    if decision.step is not None:
        raise NeedsEntriesError
    weights = np.zeros(replica.wire.ranks)
    weights[heard] = decision.weights
    guess = replica.steady if exchange.is_under_way else None
    if guess is None or not are_same(weights, guess):
        exchange.start(float(weights[replica.wire.rank]))
    else:
        decision = replace(decision, weights=guess[heard])
    if replica.options.overlap:
        lost = np.setdiff1d(arrivals.active, heard)
        if replica.wire.rank not in lost:  # else start again from the new x
            replica.model.capture()
        replica.flying = decision, replica.rounds
        return Outcome(round_.cohort, decision, following)
    solved = None
    algorithm = replica.algorithm
    has_value = decision.value is not None and rows is not None
    if has_value and isinstance(algorithm, Modelled):
        model = algorithm.model(round_, replica.state)
        solved = heard, decision.weights, model, rows
    try:
        steps, found = _measured(replica, exchange.arriving(), decision, heard)
        multiplies = solved is not None and found is None
        replica.product = _moved(replica, steps, decision, multiplies=multiplies)
    except RankError:
        if rows is not None:
            raise
        replica.want = Want.PRODUCTS  # for once: sketches tell whose is not finite
        try:
            return _by_sums(replica, arrivals)
        finally:
            replica.want = Want.WEIGHTS
    _accept(replica, replica.rounds)
    replica.solved = solved if multiplies else None
    return Outcome(round_.cohort, decision, following, found)


def _by_entries(replica: Replica, arrivals: Arrivals) -> Outcome:
    """Exchange shards, so that the rule sees all entries."""
    exchange, variates = replica.exchange, replica.variates
    travelled = arrivals.rows["travelled"]
    heard, shards = exchange.spread(arrivals.active, travelled)
    anchor: Any = np.empty(0)  # none of the rules known by name looks at it
    if not isinstance(replica.rule.choice, str):
        anchor = np.asarray(exchange.own_part(replica.model.anchor))
    round_ = _round_of(replica, anchor, shards, heard, arrivals)
    decision, following = checked_decision(replica.algorithm, round_, replica.state)
    step = decision.step
    step = exchange.wholes(shards.combine(decision.weights) if step is None else step)
    steps, found = _measured(replica, step, decision, heard)
    _moved(replica, steps, decision)
    if variates is not None:
        far = float(travelled[heard[heard == replica.wire.rank]].sum())
        own, server = variates.following(far)
        if not all(map(is_finite, server)):
            raise _beyond(replica, decision)
        variates.accept(own, server)
    _accept(replica, replica.rounds)
    return Outcome(round_.cohort, decision, following, found)


def _round_of(
    replica: Replica,
    anchor: Any,
    data: Any,
    heard: Int64[Ints, " s"],
    arrivals: Arrivals,
) -> Round:
    """All that the rule may look at.

    Raises:
        RankError: there is nothing.
        InvalidInputError: tokens are asked for and were not counted.
    """
    if len(heard) == 0:
        raise RankError("no rank's model was finite")
    H, tokens = arrivals.rows["steps"][heard], arrivals.rows["tokens"][heard]
    if replica.rule.choice == "tokens" and tokens.min() < 1:
        raise invalid("tokens", "counted on every rank", tokens.tolist())
    counts = tokens.min() > 0 and replica.rule.choice != "sieve"  # equal by that name
    sizes = np.where(counts, tokens, 1)
    cohort = Cohort(
        heard, H, np.ones_like(H), sizes, replica.wire.ranks, replica.rounds
    )
    plan = LocalPlan(arrivals.rows["travelled"][heard] / H)
    return Round(anchor, data, cohort, plan)


def _measured(
    replica: Replica,
    steps: Iterable[torch.Tensor],
    decision: Decision,
    heard: Int64[Ints, " s"],
) -> tuple[Iterable[torch.Tensor], LineSearchResult | None]:
    """The step as long as the ranks' losses say, where they are asked."""
    if replica.probe is None or replica.options.server_step.line_search_samples is None:
        return steps, None
    steps, voters = list(steps), (heard, decision.weights)
    if not all(map(is_finite, steps)):
        raise _beyond(replica, decision)
    found = measured_step(replica.model, replica.wire, replica.probe, steps, voters)
    return [step.mul_(found.length) for step in steps], found


def _moved(
    replica: Replica,
    steps: Iterable[torch.Tensor],
    decision: Decision,
    *,
    multiplies: bool = False,
) -> float:
    """Make the next model from the step, each bucket while others travel.

    Returns:
        ⟨s, Δ⟩ of this rank where it is wanted.

    Raises:
        RankError: it would not be finite; nothing has changed.
    """
    product, far = 0.0, []  # type: tuple[Any, list[list[Any]]]
    for b, step in enumerate(steps):
        part, reaches = replica.model.advance(b, step, multiplies=multiplies)
        product, far = product + part, [*far, reaches]
    if not replica.model.fits(far):
        raise _beyond(replica, decision)
    return float(product)


def _accept(replica: Replica, rounds: int) -> None:
    """Let the next model be the model, once all of it is known to be finite."""
    if replica.exchange.narrow is not None:
        replica.exchange.narrow.settle()
    replica.model.accept(rounds)


def _beyond(replica: Replica, decision: Decision) -> RankError:
    """That the model would leave its range."""
    text = (
        f"the model after round {replica.rounds + 1}, or a control variate, would not "
        f"be finite, though displacements are (server step size "
        f"{replica.options.server_step.step:g}, weights {decision.weights.tolist()}): all "
        "is left as it was"
    )
    return RankError(text)


def finish(replica: Replica) -> None:
    """Wait for a sum that is under way, and apply it; all ranks must.

    Raises:
        RankError: ranks are missing, or the model would not be finite.
    """
    if replica.flying is None:
        return
    (decision, rounds), replica.flying = replica.flying, None
    with replica.meetings.watched(f"after round {rounds}"):
        _moved(replica, replica.exchange.arriving(), decision)
    _accept(replica, rounds)


@final
class NoAnchor:
    """Stands for x where a rule is asked without entries."""

    shape = (0,)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Not there: the rule is asked again, with entries."""
        raise NeedsEntriesError
