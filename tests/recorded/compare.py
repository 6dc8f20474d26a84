"""The first difference between recorded files and new ones, in words."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from tests.recorded.files import Files

CLOSE = 1e-9
"""Relative, on another machine."""
CLOSE_FLOAT32 = 1e-3
"""The same where branches run in single precision: the rounding of a step, over what
the weight problem makes of it."""
NOT_CLOSE = ("sha256", "gap")
"""Fields that are compared for equality or not at all: a gap is rounding alone."""
LEAST = 1e-6
"""Size below which numbers are compared as if they had it."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_WRITTEN = 1e-4
"""Of numbers inside sentences, which are written with few digits."""


@final
@dataclass(frozen=True)
class Closeness:
    """How near two numbers must be, relative to the larger.

    Attributes:
        tolerance: None asks for equal bytes.
        apart: fields that are not compared.
        entries: the only entries that need not be equal byte by byte; all if None.
    """

    tolerance: float | None
    apart: tuple[str, ...] = ()
    entries: frozenset[int] | None = None

    def at(self, entry: int | None) -> "Closeness":
        """What is asked of one entry."""
        if self.entries is None or entry in self.entries:
            return self
        return Closeness(None)

    def of(self, file: str) -> "Closeness":
        """Wider for files of single precision, where it is not equality."""
        if self.tolerance is None or "float32" not in file:
            return self
        return replace(self, tolerance=max(self.tolerance, CLOSE_FLOAT32))


def difference(scenario: str, old: Files, new: Files, how: Closeness) -> str | None:
    """The first difference, None if there is none that counts."""
    if sorted(old) != sorted(new):
        return f"scenario {scenario}: recorded files {sorted(old)}, now {sorted(new)}"
    for file in sorted(old, key=lambda name: name != "trace.jsonl"):  # rounds first
        where = f"scenario {scenario}, file {file}"
        found = next(_file(old[file], new[file], how.of(f"{scenario}/{file}")), None)
        if found is not None:
            return f"{where}, {found}"
    return None


def _file(old: bytes, new: bytes, how: Closeness) -> Iterator[str]:
    if old == new:
        return
    before, after = old.splitlines(), new.splitlines()
    for k, (was, now) in enumerate(zip(before, after, strict=False)):
        if was != now:
            known, found = json.loads(was), json.loads(now)
            keys = ("round", "entry", "name", "array")
            place = ", ".join(f"{key} {known[key]}" for key in keys if key in known)
            here, asked = place or f"line {k + 1}", how.at(known.get("entry"))
            for text in _value("", known, found, asked, 0.0):
                yield f"{here}, {text}"
            if asked.tolerance is None:  # such as another order of the same fields
                yield f"{here}: recorded {was.decode()}, now {now.decode()}"
    if len(before) != len(after):
        yield f"{len(before)} lines recorded, now {len(after)}"


def _value(
    field: str, old: Any, new: Any, how: Closeness, size: float
) -> Iterator[str]:
    """Differences below a field; `size` is that of the array the numbers are from."""
    name = field.rpartition(".")[2]
    if name in how.apart or (name in NOT_CLOSE and how.tolerance is not None):
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            inner = f"{field}.{key}" if field else key
            if key in old and key in new:
                yield from _value(inner, old[key], new[key], how, 0.0)
            elif key not in how.apart:
                yield _said(inner, old.get(key, "absent"), new.get(key, "absent"))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        whole = _size(old)
        for k, (was, now) in enumerate(zip(old, new, strict=True)):
            yield from _value(f"{field}[{k}]", was, now, how, whole)
    elif not _agree(old, new, how, size):
        yield _said(field, old, new)


def _said(field: str, old: Any, new: Any) -> str:
    return f"field {field}: recorded {old!r}, now {new!r}"


def _size(values: Sequence[Any]) -> float:
    numbers = [abs(v) for v in values if isinstance(v, float) and math.isfinite(v)]
    return max(numbers, default=0.0)


def _agree(old: Any, new: Any, how: Closeness, size: float) -> bool:
    if how.tolerance is None or type(old) is not type(new):
        return bool(repr(old) == repr(new))  # NaN is NaN, and -0.0 is not 0.0
    if isinstance(old, float):
        return _near(old, new, how.tolerance, max(size, LEAST))
    if isinstance(old, str):
        numbers = zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=False)
        pairs = [(float(was), float(now)) for was, now in numbers]
        tolerance = max(_WRITTEN, how.tolerance)
        alike = _NUMBER.sub("#", old) == _NUMBER.sub("#", new)
        return alike and all(_near(*pair, tolerance, LEAST) for pair in pairs)
    return bool(old == new)


def _near(old: float, new: float, tolerance: float, least: float) -> bool:
    if not (math.isfinite(old) and math.isfinite(new)):
        return repr(old) == repr(new)
    return abs(old - new) <= tolerance * max(abs(old), abs(new), least)
