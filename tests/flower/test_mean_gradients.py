"""Control variates of clients with an optimiser of their own: means of gradients."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import ArrayRecord, Message

from hewfl import HewHom, Scaffold
from hewfl.federation import ChoiceSteps
from hewfl.flower import AlgorithmStrategy, client_app
from hewfl.flower.messages import MEAN_GRADIENT
from tests.flower.federation import StubGrid, Tamper, honest, local_of
from tests.simulation.toy import least_squares

PROBLEM = least_squares(1, n=4, d=5)
RULE = Scaffold(0.2 / PROBLEM.smoothness)
Made = Callable[[], Callable[[Any], Any]]


def itself() -> Callable[[Any], Any]:
    return lambda g: g


def signs() -> Callable[[Any], Any]:
    return np.sign


def ran(
    optimiser: Made | None, tamper: Tamper = honest, rule: Any = RULE
) -> AlgorithmStrategy:
    def build(context: Any) -> Any:
        local = local_of(PROBLEM, 0, int(context.node_config["partition-id"]), 4)
        return replace(local, optimiser=optimiser)

    law = ChoiceSteps((1, 2, 3))
    given: Any = {"local_steps": law, "fraction_evaluate": 0.0}
    strategy = AlgorithmStrategy(rule, population=4, **given)
    start = ArrayRecord([np.zeros(5)])
    strategy.start(StubGrid(client_app(build), 4, tamper=tamper), start, num_rounds=3)
    return strategy


def test_an_optimiser_that_does_nothing_changes_the_bill_alone() -> None:
    plain, own = (ran(optimiser).state for optimiser in (None, itself))
    np.testing.assert_allclose(own.anchor, plain.anchor, rtol=1e-10)
    for name in ("server", "clients"):
        a, b = (getattr(state.algorithm.variates, name) for state in (own, plain))
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert own.scalars - plain.scalars == 3 * 4 * 5
    assert own.paper_scalars == plain.paper_scalars


def test_displacements_do_not_matter() -> None:
    """Steps of signs: read off displacements every entry of ḡ_i would be in [−1, 1]."""
    variates = ran(signs).state.algorithm.variates
    assert np.abs(variates.clients).max() > 1
    np.testing.assert_allclose(variates.server, variates.clients.mean(axis=0))
    plain = ran(signs, rule=HewHom(PROBLEM.smoothness, 0.4)).state
    assert plain.scalars == 3 * (5 + 4 * 5 + 1)  # nothing is sent that nobody wants


def test_a_round_in_which_only_some_send_theirs_is_rejected() -> None:
    seen = []

    def forgetful(question: Message, answer: Message) -> list[Message]:
        del question
        if MEAN_GRADIENT in answer.content:
            seen.append(answer)
            if len(seen) % 4 == 0:
                del answer.content[MEAN_GRADIENT]
        return [answer]

    found = ran(itself, forgetful).state
    assert len(seen) == 12
    assert (found.anchor == 0).all()


def test_means_that_are_not_finite_leave_a_client_out() -> None:
    def spoiled(question: Message, answer: Message) -> list[Message]:
        del question
        if MEAN_GRADIENT in answer.content:
            answer.content[MEAN_GRADIENT] = ArrayRecord([np.full(5, np.nan)])
        return [answer]

    found = ran(itself, spoiled)
    assert (found.state.anchor == 0).all()
    assert np.isfinite(found.state.algorithm.variates.clients).all()
