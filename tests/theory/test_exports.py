from types import ModuleType

from tests.theory.public import ALL, EXPORTS, MODULES

import hewfl.theory
from hewfl.theory import appendix


def test_exports_are_distinct_and_never_modules() -> None:
    """Nor is a module called like a function: `hewfl.theory.x` is one thing only."""
    assert len(EXPORTS) == len(hewfl.theory.__all__) + len(appendix.__all__)
    assert not [name for name, x in EXPORTS.items() if isinstance(x, ModuleType)]
    modules = {path.rpartition(".")[2] for path in MODULES}
    assert len(modules) > 20
    assert not modules & {*EXPORTS}
    assert set(EXPORTS) <= set(ALL)


def test_the_page_of_the_package_names_every_export() -> None:
    page = hewfl.theory.__doc__ or ""
    assert not [name for name in hewfl.theory.__all__ if name not in page]
