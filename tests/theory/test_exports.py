import inspect
import pkgutil
import sys
from types import ModuleType

import hewfl.theory

PARTS = {
    # what the statements are built from
    "Coupled", "above_smoothness", "client_mask", "convex_rate", "coupled_rate",
    "log_contraction", "named", "played", "power", "simplex_weights",
    "time_and_state", "tracking_hypothesis", "trajectory", "unrolled", "upper_state",
}  # fmt: skip
EXPORTS = {name: getattr(hewfl.theory, name) for name in hewfl.theory.__all__}


def test_exports_are_distinct_and_never_modules() -> None:
    """Nor is a module called like one: `hewfl.theory.x` is x, imported or not."""
    assert len(EXPORTS) == len(hewfl.theory.__all__)
    assert not [name for name, x in EXPORTS.items() if isinstance(x, ModuleType)]
    modules = {module.name for module in pkgutil.iter_modules(hewfl.theory.__path__)}
    assert len(modules) > 20
    assert not modules & set(EXPORTS)


def test_every_public_function_and_record_is_exported() -> None:
    modules = {
        x.__module__
        for x in EXPORTS.values()
        if getattr(x, "__module__", "").startswith("hewfl.theory.")
    }
    public = {
        name
        for module in modules
        for name, x in vars(sys.modules[module]).items()
        if not name.startswith("_")
        and (inspect.isfunction(x) or inspect.isclass(x))
        and x.__module__ == module
    }
    assert public - PARTS == {
        name for name, x in EXPORTS.items() if getattr(x, "__module__", "") in modules
    }
    assert public >= PARTS


def test_flow_is_the_map_of_appendix_a() -> None:
    assert hewfl.theory.flow(2.0, 1.0) == 1 / 3
