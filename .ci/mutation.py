"""Mutation tests of the packages solver and displacements.

mutmut makes the mutants and runs the tests that reach each; results are kept in the
folder mutants/ and not computed again. This script adds a random order, a limit of
time, a choice of tests (those of the package, the fastest first) and a table with the
diffs of survivors. Types are not checked: that would more than double the time.

    python .ci/mutation.py --jobs 2 --minutes 20
"""

import argparse
import json
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mutmut import __main__ as mutmut
from mutmut.configuration import config
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.state import state
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.utils.format_utils import mangled_name_from_mutant_name

if not hasattr(pytest.Item, "_nodeid"):
    # mutmut 3.8 reads this attribute, which pytest 9.2 no longer has
    pytest.Item._nodeid = property(lambda item: item.nodeid)  # type: ignore[attr-defined]

Mutants = list[tuple[Any, str, int | None]]


def package_of(name: str) -> str:
    """The package `solver` for `hewfl.solver.weight_problem.x_f__mutmut_3`."""
    return name.split(".")[1]


def order_by_seed(seed: int) -> None:
    """Make mutmut take mutants in random order, each with the tests of its package.

    What has run when the time is over is then an unbiased sample.
    """
    everything: Callable[..., tuple[Mutants, Any]] = (
        mutmut.collect_source_file_mutation_data
    )

    def with_package_tests(*, mutant_names: tuple[str, ...]) -> tuple[Mutants, Any]:
        mutants, files = everything(mutant_names=mutant_names)
        seconds = state().duration_by_test
        for _, name, _ in mutants:
            function = mangled_name_from_mutant_name(name)
            tests = state().tests_by_mangled_function_name.get(function, set())
            inside = [t for t in tests if t.startswith(f"tests/{package_of(name)}/")]
            quick_first = sorted(
                inside or tests, key=lambda test: (seconds[test], test)
            )
            state().tests_by_mangled_function_name[function] = quick_first  # type: ignore[assignment]
        return mutants, files

    def random_rank(name: str) -> float:
        return random.Random(f"{seed} {name}").random()

    mutmut.collect_source_file_mutation_data = with_package_tests
    mutmut.estimated_worst_case_time = random_rank  # what mutmut sorts by


def survivors() -> list[str]:
    """The mutants that no test noticed so far, or not in time."""
    names: list[str] = []
    for path in walk_mutatable_files():
        data = mutmut.SourceFileMutationData(path=path)
        data.load()
        for name, code in data.exit_code_by_key.items():
            if status_by_exit_code[code] in ("survived", "timeout"):
                names.append(name)
    return names


def report(text: Path) -> None:
    """Write counts by file and the diffs of survivors, as text and as JSON."""
    counts: dict[str, Counter[str]] = {}
    lived = []
    for path in sorted(walk_mutatable_files()):
        data = mutmut.SourceFileMutationData(path=path)
        data.load()
        of_file = counts.setdefault("/".join(path.parts[-2:]), Counter())
        for name, code in data.exit_code_by_key.items():
            status = status_by_exit_code[code]
            of_file[status] += 1
            if status not in ("killed", "timeout", "not checked"):
                diff = get_diff_for_mutant(name, path=path)
                changed = re.findall(r"^[-+](?![-+]).*$", diff, flags=re.MULTILINE)
                lived.append({"name": name, "status": status, "diff": changed})
    counts = {name: count for name, count in counts.items() if count}
    for package in ("solver", "displacements"):
        parts = [c for name, c in counts.items() if name.startswith(package)]
        counts[package] = sum(parts, Counter())
    heads = ("killed", "timeout", "survived", "no tests", "other", "not checked")
    lines = [f"{'file':40}" + "".join(f"{head:>12}" for head in heads)]
    for name, count in counts.items():
        count["other"] = sum(count.values()) - sum(count[head] for head in heads)
        lines.append(f"{name:40}" + "".join(f"{count[head]:12}" for head in heads))
    table = "\n".join(lines)
    print(table)
    shown = [f"{m['name']} ({m['status']})\n  " + "\n  ".join(m["diff"]) for m in lived]
    text.parent.mkdir(parents=True, exist_ok=True)
    text.write_text(table + "\n\n" + "\n".join(shown) + "\n", encoding="utf-8")
    both = {"counts": counts, "not killed": lived}
    text.with_suffix(".json").write_text(json.dumps(both, indent=1), encoding="utf-8")


def main() -> None:
    """Run what is left of the sample within the time given, then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--seed", type=int, default=0, help="which come first")
    parser.add_argument("--minutes", type=float, default=0.0, help="0: no limit")
    parser.add_argument(
        "--only", nargs="*", default=[], help="names, run again; * is any"
    )
    parser.add_argument(
        "--again", action="store_true", help="survivors, after new tests"
    )
    parser.add_argument(
        "--without", type=Path, help="file: tests to leave out, by line"
    )
    parser.add_argument("--report", type=Path, default=Path("build/mutation.txt"))
    args = parser.parse_args()
    # a GPU that this process has used cannot be used by those it forks
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if args.without is not None:
        for test in args.without.read_text(encoding="utf-8").splitlines():
            config().pytest_add_cli_args.extend(["--deselect", test])
    order_by_seed(args.seed)
    names = args.only + (survivors() if args.again else [])
    # mutmut ends its workers at an interrupt and keeps their results
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 60 * args.minutes)
    try:
        mutmut._run(tuple(names), args.jobs)
    except KeyboardInterrupt:
        print("stopped before the first mutant")
    signal.setitimer(signal.ITIMER_REAL, 0)
    report(args.report)


if __name__ == "__main__":
    main()
