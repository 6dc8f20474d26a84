"""`hewfl paper` and `hewfl study`: the reproduction, which lives in a checkout."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

import hewfl
from hewfl.cli.error_messages import one_line_errors
from hewfl.errors import HewError

Arguments = Annotated[list[str] | None, typer.Argument(help="Passed on unchanged.")]


def paper(arguments: Arguments = None) -> None:
    """Run the paper's experiments (in a checkout: `python -m reproduce paper`)."""
    _reproduce("paper", arguments)


def study(arguments: Arguments = None) -> None:
    """Run the studies beyond the paper (in a checkout: `python -m reproduce study`)."""
    _reproduce("study", arguments)


def _reproduce(command: str, arguments: list[str] | None) -> None:
    """Call `python -m reproduce` of the checkout this library is installed from.

    Raises:
        HewError: there is no checkout.
    """
    with one_line_errors():
        root = Path(hewfl.__file__).parents[2]
        if not (root / "reproduce" / "__main__.py").is_file():
            text = "the paper's experiments are not part of the installed library"
            raise HewError(
                f"{text}; in a checkout of hewfl run: python -m reproduce {command}"
            )
    sys.path.insert(0, str(root))
    app = import_module("reproduce.__main__").app
    app([command, *(arguments or [])], prog_name="python -m reproduce")
