"""From what was heard of a round to the next state.

    decision, state = algorithm.decide(round, state)
    length          = asked of the clients, where the step is measured
    anchor, memory  = server step of Σ w_iΔ_i
    average         = of the anchors, where one is kept

A round that cannot be concluded leaves the state as it was, and says why: the rule
could not decide, or the new model would leave its range.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, final

import numpy as np

from hewfl.core.algorithm import Algorithm, Modelled, RoundModel
from hewfl.core.array_types import Float64
from hewfl.core.displacements import LinearCombination
from hewfl.core.round import Decision, Round
from hewfl.core.validation import Array, invalid
from hewfl.displacements.chunked import Pieces
from hewfl.displacements.control_variates import KeptVariates, settled
from hewfl.displacements.dense import Rows
from hewfl.displacements.weighted_sum import weighted_sum
from hewfl.errors import HewError, RuleError
from hewfl.server.line_search import Ask, Measured, asked_points, fitted, lengthened
from hewfl.server.rule_contract import check_form, check_weights, fault
from hewfl.server.server_step import (
    Average,
    ServerStep,
    apply_server_step,
    average_weight,
    averaged,
)
from hewfl.server.state import Entry, ServerState

RANGE_ERROR = "the new model would not be finite"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What came of a round.

    Attributes:
        state: of the next round; the one before where there is no decision.
        status: one sentence.
        decision: the rule's; None where the round could not be concluded.
        move: the step really taken, server optimiser included, where it was asked for.
        terms: of the bound that the rule minimises, for the step really taken.
        measured: what clients measured along the step, for the trace.
    """

    state: ServerState
    status: str
    decision: Decision | None = None
    move: Float64[Array, " d"] | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)


def conclude(  # noqa: PLR0913 - five are switches
    entry: Entry,
    state: ServerState,
    round_: Round,
    *,
    fits: Callable[[Float64[Array, " d"]], bool],
    ask: Ask | None = None,
    with_terms: bool = False,
    with_move: bool = False,
    whole_state: bool = False,
    strict: bool = False,
) -> Outcome:
    """Decide, and step.

    Args:
        entry: the method.
        state: before the round; used up where it keeps control variates in place.
        round_: what was heard, all of it finite or refused by the rule.
        fits: whether a model is one that can be sent.
        ask: for the clients' losses along the step; needed for a measured one.
        with_terms: whether the terms of the rule's bound are wanted.
        with_move: whether the step itself is wanted.
        whole_state: whether the rule's next state is looked through for NaN as well.
        strict: whether a rule that breaks its contract is an error, as in a simulation,
            and not a round that is lost, as in a job that should go on.

    Raises:
        RuleError: only if `strict`: naming entry, round and rule.
    """
    with np.errstate(all="ignore"):  # what is not finite is refused
        try:
            decision, following = decided(entry.algorithm, round_, state.algorithm)
            if strict:
                check_weights(round_, decision)
            model = None
            if with_terms and isinstance(entry.algorithm, Modelled):
                asked = entry.algorithm.model(round_, state.algorithm)
                model = None if asked.smoothness is None else asked  # no L, no bound
            found = _measured(entry.server_step, round_, decision, ask)
            taken = decision if found is None else lengthened(decision, found.length)
            moved = stepped(entry.server_step, round_, state, taken, model, with_move)
            spoiled = whole_state and _has_nan(following)
            if spoiled or not fits(moved.anchor):
                return Outcome(state, RANGE_ERROR)
            following = settled(following)
        except RuleError as error:
            if strict:
                when = f"round {round_.cohort.round + 1}, decide"
                raise fault(entry, when, str(error)) from error
            return Outcome(state, str(error))
        except HewError as error:
            return Outcome(state, str(error))
    new = replace(
        state,
        anchor=moved.anchor,
        memory=moved.memory,
        algorithm=following,
        average=moved.average,
    )
    seen: Mapping[str, float] = {}
    if found is not None and state.scale is not None:
        new = replace(new, scale=state.scale * found.factor)
        seen = found.note(state.scale)
    status = _said(decision, entry.server_step)
    return Outcome(new, status, decision, moved.move, moved.terms, seen)


def _measured(
    server_step: ServerStep, round_: Round, decision: Decision, ask: Ask | None
) -> Measured | None:
    """What the clients measure along the step; None where it is not asked for."""
    if server_step.measure is None:
        return None
    if ask is None:
        rule = "left out where clients are not asked for losses, as in Flower"
        raise invalid("server_step.measure", rule, server_step.measure)
    step = decision.step
    if step is None:
        step = round_.displacements.combine(decision.weights)
    return fitted(server_step, decision.weights, ask(asked_points(server_step), step))


def _said(decision: Decision, server_step: ServerStep) -> str:
    """The status, with the certificate where the step is the one it is about."""
    if not decision.certificate:
        return decision.status
    held = decision.certificate
    if not server_step.is_plain:
        held = "no certificate: the server step is not the one it is about"
    return f"{decision.status}; {held}"


def _has_nan(state: Any) -> bool:
    """Whether a rule's next state holds a NaN; infinite bounds are no mistake.

    Control variates that are kept in place see to it themselves.
    """
    if isinstance(state, np.ndarray):
        return bool(state.dtype.kind == "f" and np.isnan(state).any())
    if isinstance(state, tuple):
        return any(map(_has_nan, state))
    if isinstance(state, KeptVariates) or not is_dataclass(state):
        return False
    return any(_has_nan(getattr(state, f.name)) for f in fields(state))


def decided(
    algorithm: Algorithm[Any], round_: Round, state: Any
) -> tuple[Decision, Any]:
    """The rule's decision and its next state, checked for its form.

    Raises:
        RuleError: it is no decision about the clients of the round.
        HewError: the rule's own.
    """
    answer: Any = algorithm.decide(round_, state)
    check_form(algorithm, answer, round_)
    decision, following = answer
    return decision, following


@final
@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """Where a step leads: anchor, memory and average, and what was asked for."""

    anchor: Float64[Array, " d"]
    memory: Float64[Array, "*rows d"]
    average: Average | None
    move: Float64[Array, " d"] | None
    terms: Mapping[str, float]


def stepped(
    server_step: ServerStep,
    round_: Round,
    state: ServerState,
    decision: Decision,
    model: RoundModel | None,
    with_move: bool,
) -> Moved:
    """The step, a range of entries at a time: vectors of a large model are few.

    The terms are those of the rule's model for the step really taken, ⟨g, d⟩ and
    (Λ/2)‖d‖². What nobody can measure here, ‖∇F(x) − g‖² and F(x), is not among them.
    """
    d, data = len(state.anchor), round_.displacements
    assert isinstance(data, Rows | Pieces), "a server holds what clients send"
    is_plain, remembers = server_step.is_plain, len(server_step.memory) > 0
    anchor = np.empty(d)
    memory = np.empty_like(state.memory) if remembers else state.memory
    before, mean, share = state.average, None, 0.0
    assert (before is None) == (server_step.average is None), (
        "`first_state` knows the server_step"
    )
    if before is not None:
        mean, share = np.empty(d), average_weight(server_step, before.rounds)
    move = np.empty(d) if with_move else None
    slope = sq_norm = 0.0
    for here, part in data.column_chunks():
        step = decision.step
        step = part.combine(decision.weights) if step is None else step[here]
        go, kept = step, state.memory[..., here]
        if not is_plain:
            go, kept = apply_server_step(server_step, step, kept)
        np.add(  # Alg. 1, l. 17, Alg. 2, l. 17, Alg. 3, l. 11
            state.anchor[here], go, out=anchor[here]
        )
        if remembers:
            memory[..., here] = kept
        if before is not None and mean is not None:
            mean[here] = averaged(share, before.model[here], anchor[here])
        if move is not None:
            move[here] = go
        if model is not None:
            sq_norm += float(np.dot(go, go))
            if not (is_plain and decision.value is not None):
                slope += float(np.dot(_reference(model, part, here), go))
        del step, go, kept  # before the next range needs as much
    average = None
    if before is not None and mean is not None:
        average = Average(mean, before.rounds + 1)
    if model is None:
        return Moved(anchor, memory, average, move, {})
    bend = 0.5 * model.curvature * sq_norm
    if is_plain and decision.value is not None:
        slope = decision.value - bend  # the step is the one that was weighed
    terms = {
        "certificate_slope": slope,
        "certificate_curvature": bend,
        "certificate_change": slope + bend,
    }
    return Moved(anchor, memory, average, move, terms)


def _reference(
    model: RoundModel, part: Rows | Pieces, here: slice
) -> Float64[Array, " k"]:
    """A range of the reference g; None stands for zero."""
    if model.reference is None:
        return np.zeros(part.d)
    if isinstance(model.reference, LinearCombination):
        return np.asarray(weighted_sum(part, model.reference.weights))
    return np.asarray(model.reference[here], dtype=np.float64)
