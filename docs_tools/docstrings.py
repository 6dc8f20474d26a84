"""Which public names still lack a part of their docstring.

A public function has Args (every parameter), Returns, Raises where it refuses
something, and an example. A public class has Attributes (every field of its
constructor), Raises where the constructor refuses something, an example, and methods
with Args, Returns and Raises; a method that an interface of the library prescribes is
described there. An example is a doctest, or a block of code in the pages, examples or
notebooks that the tests run.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from docs_tools.pages import code_of_examples, code_of_notebooks, python_blocks
from docs_tools.public import ROOT, interfaces, protocols, public_methods, public_names
from hewfl.core.validation import Converted, Validated

CHECKS = ROOT / "src" / "hewfl" / "core" / "checks.py"


def section(text: str, *titles: str) -> str:
    """What stands under the first of these titles of a docstring, indented lines."""
    for title in titles:
        found = re.search(
            rf"^{title}:\n((?:[ \t]+.*\n|\n)+)", text + "\n", re.MULTILINE
        )
        if found:
            return textwrap.dedent(found[1])
    return ""


def described(text: str, *titles: str) -> set[str]:
    """The names described under some titles: `name: …`, `a, b: …`, `**options: …`."""
    under = "\n".join(section(text, title) for title in titles)
    names = re.findall(r"^([\w*`, ]+):", under, re.MULTILINE)
    return {word.strip(" *`") for line in names for word in line.split(",")}


def refuses(function: Any) -> bool:
    """Whether the body raises an error or calls one of the checks of arguments."""
    checks = set(re.findall(r"^def (\w+)", CHECKS.read_text("utf-8"), re.MULTILINE))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return False
    called = {n.func.id for n in ast.walk(tree) if _is_call_by_name(n)}  # type: ignore[attr-defined]
    raises = any(isinstance(node, ast.Raise) for node in ast.walk(tree))
    return raises or bool(called & checks - {"as_array"})


def _is_call_by_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def lacks_of_function(function: Any) -> Iterator[str]:
    """The parts that the docstring of a function or method should have and has not."""
    text = inspect.getdoc(function) or ""
    known = described(text, "Args")
    signature = inspect.signature(function)
    for name in signature.parameters:
        if name not in known | {"self", "cls"} and not name.startswith("_"):
            yield f"Args: {name}"
    returned = signature.return_annotation
    if returned not in (None, "None", inspect.Signature.empty) and not section(
        text, "Returns", "Yields"
    ):
        yield "Returns"
    if refuses(function) and not section(text, "Raises"):
        yield "Raises"


def lacks_of_class(cls: type, prescribed: dict[str, set[type]]) -> Iterator[str]:
    """The parts that the docstrings of a class and of its methods should have."""
    text = inspect.cleandoc(cls.__doc__ or "")
    start = vars(cls).get("__post_init__") or vars(cls).get("__init__")
    if start and cls not in protocols():  # theirs is made by typing
        text += "\n\n" + inspect.cleandoc(start.__doc__ or "")
    checked = issubclass(cls, Validated | Converted) or (start and refuses(start))
    if checked and cls not in protocols() and not section(text, "Raises"):
        yield "Raises"
    for name in _taken(cls, start):
        if name not in described(text, "Attributes", "Args"):
            yield f"Attributes: {name}"
    for name, member in public_methods(cls):
        if isinstance(member, property):
            if not member.__doc__ and not prescribed.get(name):
                yield f"{name}: text"
        elif cls in protocols() or not (prescribed.get(name) or _inherits(cls, name)):
            for lack in lacks_of_function(member):
                yield f"{name}: {lack}"


def _taken(cls: type, start: Any) -> list[str]:
    """What the constructor of a class takes: its fields, or the parameters."""
    if dataclasses.is_dataclass(cls):
        return [f.name for f in dataclasses.fields(cls) if f.init and f.name[0] != "_"]
    if start is None or cls in protocols():
        return []
    return list(inspect.signature(start).parameters)[1:]


def _inherits(cls: type, name: str) -> bool:
    """Whether a class of another library has the method, and describes it."""
    others = (base for base in cls.__mro__[1:-1] if base.__module__[:5] != "hewfl")
    return any(name in vars(base) for base in others)


def words_of_examples() -> set[str]:
    """Every identifier in code that the tests run: pages, examples, notebooks."""
    words: set[str] = set()
    for code in (*python_blocks(), *code_of_examples(), *code_of_notebooks()):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Name):
                words.add(node.id)
            elif isinstance(node, ast.Attribute):
                words.add(node.attr)
    return words


def missing() -> list[str]:
    """One line for each part that a public name lacks: `hewfl.name: what`."""
    words, prescribed, lines = words_of_examples(), interfaces(), []
    for protocol in protocols():
        path = f"{protocol.__module__}.{protocol.__name__}"
        lines += [f"{path}: {lack}" for lack in lacks_of_class(protocol, prescribed)]
    for path, thing in public_names():
        if not callable(thing) or not hasattr(thing, "__module__"):
            continue
        if thing in protocols():
            lacks = []
        elif inspect.isclass(thing):
            lacks = list(lacks_of_class(thing, prescribed))
        elif inspect.isfunction(thing):
            lacks = list(lacks_of_function(thing))
        else:
            continue
        if ">>>" not in (thing.__doc__ or "") and path.split(".")[-1] not in words:
            lacks.append("example")
        lines += [f"{path}: {lack}" for lack in lacks]
    return lines
