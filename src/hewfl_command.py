"""Where the `hewfl` command starts: quiet under Ctrl-C from its first moment.

This stands beside the package and not in it, as nothing of the package can be imported
before `hewfl/__init__.py`, and that takes a good part of the command's first second.
"""

import os
import signal
import sys
from types import FrameType

STOPPED = 130
"""The status that shells give to what Ctrl-C ended."""


def main() -> None:
    """Import the command, then run it; Ctrl-C ends either with status 130."""
    # A process that was told to ignore Ctrl-C, as under nohup, goes on ignoring it.
    hears = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if hears:
            signal.signal(signal.SIGINT, _leave)
        from hewfl.cli.app import app  # noqa: PLC0415 - under the handler above

        if hears:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app()
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    finally:
        if hears:  # Python's own end takes a while too
            signal.signal(signal.SIGINT, _leave)


def _leave(_number: int, _frame: FrameType | None) -> None:
    """Leave at once.

    An exception would not do: raised inside an import it may be taken for a missing
    package, or be swallowed and printed by a callback. Nothing has begun that would
    need to be cleaned up.
    """
    os._exit(STOPPED)


if __name__ == "__main__":
    main()
