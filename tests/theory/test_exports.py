from types import ModuleType

from tests.theory.public import ALL, MODULES, PARTS

import hewfl.theory
from hewfl.theory import appendix as general

EXPORTS = {name: getattr(hewfl.theory, name) for name in hewfl.theory.__all__}


def test_exports_are_distinct_and_never_modules() -> None:
    """Nor is a module called like a function: `hewfl.theory.x` is one thing only."""
    assert len(EXPORTS) == len(hewfl.theory.__all__)
    assert not [name for name, x in EXPORTS.items() if isinstance(x, ModuleType)]
    modules = {path.rpartition(".")[2] for path in MODULES}
    assert len(modules) > 20
    assert not modules & {*EXPORTS, *general.__all__}


def test_the_page_of_the_package_says_what_each_export_is_for() -> None:
    """Names of one family may share their beginning: `a_rate, _recursion`."""
    page = hewfl.theory.__doc__ or ""
    for name in EXPORTS:
        assert name in page or f"_{name.partition('_')[2]}" in page, name


def test_exports_are_public_functions_and_records() -> None:
    assert set(EXPORTS) - {"THEOREMS"} <= set(ALL) - PARTS
    assert set(general.__all__) <= set(ALL) - PARTS
    assert set(ALL) >= PARTS
