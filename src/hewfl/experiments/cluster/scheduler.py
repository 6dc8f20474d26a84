"""The scheduler of a Dask cluster: its address, and a connection to it."""

import contextlib
import json
import logging
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from hewfl.core.checks import invalid
from hewfl.errors import DataError, HewError, MissingExtraError

SCHEMES = ("tcp", "tls", "ucx", "ws", "wss")
"""Of addresses that Dask knows."""
FILE = "file:"
"""Begins the name of a scheduler file."""
PATIENCE = 600.0
"""Seconds to wait for a scheduler that was lost: it may be restarted by hand. Dask's
setting `hewfl.patience` changes it (DASK_HEWFL__PATIENCE in the environment)."""


def dask(name: str = "distributed") -> Any:
    """A module of Dask, which a machine without a cluster need not have."""
    try:
        return import_module(name)
    except ImportError as error:
        text = "--cluster needs Dask Distributed: install hewfl's extra cluster"
        raise MissingExtraError(text) from error


def check_address(address: str) -> str:
    """Require an address of a scheduler, or a scheduler file."""
    scheme, mark, rest = address.partition("://")
    if address.startswith(FILE) and len(address) > len(FILE):
        return address
    if not (mark and scheme in SCHEMES and rest.rpartition(":")[2].isdecimal()):
        rule = "an address such as tcp://host:8786, or file:scheduler.json"
        raise invalid("--cluster", rule, repr(address))
    return address


def connect(address: str) -> Any:
    """A client of the scheduler at an address.

    The time limit is Dask's own, `distributed.comm.timeouts.connect`: 30 seconds.

    Raises:
        MissingExtraError: Dask Distributed is not installed.
        HewError: nobody answers within the time limit.
    """
    limit = _seconds("distributed.comm.timeouts.connect", 30.0)
    return _connected(address, limit)


def reconnect(address: str) -> Any:
    """A client of a scheduler that was lost, when it is there again.

    Raises:
        HewError: it is not there after `PATIENCE`.
    """
    limit = _seconds("hewfl.patience", PATIENCE)
    until = time.monotonic() + limit
    while True:
        left = until - time.monotonic()
        try:
            return _connected(address, max(1.0, min(left, 10.0)))
        except HewError:
            if left <= 0:
                told = f"the scheduler at {address} is gone for {limit:g} s"
                raise HewError(f"{told}; start it and the command again") from None
            time.sleep(0.2)


def _connected(address: str, limit: float) -> Any:
    distributed = dask()
    # Its words on connections that break are ours to say, in one line.
    for name in tuple(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        return distributed.Client(
            _location(address), timeout=limit, set_as_default=False, name="hewfl"
        )
    except (OSError, TimeoutError) as error:
        told = f"no Dask scheduler answers at {address} within {limit:g} s"
        raise HewError(f"{told}; start one with: dask scheduler") from error
    except (TypeError, ValueError, RuntimeError) as error:  # TLS not set up, say
        told = f"no connection to the Dask scheduler at {address}"
        raise HewError(f"{told}: {' '.join(str(error).split())}") from error


def _location(address: str) -> str:
    """The address, read anew from a scheduler file: a restarted one has another."""
    if not address.startswith(FILE):
        return address
    file = Path(address.removeprefix(FILE).removeprefix("//"))
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["address"])
    except FileNotFoundError as error:
        told = f"the scheduler file {file} does not exist"
        start = f"start the scheduler with: dask scheduler --scheduler-file {file}"
        raise DataError(f"{told}; {start}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is no scheduler file: {error!r}") from error


def _seconds(setting: str, default: float) -> float:
    dask()  # brings its settings
    config = dask("dask.config")
    parse = dask("dask.utils").parse_timedelta
    return float(parse(config.get(setting, default)))


def close(client: Any) -> None:
    """End a connection, whatever is left of it."""
    with contextlib.suppress(Exception):  # it may be broken in any way
        client.close(timeout=2)
