"""Whether a worker would make the same bytes as this process: versions and code."""

import hashlib
import os
import platform
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import hewfl
from hewfl.core import native
from hewfl.errors import HewError
from hewfl.experiments.workers import THREADS
from hewfl.version import __version__


@cache  # asked for by every task
def likeness(*, torch: bool = False) -> Mapping[str, str]:
    """All of a process that its results depend on, by a name that people know."""
    python = ".".join(platform.python_version_tuple()[:2])
    packages = ("numpy", "scipy", *(("torch",) if torch else ()))
    return {
        "hewfl": f"{__version__} (code {code_digest()})",
        "compiled kernels": "used" if native.is_available() else "not used",
        "Python": python,
        **{name: _version(name) for name in packages},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def code_digest() -> str:
    """Checksum of hewfl's own source: a version number alone misses an edited copy."""
    root = Path(str(hewfl.__file__)).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(file.relative_to(root).as_posix().encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def require_like(client: Mapping[str, str], worker: str) -> None:
    """Require that this worker is like the client, and has one thread for its sums."""
    here = likeness(torch="torch" in client)
    differs = [
        f"{name} {here[name]} there, {value} here"
        for name, value in client.items()
        if here[name] != value
    ]
    if differs:
        told = f"worker {worker} is not like this client: {'; '.join(differs)}"
        raise HewError(f"{told}; install the same on both and start the worker again")
    many = [name for name in THREADS if os.environ.get(name) != "1"]
    if many:
        # Sums of several threads round otherwise, by how many cores there are.
        told = f"worker {worker} must be started with {'=1 '.join(many)}=1"
        raise HewError(f"{told}; `dask worker` sets them unless --no-nanny is given")
