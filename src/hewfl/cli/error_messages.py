"""Errors of the command in one line."""

import ast
import errno
import re
import shlex
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from typing import Any

import typer

import hewfl_command
from hewfl.errors import HewError, InvalidInputError

_LABEL = re.compile(r"\blabel_column=('[^'\\]*'|\"[^\"\\]*\")")


def as_option(column: str) -> str:
    """The column of the labels as `hewfl data` takes it."""
    return shlex.join(["--label-column", column])


def as_change(column: str) -> str:
    """The column of the labels as `hewfl run` and `tune` take it."""
    return shlex.join(["--set", f"data.label_column={column}"])


@contextmanager
def one_line_errors(
    label: Callable[[str], str] = "label_column={!r}".format,
) -> Iterator[None]:
    """Print hewfl's errors in one line, and those of the system.

    That is: a file that cannot be written, a disk that is full, memory that is not
    there, a worker that was killed, Ctrl-C. Others are bugs and keep their traceback.
    Exit code 2 for input that breaks a rule, 130 for Ctrl-C, 1 for everything else.
    Warnings are one line as well.

    Args:
        label: how a user of the command names the column of the labels, where an error
            says that of a call in Python.
    """
    before = warnings.formatwarning
    warnings.formatwarning = _one_line
    try:
        hewfl_command.begin_work()
        yield
    except HewError as error:
        text = _LABEL.sub(lambda m: label(ast.literal_eval(m[1])), str(error))
        _say(text)
        raise typer.Exit(2 if isinstance(error, InvalidInputError) else 1) from error
    except BrokenPipeError:  # the reader of the output is gone: typer ends quietly
        raise
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        _say(f"{place}{error.strerror or error}{_advice(error)}")
        raise typer.Exit(1) from error
    except MemoryError as error:
        why = f": {error}" if str(error) else ""
        _say(f"not enough memory{why}; use fewer methods, clients or samples")
        raise typer.Exit(1) from error
    except BrokenExecutor as error:
        text = "a worker process was killed, probably because memory ran out; run the "
        _say(f"{text}same command again to continue, with --jobs 1 to use less memory")
        raise typer.Exit(1) from error
    except KeyboardInterrupt as error:
        typer.echo("stopped", err=True)
        raise typer.Exit(130) from error
    finally:
        warnings.formatwarning = before


def _say(text: str) -> None:
    """One line, whatever the text is."""
    typer.echo(f"error: {' '.join(text.split())}", err=True)


def _advice(error: OSError) -> str:
    full = (errno.ENOSPC, errno.EDQUOT)
    return (
        "; free some space, then run the same command again to continue"
        if error.errno in full
        else ""
    )


def _one_line(message: Warning | str, *_: Any, **__: Any) -> str:
    return f"warning: {message}\n"
