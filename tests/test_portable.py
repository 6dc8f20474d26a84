"""Calls that some systems lack are guarded; texts have an encoding."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

SOURCES = sorted((Path(__file__).resolve().parents[1] / "src").rglob("*.py"))
MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "msvcrt", "winreg"}
NAMES = {
    "os": {"chown", "fork", "getloadavg", "getpgid", "getuid", "geteuid", "killpg"}
    | {"mkfifo", "sched_getaffinity", "setsid", "uname", "startfile", "O_DIRECTORY"},
    "signal": {"SIGKILL", "SIGALRM", "SIGUSR1", "SIGHUP", "alarm", "pthread_sigmask"}
    | {"setitimer", "CTRL_BREAK_EVENT"},
    "time": {"tzset", "clock_gettime"},
}
"""Names that Windows lacks, or that only Windows has."""
GUARDS = ("hasattr", "AttributeError", "sys.platform", "os.name")


def uses(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """Line, name and whether it is guarded, of calls that only some systems have."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    for node in ast.walk(tree):
        name = None
        if isinstance(node, ast.Import):
            name = next((a.name for a in node.names if a.name in MODULES), None)
        elif isinstance(node, ast.Attribute):
            owner = getattr(node.value, "id", "")
            name = f"{owner}.{node.attr}" if node.attr in NAMES.get(owner, ()) else None
        if name is not None:
            assert isinstance(node, ast.stmt | ast.expr)
            line = node.lineno
            around = [f for f in functions if f.lineno <= line <= (f.end_lineno or 0)]
            text = "".join(ast.unparse(f) for f in around[-1:])
            yield line, name, any(guard in text for guard in GUARDS)


def texts_without_encoding(tree: ast.AST) -> Iterator[int]:
    """Lines that open text in the default encoding of the system."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name, keywords = node.func.attr, {k.arg for k in node.keywords}
        modes = [str(c.value) for a in node.args for c in ast.walk(a) if _is_text(c)]
        is_binary = any("b" in mode for mode in modes)
        positional = {"read_text": 1, "write_text": 2}.get(name)
        if positional and len(node.args) < positional and "encoding" not in keywords:
            yield node.lineno
        owner = getattr(node.func.value, "id", "")
        is_text = not is_binary and owner not in {"gzip", "zipfile", "tarfile", "os"}
        if name == "open" and is_text and "encoding" not in keywords:
            yield node.lineno


def _is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_the_scan_finds_what_it_looks_for() -> None:
    tree = ast.parse(
        "import os\ndef f():\n    os.fork()\n    p.open()\n    p.read_text()"
    )
    assert list(uses(tree)) == [(3, "os.fork", False)]
    assert list(texts_without_encoding(tree)) == [4, 5]


def test_calls_of_one_system_are_guarded() -> None:
    wrong = [
        f"{path.name}:{line} {name}"
        for path in SOURCES
        for line, name, is_guarded in uses(ast.parse(path.read_text(encoding="utf-8")))
        if not is_guarded
    ]
    assert not wrong


def test_texts_have_an_encoding() -> None:
    wrong = [
        f"{path}:{line}"
        for path in SOURCES
        for line in texts_without_encoding(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not wrong
