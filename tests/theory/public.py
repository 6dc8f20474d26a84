"""Every function and record of `hewfl.theory`, and those that it exports."""

import importlib
import inspect
import pkgutil
from types import SimpleNamespace
from typing import Any

import hewfl.theory
from hewfl.theory import appendix

MODULES = {
    module.name: importlib.import_module(module.name)
    for module in pkgutil.walk_packages(hewfl.theory.__path__, "hewfl.theory.")
}
ALL = {
    name: x
    for path, module in MODULES.items()
    for name, x in vars(module).items()
    if not name.startswith("_")
    and (inspect.isfunction(x) or inspect.isclass(x))
    and x.__module__ == path
}
EXPORTS: dict[str, Any] = {
    name: getattr(package, name)
    for package in (hewfl.theory, appendix)
    for name in package.__all__
}
theory = SimpleNamespace(**ALL)
"""All of them by attribute."""
