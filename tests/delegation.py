"""Test doubles that differ in a few members from the object that they wrap."""

from collections.abc import Callable
from operator import attrgetter


def delegating(like: type, inner: str = "inner") -> Callable[[type], type]:
    """A class whose other public members are those of its attribute `inner`.

    They are properties of the class: from Python 3.12 on `isinstance` with a protocol
    does not see what `__getattr__` gives.
    """

    def decorate(cls: type) -> type:
        names = {*dir(like), *getattr(like, "__dataclass_fields__", ())}
        for name in names - {*dir(cls), *getattr(cls, "__dataclass_fields__", ())}:
            if not name.startswith("_"):
                setattr(cls, name, property(attrgetter(f"{inner}.{name}")))
        return cls

    return decorate
