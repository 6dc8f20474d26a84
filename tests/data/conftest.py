"""Every test has an empty cache of its own and no HEWFL_DATA."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("HEWFL_CACHE", str(folder))
    monkeypatch.delenv("HEWFL_DATA", raising=False)
    return folder
