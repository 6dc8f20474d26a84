"""Hyper-parameters that may change from round to round: a number, or a function of t.

A checkpoint knows a method by its `repr`. A function shows an address there, which is
another one in every process: a run with such a schedule cannot go on after a stop. A
frozen record with a `__call__` shows what it holds:

    @dataclass(frozen=True)
    class Decay:
        first: float

        def __call__(self, t: int) -> float:
            return self.first / (1 + t)
"""

from collections.abc import Callable

from hewfl.core.checks import positive
from hewfl.core.fields import Positive

Schedule = Positive | Callable[[int], float]


def at_round(name: str, value: Schedule, t: int) -> float:
    """The value of a positive hyper-parameter in round t.

    Raises:
        InvalidInputError: it is not a positive finite number.
    """
    return positive(f"{name} of round {t}", value(t)) if callable(value) else value
