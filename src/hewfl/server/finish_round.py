"""The server's part of a round: from the displacements to the next state.

    decision, state = algorithm.decide(round, state)
    length          = line search, where the server step has one
    anchor, memory  = server step of Σ w_iΔ_i
    average         = of the anchors, where there is one

A round that cannot be finished leaves the state as it was, with a reason: the algorithm
could not decide or rejects the round, or the new model is not finite.

Finiteness is checked once on each of these, and nowhere else on the way:

    displacements   where they arrive: `simulation.rounds`, `flower.replies`
    weights         `check_finite_weights`, where a mistake in a rule is an error
    new model       `fits`, here; with `whole_state` the algorithm's next state too
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, final

import numpy as np

from hewfl.core.algorithm import Modelled, RoundModel
from hewfl.core.array_types import Float64
from hewfl.core.displacements import LinearCombination
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, invalid
from hewfl.displacements.control_variates import InPlaceVariates, commit
from hewfl.errors import HewError, RuleError
from hewfl.server.line_search import (
    LineSearchResult,
    LossesAlongStep,
    fit_line_search,
    scale_decision,
    trial_lengths,
)
from hewfl.server.server_step import (
    Average,
    ServerStep,
    add_iterate,
    average_weight,
)
from hewfl.server.state import (
    Entry,
    ServerState,
    check_finite_weights,
    checked_decision,
    rule_error,
)

OutcomeKind = Literal["ok", "rejected", "refused", "diverged"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The result of a round.

    Attributes:
        state: of the next round; the one before where there is no decision.
        kind: "ok"; "rejected": the algorithm accepts no step in this round, and the
            next round goes on; "refused": the algorithm could not decide, or the
            transport rejects the round; "diverged": the new model is not finite.
        status: one sentence.
        decision: None unless `kind` is "ok".
        move: x_{t+1} − x_t, server step included, where it was asked for.
        terms: of the bound that the algorithm minimises, at the move.
        observed: values of the algorithm and of the line search, for the trace.
    """

    state: ServerState
    kind: OutcomeKind
    status: str
    decision: Decision | None = None
    move: Float64[Array, " d"] | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    observed: Mapping[str, float] = field(default_factory=dict)


def is_finite(model: Float64[Array, " d"]) -> bool:
    """Whether a model has no NaN and no infinite entry."""
    return bool(np.isfinite(model).all())


def finish_round(  # noqa: PLR0913 - seven are switches
    entry: Entry,
    state: ServerState,
    round_: Round,
    *,
    fits: Callable[[Float64[Array, " d"]], bool] = is_finite,
    losses_along: LossesAlongStep | None = None,
    with_terms: bool = False,
    with_move: bool = False,
    whole_state: bool = False,
    strict: bool = False,
    uncertified: str = "",
) -> Outcome:
    """Decide, and step.

    Args:
        entry: the method.
        state: before the round; invalid afterwards where it has in-place variates.
        round_: finite displacements and the rest of what an algorithm may use.
        fits: whether a model can be sent.
        losses_along: the clients' losses along the step, for a line search.
        with_terms: whether to return the terms of the algorithm's bound.
        with_move: whether to return the move.
        whole_state: whether to check the algorithm's next state for NaN.
        strict: whether a broken contract is an error, as in a simulation, and not a
            refused round, as in a job that should continue.
        uncertified: why a certificate of the algorithm is not about this round, where
            the caller knows that it is not.

    Raises:
        RuleError: only if `strict`: naming entry, round and rule.
    """
    server_step = entry.server_step
    with np.errstate(all="ignore"):  # `fits` refuses what is not finite
        try:
            decision, following = checked_decision(
                entry.algorithm, round_, state.algorithm
            )
            if decision.rejected:
                return reject(state, decision)
            if strict:
                check_finite_weights(round_, decision)
            model = None
            if with_terms and isinstance(entry.algorithm, Modelled):
                model = entry.algorithm.model(round_, state.algorithm)
                if model is not None and model.smoothness is None:
                    model = None  # no L, no bound
            search = _search(server_step, round_, decision, losses_along)
            scaled = (
                decision if search is None else scale_decision(decision, search.length)
            )
            new, move, terms = take_step(
                server_step, round_, state, scaled, model, with_move
            )
            if (whole_state and _has_nan(following)) or not fits(new.anchor):
                return Outcome(state, "diverged", "the new model would not be finite")
            if entry.algorithm.demands.variates:
                following = commit(following)
        except RuleError as error:
            if strict:
                when = f"round {round_.cohort.round + 1}, decide"
                raise rule_error(entry, when, str(error)) from error
            return Outcome(state, "refused", str(error))
        except HewError as error:
            return Outcome(state, "refused", str(error))
    new = replace(new, algorithm=following)
    observed = dict(decision.measured)
    if search is not None and state.scale is not None:
        new = replace(new, scale=state.scale * search.step_size_factor)
        observed |= search.observations(state.scale)
    decision = _with_valid_certificate(decision, server_step, uncertified)
    status = "; ".join(filter(None, (decision.status, decision.certificate)))
    return Outcome(new, "ok", status, decision, move, terms, observed)


def reject(state: ServerState, decision: Decision) -> Outcome:
    """The outcome of a round that an algorithm rejects: nothing changes."""
    return Outcome(state, "rejected", decision.status, observed=decision.measured)


def _search(
    server_step: ServerStep,
    round_: Round,
    decision: Decision,
    losses_along: LossesAlongStep | None,
) -> LineSearchResult | None:
    """The line search along the step; None where the server step has none."""
    if not server_step.has_search:
        return None
    if losses_along is None:
        rule = "left out where clients do not measure losses, as in Flower"
        given = server_step.line_search_samples
        raise invalid("server_step.line_search_samples", rule, given)
    step = decision.step
    if step is None:
        step = round_.displacements.combine(decision.weights)
    losses = losses_along(trial_lengths(server_step), step)
    return fit_line_search(server_step, decision.weights, losses)


def _with_valid_certificate(
    decision: Decision, server_step: ServerStep, uncertified: str
) -> Decision:
    """The decision; where its certificate is not about this round, the reason."""
    why = uncertified
    if not (why or server_step.is_plain):
        why = "it is not about this server step"
    if not (why and decision.certificate):
        return decision
    return replace(decision, certificate=f"no certificate: {why}")


def _has_nan(state: Any) -> bool:
    """Whether a next state holds a NaN; infinite bounds are valid.

    Control variates in place check themselves.
    """
    if isinstance(state, np.ndarray):
        return bool(state.dtype.kind == "f" and np.isnan(state).any())
    if isinstance(state, tuple):
        return any(map(_has_nan, state))
    if isinstance(state, InPlaceVariates) or not is_dataclass(state):
        return False
    return any(_has_nan(getattr(state, f.name)) for f in fields(state))


def take_step(
    server_step: ServerStep,
    round_: Round,
    state: ServerState,
    decision: Decision,
    model: RoundModel | None,
    with_move: bool,
) -> tuple[ServerState, Float64[Array, " d"] | None, Mapping[str, float]]:
    """The state after the server step, the move and the terms of the bound, if asked.

    Vectors are made a range of entries at a time: large models have few copies.

    The terms are those of the algorithm's model at the move d, ⟨g, d⟩ and (Λ/2)‖d‖².
    The server cannot measure ‖∇F(x) − g‖² and F(x): they are not among them.
    """
    d, is_plain = len(state.anchor), server_step.is_plain
    has_memory = len(server_step.memory) > 0
    anchor = np.empty(d)
    memory = np.empty_like(state.memory) if has_memory else state.memory
    before, average = state.average, None
    if before is not None:
        average = Average(np.empty(d), before.rounds + 1)
        share = average_weight(server_step, before.rounds)
    move = np.empty(d) if with_move else None
    slope = sq_norm = 0.0
    for here, part in round_.displacements.column_chunks():
        step = decision.step
        step = part.combine(decision.weights) if step is None else step[here]
        go, memory_here = step, state.memory[..., here]
        if not is_plain:
            go, memory_here = server_step.apply(step, memory_here)
        np.add(  # Alg. 1, l. 17, Alg. 2, l. 17, Alg. 3, l. 11
            state.anchor[here], go, out=anchor[here]
        )
        if has_memory:
            memory[..., here] = memory_here
        if before is not None and average is not None:
            average.model[here] = add_iterate(share, before.model[here], anchor[here])
        if move is not None:
            move[here] = go
        if model is not None:
            sq_norm += float(np.dot(go, go))
            if not (is_plain and decision.value is not None):
                slope += float(np.dot(_reference(model, part, here), go))
        del step, go, memory_here  # free them before the next range
    new = replace(state, anchor=anchor, memory=memory, average=average)
    if model is None:
        return new, move, {}
    bend = 0.5 * model.curvature * sq_norm
    if is_plain and decision.value is not None:
        slope = decision.value - bend  # the move is the step of the decision
    terms = {
        "certificate_slope": slope,
        "certificate_curvature": bend,
        "certificate_change": slope + bend,
    }
    return new, move, terms


def _reference(model: RoundModel, part: Any, here: slice) -> Float64[Array, " k"]:
    """A range of the reference g; None means zero."""
    if model.reference is None:
        return np.zeros(part.d)
    if isinstance(model.reference, LinearCombination):
        return np.asarray(part.combine(model.reference.weights))
    return np.asarray(model.reference[here], dtype=np.float64)
