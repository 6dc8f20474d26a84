"""User code that a spec names: rules, problems, partitions, samplers, faults.

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
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from hewfl.core.toml_records import check_names, from_table, one_of, path
from hewfl.core.validation import format_value, invalid
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


def is_file(name: str) -> bool:
    """Whether the name of user code names its file."""
    return name.rpartition(":")[0].endswith(".py")


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
    place = ""
    if theirs:  # the folder may be a run's copy of the code: two parts are enough
        file = Path(*Path(theirs[-1].filename).parts[-2:])
        place = f"{file}, line {theirs[-1].lineno}: "
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


def check_parts(value: Any, contracts: Sequence[Any], where: str, what: str) -> None:
    """Require an object with all members of one of some protocols.

    Args:
        value: made by user code.
        contracts: protocols, and other classes, which are left out.
        where: path of the field in the spec, for errors.
        what: the object should be.

    Raises:
        InvalidInputError: it has not; the error names the members that are missing.
    """
    parts = [_members(each) for each in contracts if getattr(each, "_is_protocol", 0)]
    missing = [[name for name in names if _lacks(value, name)] for names in parts]
    least = min(map(len, missing))
    words = [" and ".join(f"`{name}`" for name in names) for names in parts]
    is_short = all(len(names) <= 3 for names in parts)
    rule = f"{what} with {', or '.join(dict.fromkeys(words))}" if is_short else what
    if least:
        nearest = [m for m in missing if len(m) == least]
        lacks = [", ".join(f"`{name}`" for name in names) for names in nearest]
        got = f"{format_value(value)}, which has no {' or '.join(dict.fromkeys(lacks))}"
        raise invalid(where, rule, got)


def check_repr(value: Any, where: str) -> None:
    """Require an object of user code that shows its fields.

    A checkpoint knows it by this text. The address of an object in memory would be
    another one when the run goes on.
    """
    if getattr(type(value), "__repr__", None) is object.__repr__:
        wanted = "one that shows its hyper-parameters by `repr`, such as a dataclass"
        raise invalid(where, wanted, format_value(value))


def _members(protocol: Any) -> tuple[str, ...]:
    names = [
        name
        for base in protocol.__mro__
        if getattr(base, "_is_protocol", False)
        for name in (*vars(base).get("__annotations__", ()), *vars(base))
    ]
    return tuple(sorted({name for name in names if not name.startswith("_")}))


def _lacks(value: Any, name: str) -> bool:
    return not hasattr(value, name) or getattr(value, name) is None


def code_files(name: str, group: str) -> tuple[Path, ...]:
    """The files that determine the code of a name; nothing is imported.

    The file of the module, and the files and packages beside it that it imports,
    directly or not. Of an installed package only the module itself.
    """
    points = entry_points(group)
    module = points[name].module if name in points else name.rpartition(":")[0]
    if module.endswith(".py"):
        return _with_neighbours(Path(module))
    file = _module_file(module)
    return () if file is None else (file,)


def _module_file(module: str) -> Path | None:
    """The file of an importable module.

    `importlib.util.find_spec` would import the packages that contain it.
    """
    first, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(first)
        for k in range(len(rest)):
            if spec is None:
                return None
            name = ".".join((first, *rest[: k + 1]))
            places = spec.submodule_search_locations
            spec = None if places is None else PathFinder.find_spec(name, list(places))
    except (ImportError, ValueError):  # a name that is none
        return None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return None
    return Path(spec.origin)


def _with_neighbours(file: Path) -> tuple[Path, ...]:
    files, left = set[Path](), [file]
    while left:
        here = left.pop()
        if here in files or not here.is_file():
            continue
        files.add(here)
        for name in _imported_names(here):
            left += [file.parent / f"{name}.py", *(file.parent / name).rglob("*.py")]
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
    # that has run the one before. So it is where a file that it imports was edited.
    files = {each: each.read_bytes() for each in _with_neighbours(file)}
    text = b"".join(str(each).encode() + files[each] for each in files)
    key = hashlib.sha256(text).hexdigest()[:12]
    known = f"{file.stem}_{key}"
    if known in sys.modules:
        return sys.modules[known]
    spec = importlib.util.spec_from_file_location(known, file)
    assert spec is not None, "a name that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[known] = module  # dataclasses look up their module by its name
    try:
        with _neighbours_first(file.parent, files):
            exec(compile(content, str(file), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[known]
        raise
    return module


_neighbours: dict[Path, bytes] = {}
"""The content of files beside user code when they were imported."""


@contextmanager
def _neighbours_first(folder: Path, files: Mapping[Path, bytes]) -> Iterator[None]:
    """Let imports inside find the files of a folder as they are now.

    A run has a copy of its code, and another project may have a file of the same name:
    a module that was imported before from elsewhere would be used in silence.
    """
    tops = {file.relative_to(folder).parts[0].removesuffix(".py") for file in files}
    for name, module in tuple(sys.modules.items()):
        source = getattr(module, "__file__", None)
        if name.partition(".")[0] not in tops - sys.stdlib_module_names or not source:
            continue
        is_same = _neighbours.get(Path(source)) in (None, files.get(Path(source)))
        is_installed = source.startswith((sys.prefix, sys.base_prefix))
        if not is_installed and not (Path(source) in files and is_same):
            del sys.modules[name]
    _neighbours.update(files)
    importlib.invalidate_caches()
    # In front, but never of the standard library.
    is_safe = not any(path.stem in sys.stdlib_module_names for path in folder.iterdir())
    before, here = list(sys.path), str(folder)
    sys.path[:] = [here, *before] if is_safe else [*before, here]
    # A run folder holds the code that it runs, and no compiled file, which no checksum
    # covers: none is written, and none is read.
    compiled = sys.dont_write_bytecode, sys.pycache_prefix
    sys.dont_write_bytecode, sys.pycache_prefix = True, os.devnull
    try:
        yield
    finally:  # code may also import when it is called
        sys.path[:] = before if here in before else [*before, here]
        sys.dont_write_bytecode, sys.pycache_prefix = compiled
