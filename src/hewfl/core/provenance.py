"""How a record of hyper-parameters shows itself: runs are known by it.

A checkpoint holds the `repr` of its methods, and a run goes on only with the same ones.
A field that a later version adds would make every older checkpoint another method.
"""

import dataclasses
from typing import Any


def shown_record(record: Any, later: tuple[str, ...]) -> str:
    """The `repr` of a dataclass without later fields that are at their default.

    Args:
        record: the dataclass.
        later: names of the fields that were added after runs had been recorded.
    """
    parts = []
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.name not in later or value != field.default:
            parts.append(f"{field.name}={value!r}")
    return f"{type(record).__name__}({', '.join(parts)})"
