"""Rounds in which a rule sees all entries of all displacements, shard by shard."""

import numpy as np

from hewfl.core.checks import Array
from hewfl.server.conclude import decided
from hewfl.torch.outcome import Outcome, beyond, measured_of, round_of
from hewfl.torch.replica import Replica
from hewfl.torch.work import Arrivals


def by_entries(replica: Replica, arrivals: Arrivals) -> Outcome:
    """Exchange shards, so that the rule sees all entries."""
    shards = replica.spread.collected(arrivals, replica.server)
    heard, received = shards.members, list(shards.buckets)
    anchor: Array = np.empty(0)  # none of the rules known by name looks at it
    if not isinstance(replica.rule.choice, str):
        anchor = replica.spread.own_part(replica.model.anchor)
    round_ = round_of(replica, anchor, shards, heard, arrivals)
    decision, following = decided(replica.algorithm, round_, replica.state)
    roster = round_.roster
    del shards, round_  # the rows of a bucket go once it is combined
    n, variates = replica.wire.ranks, replica.variates
    weights: Array = np.zeros((1, n))
    weights[0, heard] = decision.weights
    far = float(arrivals.travelled[heard[heard == replica.wire.rank]].sum())
    if variates is not None:
        weights = variates.weights(heard, decision.weights, arrivals.travelled)
    steps, *others = replica.spread.sums(received, weights, decision.step)
    fine = replica.model.fits(steps)
    if variates is not None:  # each rank knows of its own alone
        fine = fine and variates.stay_finite(others, far)
        fine = bool(replica.wire.summed(np.array([float(not fine)]))[0] == 0)
    if not fine:
        raise beyond(replica, decision)
    measured = measured_of(replica, steps, decision, heard)
    if variates is not None:
        variates.move(replica.wire, others, far)
    replica.model.move(steps, replica.rounds)
    return Outcome(roster, decision, following, measured)
