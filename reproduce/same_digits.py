"""Whether two published folders of `python -m reproduce paper` hold the same digits.

`python -m reproduce same-digits NEW OLD` compares the means of the last round in both
summary.json and what tuning chose: means to 2e-7, accuracies to 2e-5, as the same code
on processors with other vectors differs by 1.2e-7 and 1.0e-5. Exit status 1 where one
differs by more.
"""

import json
import sys
from pathlib import Path
from typing import Any

CLOSE = {"test_accuracy": 2e-5}
"""By quantity; 2e-7 for the others."""


def differences(new: dict[str, Any], old: dict[str, Any]) -> tuple[list[str], float]:
    """What differs by more than its tolerance, and the largest difference of a mean."""
    told, most = [], 0.0
    if list(new) != list(old):
        return [f"panels {list(new)}, before {list(old)}"], most
    for panel, was in old.items():
        for ours, theirs in zip(new[panel]["methods"], was["methods"], strict=True):
            where = f"{panel}, {theirs['label']}"
            told += [
                f"{where}: {name} {ours[name]}, before {theirs[name]}"
                for name in ("label", "parameters")
                if ours[name] != theirs[name]
            ]
            for name, value in theirs["final"].items():
                apart = abs(ours["final"][name]["mean"] - value["mean"])
                most = max(most, apart)
                if not apart <= CLOSE.get(name, 2e-7):
                    told.append(f"{where}: {name} differs by {apart:.1e}")
    return told, most


def main() -> None:
    """Compare the two folders named on the command line."""
    new, old = (
        json.loads((Path(p) / "summary.json").read_text()) for p in sys.argv[1:]
    )
    told, most = differences(new, old)
    print("\n".join(told) or "the same digits", f"; largest difference {most:.1e}")
    raise SystemExit(bool(told))
