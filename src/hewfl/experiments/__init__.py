"""Experiments from a file or a table: tune, run, resume, compare, draw and report.

- `run`: a spec in, results out;
- `Spec`, `read_spec`, `spec_from_table`: what an experiment is;
- `Results`: the records as arrays, or as a DataFrame of tidy rows (`Results.frame`);
- `frame`: several results in one DataFrame.
"""

from hewfl.experiments.method_spec import MethodSpec
from hewfl.experiments.results import Results, frame
from hewfl.experiments.run import run
from hewfl.experiments.spec import Spec, read_spec, spec_from_table

__all__ = [
    "MethodSpec", "Results", "Spec", "frame", "read_spec", "run", "spec_from_table",
]  # fmt: skip
