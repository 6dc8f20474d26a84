"""Rounds in which ranks exchange sketches and one sum: sketch, solve, send."""

from typing import Any, final

import numpy as np
from jaxtyping import Float64, Int64

from hewfl.aggregate.sketched import NeedsEntriesError, Sketches
from hewfl.core.algorithm import Modelled
from hewfl.core.checks import Array, Ints
from hewfl.core.round import Decision, Round
from hewfl.server.conclude import decided
from hewfl.server.measure import Measured
from hewfl.torch.allreduce import Solved
from hewfl.torch.faults import RankError
from hewfl.torch.outcome import Outcome, beyond, measured_of, round_of
from hewfl.torch.replica import Replica, Want
from hewfl.torch.work import Arrivals


def by_sums(
    replica: Replica, arrivals: Arrivals, table: Float64[Array, "n m"] | None
) -> Outcome:
    """Sketch, solve, send.

    Args:
        replica: of this rank.
        arrivals: what ranks did.
        table: their sketches, where they came along with that.
    """
    heard, rows = arrivals.active, None
    if replica.want is Want.PRODUCTS:
        if table is None:
            table = replica.wire.table(replica.sums.sketched(replica.rounds))
        rows = replica.sums.unpacked(table)
        heard = heard[np.isfinite(rows[heard]).all(axis=1)]
    while True:
        if len(heard) == 0:
            raise RankError("no rank's model was finite")
        given = None if rows is None else rows[heard]
        data = Sketches(len(heard), replica.model.layout.parameters, given)
        round_ = round_of(replica, NoAnchor(), data, heard, arrivals)
        algorithm = replica.algorithm
        decision, following = decided(algorithm, round_, replica.state)
        if decision.step is not None:
            raise NeedsEntriesError
        own = float(decision.weights[heard == replica.wire.rank].sum())
        replica.sums.start(own)
        if replica.options.overlap:
            return _launched(replica, round_, decision, following)
        solved = None
        is_solved = decision.value is not None and given is not None
        if is_solved and isinstance(algorithm, Modelled):
            assert given is not None
            of = decision.weights, algorithm.model(round_, replica.state), given
            solved = Solved(replica.rounds + 1, heard, *of)
        product, measured = _moved(replica, decision, heard, solved is not None)
        if product is not None:
            break
        heard = _finite(replica, heard, decision)
    replica.product = product
    replica.solved = solved if measured is None else None
    return Outcome(round_.roster, decision, following, measured)


def _moved(
    replica: Replica, decision: Decision, heard: Int64[Ints, " s"], multiplies: bool
) -> tuple[float | None, Measured | None]:
    """Wait for the sum s and move the model by it.

    Returns:
        ⟨s, Δ⟩ where it is wanted, None if the model would not be finite and is as it
        was; and what ranks measured along the step.
    """
    sums, model = replica.sums, replica.model
    if sums.is_direct:
        return sums.moved(multiplies=multiplies), None
    steps = sums.finish()
    if not model.fits(steps):
        return None, None
    sums.settle()
    measured = measured_of(replica, steps, decision, heard)
    multiplies = multiplies and measured is None
    return model.move(steps, replica.rounds, multiplies=multiplies), measured


def _launched(
    replica: Replica, round_: Round, decision: Decision, following: Any
) -> Outcome:
    """A round whose sum is under way: steps go on from here, and are kept."""
    if replica.model.is_displacement_finite():  # else start again from the new x
        replica.model.capture()
    replica.flying = decision, replica.rounds
    return Outcome(round_.roster, decision, following)


def finish(replica: Replica) -> None:
    """Wait for a sum that is under way, and apply it; all ranks must.

    Raises:
        RankError: ranks are missing, or the model would not be finite.
    """
    if replica.flying is None:
        return
    (decision, rounds), replica.flying = replica.flying, None
    with replica.meetings.watched(f"after round {rounds}"):
        steps = replica.sums.finish()
    if not replica.model.fits(steps):
        raise beyond(replica, decision)
    replica.sums.settle()
    replica.model.move(steps, rounds)


def _finite(
    replica: Replica, heard: Int64[Ints, " s"], decision: Decision
) -> Int64[Ints, " k"]:
    """Those whose displacements are finite, where a sum of them is not.

    Raises:
        RankError: all are, and the model is about to leave its range.
    """
    fine = replica.model.is_displacement_finite()
    table = replica.wire.table(np.array([float(fine)]))
    left: Ints = heard[table[heard, 0] != 0]
    if len(left) == len(heard):
        raise beyond(replica, decision)
    return left


@final
class NoAnchor:
    """Stands for x where a rule is asked without entries."""

    shape = (0,)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Not there: the rule is asked again, with entries."""
        raise NeedsEntriesError
