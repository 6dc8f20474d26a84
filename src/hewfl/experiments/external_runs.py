"""Records of jobs that are no simulations, and what their folders may leave out.

A Flower federation or a torch job needs to leave no more than `spec.toml`, with a name,
`partition = "nodes"` under [clients] and its [[methods]], and a `trace.jsonl` in a
folder `seed-<number>`. Seeds, rounds and clients are then counted.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hewfl.experiments.spec import Spec, is_record, read_toml, spec_from_table
from hewfl.server.trace import RoundRecord


def read_folder_spec(folder: Path) -> Spec:
    """Read the spec of a run from its folder.

    Returns:
        The spec; of a job's record with seeds and rounds as found, if it has none.

    Raises:
        DataError: the file cannot be read or is not TOML.
        InvalidInputError: a field breaks a rule.
    """
    table = read_toml(folder / "spec.toml")
    if not is_record(table):
        return spec_from_table(table)
    places = [file.parent.name for file in folder.glob("seed-*/trace.jsonl")]
    numbers = [name.removeprefix("seed-") for name in places]
    seeds = sorted(int(number) for number in numbers if number.isdecimal())
    found: dict[str, Any] = {"data": {"name": "data of the nodes"}}
    found |= {"seeds": seeds} if seeds else {}
    entries = len(table.get("methods", ()))
    if seeds and entries:
        lines = [whole_lines(folder / f"seed-{seed}") for seed in seeds]
        found["rounds"] = max(min(lines) // entries - 1, 1)
    return spec_from_table(found | table)


def is_whole_record(spec: Spec, folder: Path) -> bool:
    """Whether the trace of every seed has all rounds of a job's spec."""
    least = len(spec.methods) * (spec.rounds + 1)
    return all(whole_lines(folder / f"seed-{seed}") >= least for seed in spec.seeds)


def counted_constants(entries: Sequence[Sequence[RoundRecord]]) -> Mapping[str, Any]:
    """Constants of a job's seed: n by the largest client; the rest is not known."""
    every = (i for own in entries for r in own for i in (*r.clients, *r.excluded))
    names = ("smoothness", "objective", "pooled", "d")
    return dict.fromkeys(names) | {"n": 1 + max(every, default=0), "samples": []}


def whole_lines(folder: Path) -> int:
    """Count the whole lines of the trace in a folder of a seed."""
    trace = folder / "trace.jsonl"
    return trace.read_bytes().count(b"\n") if trace.exists() else 0
