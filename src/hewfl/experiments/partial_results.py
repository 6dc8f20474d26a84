"""What an unfinished run has by now."""

from dataclasses import replace
from pathlib import Path

from hewfl.experiments.external_runs import whole_lines
from hewfl.experiments.results import Results, read_results
from hewfl.experiments.run_folder import Folder
from hewfl.experiments.spec import Spec


def results_so_far(folder: Folder) -> Results | None:
    """Read the seeds and rounds that an unfinished run has written.

    Seeds go on at their own pace. As many rounds are taken as give most records over
    all seeds that have them; seeds that are not so far are left out.

    Returns:
        Results of a spec with these seeds and rounds; None while there are none.
    """
    spec = folder.tuned
    if spec is None:
        return None
    far = {seed: _rounds(spec, folder.of_seed(seed)) for seed in spec.seeds}
    rounds = max(far.values(), key=lambda r: r * sum(own >= r for own in far.values()))
    if rounds == 0:
        return None
    seeds = tuple(seed for seed, own in far.items() if own >= rounds)
    part = replace(spec, rounds=rounds, seeds=seeds)
    return read_results(part, {seed: folder.of_seed(seed) for seed in seeds})


def _rounds(spec: Spec, folder: Path) -> int:
    """Rounds of a seed that every method has whole, up to one that was evaluated."""
    if not spec.is_record and not (folder / "constants.json").exists():
        return 0
    whole = max(0, whole_lines(folder) // len(spec.methods) - 1)
    every = spec.evaluate_every
    return spec.rounds if whole >= spec.rounds else whole - whole % every
