"""How the command says what went wrong."""

import ast
import re
import shlex
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from hewfl.errors import HewError, InvalidInputError

_LABEL = re.compile(r"\blabel=('[^'\\]*'|\"[^\"\\]*\")")


def as_option(column: str) -> str:
    """The column of the labels as `hewfl data` takes it."""
    return shlex.join(["--label", column])


def as_change(column: str) -> str:
    """The column of the labels as `hewfl run` and `tune` take it."""
    return shlex.join(["--set", f"data.label={column}"])


@contextmanager
def one_line_errors(
    label: Callable[[str], str] = "label={!r}".format,
) -> Iterator[None]:
    """Say our own errors in one line, and what the system refuses to do with a file.

    Others are bugs and keep their traceback. Exit code 2 for input that breaks a rule,
    1 for everything else. Warnings are one line as well.

    Args:
        label: how a user of the command names the column of the labels, where an error
            says that of a call in Python.
    """
    before = warnings.formatwarning
    warnings.formatwarning = _one_line
    try:
        yield
    except HewError as error:
        text = _LABEL.sub(lambda m: label(ast.literal_eval(m[1])), str(error))
        typer.echo(f"error: {text}", err=True)
        raise typer.Exit(2 if isinstance(error, InvalidInputError) else 1) from error
    except OSError as error:
        if error.filename is None:
            raise
        typer.echo(f"error: {error.filename}: {error.strerror}", err=True)
        raise typer.Exit(1) from error
    finally:
        warnings.formatwarning = before


def _one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    return f"warning: {message}\n"
