"""How the command says what went wrong."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from hewfl.errors import HewError, InvalidInputError


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Say our own errors in one line, and what the system refuses to do with a file.

    Others are bugs and keep their traceback. Exit code 2 for input that breaks a rule,
    1 for everything else. Warnings are one line as well.
    """
    before = warnings.formatwarning
    warnings.formatwarning = _one_line
    try:
        yield
    except HewError as error:
        typer.echo(f"error: {error}", err=True)
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
