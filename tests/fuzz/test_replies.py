"""Replies of a client of Flower with damaged arrays, metrics and types."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="Flower is not installed")

from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

from hewfl.flower import HewStrategy
from tests.flower.federation import StubGrid
from tests.flower.stock import N, model, stock_app, vector

NUMBERS = st.sampled_from((0, -1, 1, 2**62, 0.0, -0.0, 1e300, 5e-324, -1e9))
NUMBERS |= st.sampled_from((float("nan"), float("inf"), float("-inf")))
SHAPES = st.lists(st.sampled_from((-1, 0, 1, 2, 4, 2**40)), max_size=3)
TYPES = st.sampled_from(("float32", "float64", "int64", "object", "<U4", "", "x"))


@st.composite
def damaged(draw: st.DrawFn, array: Any) -> Any:
    """An array record's entry with one of its four fields wrong."""
    field = draw(st.sampled_from(("dtype", "shape", "stype", "data")))
    known = {name: getattr(array, name) for name in ("dtype", "shape", "stype", "data")}
    data = known["data"]
    new = {
        "dtype": TYPES,
        "shape": SHAPES.map(tuple),
        "stype": st.sampled_from(("numpy.ndarray", "pickle", "")),
        "data": st.binary(max_size=200)
        | st.integers(0, len(data)).map(lambda k: data[:k])
        | st.integers(0, 2**32).map(
            lambda s: np.random.default_rng(s).bytes(len(data))
        ),
    }[field]
    return Array(**(known | {field: draw(new)}))


@given(st.data())
def test_a_damaged_reply_hurts_nobody_else(data: st.DataObject) -> None:
    grid = StubGrid(stock_app(), N)

    def tamper(question: Message, answer: Message) -> list[Message]:
        if grid.partition_of(question) != 1:
            return [answer]
        arrays = dict(answer.content["model"].items())
        told = dict(answer.content["numbers"].items())
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(sorted(arrays)))
            arrays[name] = data.draw(damaged(arrays[name]))
        if data.draw(st.booleans()):
            told[data.draw(st.sampled_from(sorted(told)))] = data.draw(NUMBERS)
        if data.draw(st.booleans()):
            arrays[data.draw(st.text(max_size=3))] = Array(np.ones(2, np.float32))
        content = {"model": ArrayRecord(arrays), "numbers": MetricRecord(told)}
        return [Message(RecordDict(content), reply_to=question)]

    grid.tamper = tamper
    strategy = HewStrategy(fraction_evaluate=0.0)
    result = strategy.start(grid, model(), 2)
    found = vector(result.arrays)
    assert np.isfinite(found).all()
    assert 0.5 < np.abs(found - 1).max() < 10  # the moves of the others, of two rounds
