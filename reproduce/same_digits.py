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
    """A line for each excessive difference, and the largest difference of a mean."""
    lines, largest = [], 0.0
    if list(new) != list(old):
        return [f"panels {list(new)}, before {list(old)}"], largest
    for panel, old_panel in old.items():
        for ours, theirs in zip(
            new[panel]["methods"], old_panel["methods"], strict=True
        ):
            where = f"{panel}, {theirs['label']}"
            lines += [
                f"{where}: {name} {ours[name]}, before {theirs[name]}"
                for name in ("label", "parameters")
                if ours[name] != theirs[name]
            ]
            for name, value in theirs["final"].items():
                difference = abs(ours["final"][name]["mean"] - value["mean"])
                largest = max(largest, difference)
                if not difference <= CLOSE.get(name, 2e-7):
                    lines.append(f"{where}: {name} differs by {difference:.1e}")
    return lines, largest


def main() -> None:
    """Compare the two folders named on the command line."""
    new, old = (
        json.loads((Path(p) / "summary.json").read_text()) for p in sys.argv[1:]
    )
    lines, largest = differences(new, old)
    print("\n".join(lines) or "the same digits", f"; largest difference {largest:.1e}")
    raise SystemExit(bool(lines))
