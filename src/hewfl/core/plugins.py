"""User code that a spec names: rules, problems, partitions, samplers.

A name has one of three forms:

    my_rules:Krum           a module: a file beside the spec, else one that Python finds
    rules/mine.py:Krum      a file
    Krum2                   an entry point of an installed package

**Loading such a name runs the code.** Nothing is loaded to read a spec or to report a
finished run, only to compute.
"""

import ast
import dataclasses
import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from hewfl.core.toml_records import check_names, from_table, one_of, path
from hewfl.core.validation import invalid
from hewfl.errors import HewError

_EMPTY = inspect.Parameter.empty


def is_user_code(name: object, group: str) -> bool:
    """Whether a name of a spec is of code that is not part of hewfl."""
    return isinstance(name, str) and (":" in name or name in entry_points(group))


@cache
def entry_points(group: str) -> Mapping[str, Any]:
    """The entry points of installed packages under a group, by name, not loaded."""
    from importlib import metadata  # noqa: PLC0415 - slow to import

    return {point.name: point for point in metadata.entry_points(group=group)}


def short_name(name: str) -> str:
    """The name of user code in tables: the part behind the colon.

    >>> short_name("rules/mine.py:Krum"), short_name("FedAvg")
    ('Krum', 'FedAvg')
    """
    return name.rpartition(":")[2]


def absolute_name(name: Any, folder: Path) -> Any:
    """The name with the absolute path of its file, if that is in a folder.

    A run stores this form, so that it can continue in any working directory. All other
    names stay as they are.
    """
    if not isinstance(name, str) or ":" not in name:
        return name
    module, _, inside = name.rpartition(":")
    is_file = module.endswith(".py")
    file = folder / (module if is_file else f"{module.replace('.', '/')}.py")
    return f"{file.resolve()}:{inside}" if is_file or file.is_file() else name


def load(name: str, group: str, where: str) -> Any:
    """The object of a name; its code is run.

    Args:
        name: of user code, see `is_user_code`.
        group: of entry points.
        where: the field of the spec, for errors.

    Raises:
        InvalidInputError: there is no such code, or it cannot be run.
    """
    points = entry_points(group)
    module, _, inside = name.rpartition(":")
    try:
        if name in points:
            return points[name].load()
        value: Any = _module(module)
        for part in inside.split("."):
            value = getattr(value, part)
    # A script without a main guard may even leave Python.
    except (Exception, SystemExit) as error:
        rule = "code that can be imported"
        raise invalid(where, rule, f"{name!r}: {describe_error(error)}") from error
    if not callable(value):
        raise invalid(where, "a class or a function", f"{name!r}, {value!r:.60}")
    return value


def check_name(name: object, known: tuple[str, ...], group: str, where: str) -> None:
    """Require a known name, or the form of a name of user code, which is not loaded."""
    if name in known:
        return
    if not is_user_code(name, group):
        rule = one_of((*known, "your own `file:Name`", *entry_points(group)), name)
        raise invalid(where, rule, repr(name))
    module, _, inside = str(name).rpartition(":")
    parts = inside.split(".") if module else []
    if ":" in str(name) and not (parts and all(p.isidentifier() for p in parts)):
        rule = 'a module and a name in it, such as "my_rules:Krum"'
        raise invalid(where, rule, repr(name))


def describe_error(error: BaseException) -> str:
    """An exception of user code in one line: place, type, message."""
    theirs = _users_frames(error)
    place = f"{theirs[-1].filename}, line {theirs[-1].lineno}: " if theirs else ""
    text = " ".join(str(error).split())[:200]
    return f"{place}{type(error).__name__}" + (f": {text}" if text else "")


def passes_user_code(error: BaseException) -> bool:
    """Whether an exception comes from user code, or passed it."""
    return bool(_users_frames(error))


def _users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The part of a traceback that is neither hewfl's nor of an installed package."""
    ours = str(Path(__file__).parents[2])  # hewfl and its command
    rest = (ours, sys.prefix, sys.base_prefix, "<")
    frames = traceback.extract_tb(error.__traceback__)
    return [f for f in frames if not f.filename.startswith(rest)]


def parameters_of(thing: Any) -> tuple[str, ...]:
    """The parameters of a class or function of user code."""
    if dataclasses.is_dataclass(thing):
        return tuple(field.name for field in dataclasses.fields(thing) if field.init)
    try:
        known = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):  # written in C, without a signature
        return ()
    return tuple(
        p.name for p in known if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    )


def make(
    thing: Any, given: Mapping[str, Any], offered: Mapping[str, Any], where: str
) -> Any:
    """Call a class or a function of user code.

    Args:
        thing: from `load`.
        given: options of the spec; fields of a dataclass are converted and checked.
        offered: values from hewfl, passed if `thing` has such a parameter.
        where: path of the table in the spec, for errors.

    Raises:
        InvalidInputError: a field is unknown, missing or wrong, or the code fails.
    """
    known = parameters_of(thing)
    check_names(given, [name for name in known if name not in offered], where)
    values = {**given, **{k: v for k, v in offered.items() if k in known}}
    try:
        if dataclasses.is_dataclass(thing) and isinstance(thing, type):
            return from_table(thing, values, where)
        _check_given(thing, values, where)
        return thing(**values)
    except HewError:
        raise
    except (Exception, SystemExit) as error:
        name = getattr(thing, "__name__", "the code")
        raise invalid(where, f"what {name} takes", describe_error(error)) from error


def _check_given(thing: Any, values: Mapping[str, Any], where: str) -> None:
    for name in parameters_of(thing):
        parameter = inspect.signature(thing).parameters[name]
        if name not in values and parameter.default is _EMPTY:
            raise invalid(path(where, name), "given", "nothing")


def code_files(name: str, group: str) -> tuple[Path, ...]:
    """The files that determine the code of a name.

    The file of the module and those beside it that it imports, directly or not. Of an
    installed package only the module itself.
    """
    points = entry_points(group)
    module = points[name].module if name in points else name.rpartition(":")[0]
    if module.endswith(".py"):
        return _with_neighbours(Path(module))
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a parent that is none, or a broken one
        spec = None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return ()
    return (Path(spec.origin),)


def _with_neighbours(file: Path) -> tuple[Path, ...]:
    files, left = [], [file]
    while left:
        here = left.pop()
        if here in files or not here.is_file():
            continue
        files.append(here)
        left += [here.parent / f"{name}.py" for name in _imported_names(here)]
    return tuple(sorted(files))


def _imported_names(file: Path) -> list[str]:
    """First parts of the names that a file imports, wherever in it."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):  # an error when it is run
        return []
    plain = [
        a.name for node in nodes if isinstance(node, ast.Import) for a in node.names
    ]
    froms = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return [name.partition(".")[0] for name in (*plain, *froms) if name]


def _module(name: str) -> ModuleType:
    """A module by its name, or from its file, which is run once for its content."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    file = Path(name)
    content = file.read_bytes()
    # The name holds the content: an edited file is another module, also in a notebook
    # that has run the one before.
    key = hashlib.sha256(str(file).encode() + content).hexdigest()[:12]
    known = f"{file.stem}_{key}"
    if known in sys.modules:
        return sys.modules[known]
    spec = importlib.util.spec_from_file_location(known, file)
    assert spec is not None, "a name that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.parent)
    if folder not in sys.path:  # it may import files beside it
        sys.path.append(folder)
    sys.modules[known] = module  # dataclasses look up their module by its name
    try:
        exec(compile(content, str(file), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[known]
        raise
    return module
