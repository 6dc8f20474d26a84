"""Every public function and record of `hewfl.theory`, exported or not."""

import importlib
import inspect
import pkgutil
from types import SimpleNamespace
from typing import Any

import hewfl.theory
from hewfl.control import tracking

PARTS = {
    # what the statements are built from
    "Search", "above_smoothness", "by_round", "capped_cost", "checked_state",
    "client_mask", "coarser", "contracting", "convex_rate", "corrected",
    "design_and_range", "direct", "fewest_rounds", "find_theorem", "grouped",
    "kinds_of", "log1p_scaled", "log_contraction", "log_ratio", "one_by_one",
    "one_whole", "only_where", "optimised", "plain", "plain_contracting", "power",
    "product", "rate_to", "real_rounds_to", "search_of", "similar", "simplex_weights",
    "single_path", "solver_gaps", "stacked", "tail", "time_and_state",
    "tracking_hypothesis", "unscaled", "upper_state",
}  # fmt: skip
MODULES = {
    module.name: importlib.import_module(module.name)
    for module in pkgutil.walk_packages(hewfl.theory.__path__, "hewfl.theory.")
}


def _found() -> dict[str, Any]:
    modules = {**MODULES, tracking.__name__: tracking}
    return {
        name: x
        for module, held in modules.items()
        for name, x in vars(held).items()
        if not name.startswith("_")
        and (inspect.isfunction(x) or inspect.isclass(x))
        and x.__module__ == module
    }


ALL = _found()
PUBLIC = {name: x for name, x in ALL.items() if name not in PARTS}
theory = SimpleNamespace(**PUBLIC)
"""The same by attribute."""
