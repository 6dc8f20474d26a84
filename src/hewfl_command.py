"""Where the `hewfl` command starts: quiet under Ctrl-C from its first moment.

This stands beside the package and not in it, as nothing of the package can be imported
before `hewfl/__init__.py`, and that takes a good part of the command's first second.
"""

import atexit
import io
import os
import signal
import sys
from types import FrameType

STOPPED = 130
"""The status that shells give to what Ctrl-C ended."""


def main() -> None:
    """Import the command, then run it; Ctrl-C ends either with status 130."""
    # A process that ignores Ctrl-C, as under nohup, continues to ignore it.
    handles = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    code: object = None
    try:
        if handles:
            signal.signal(signal.SIGINT, _leave)
            # Python's last steps take every handler away, and Ctrl-C would then kill a
            # command that has done its work. What is registered first runs last.
            atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
        _make_printable()
        from hewfl.cli.app import app  # noqa: PLC0415 - under the handler above

        app()
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        code = STOPPED
    except OSError as error:  # the output itself cannot be written
        code = _cannot_write(error)
    finally:
        if handles:  # Python's own end takes a while too
            signal.signal(signal.SIGINT, _leave)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _cannot_write(error)
    sys.exit(code)  # type: ignore[arg-type]  # what `SystemExit` was given


def begin_work() -> None:
    """From here on Ctrl-C raises `KeyboardInterrupt`: there may be work to save."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _make_printable() -> None:
    """Let a console that lacks a letter show a question mark, and not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _cannot_write(error: OSError) -> int:
    """Say that standard output is of no use, and give up on what is left in it."""
    sys.stderr.write(f"error: standard output: {error.strerror or error}\n")
    # Python flushes once more at its end, and would show a traceback then.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Leave at once.

    An exception would not do: raised inside an import it may be taken for a missing
    package, or be swallowed and printed by a callback. No work has begun
    (`begin_work`), or it has ended: there is nothing to clean up.
    """
    os._exit(STOPPED)
