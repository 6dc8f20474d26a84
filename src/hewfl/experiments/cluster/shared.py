"""Constants that one task found, kept here for the tasks that need them next.

The client's cache has a list for all samples of a seed: which constants belong to them.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from hewfl.core.atomic import read_json, write_json
from hewfl.data.places import cache_root, warn_of_cache
from hewfl.errors import DataError
from hewfl.experiments.constants import from_cache, put_in_cache


def known_constants(samples: str) -> dict[str, bytes]:
    """Files of all constants that are known of some samples, by name in the cache."""
    return from_cache(_listed(samples))


def learn_constants(samples: str, files: Mapping[str, bytes]) -> None:
    """Keep constants of some samples that a task has used or found."""
    known = _listed(samples)
    put_in_cache(files)
    both = sorted({*known, *(Path(name).stem for name in files)})
    if both == known:
        return
    try:
        write_json(_place(samples), both)
    except OSError as error:
        warn_of_cache(error)


def _listed(samples: str) -> list[str]:
    try:
        return list(read_json(_place(samples), missing=True) or [])
    except (OSError, DataError):
        return []


def _place(samples: str) -> Path:
    name = hashlib.sha256(samples.encode()).hexdigest()[:24]
    return cache_root() / "constants" / f"of-{name}.json"
