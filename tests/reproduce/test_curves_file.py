"""Published curves: what was written is read back, as far as figures need it."""

from pathlib import Path

import numpy as np
import pytest
from reproduce.curves_file import CURVES, WEIGHTS, read_curves, write_curves

from hewfl.core.atomic import write_json, write_text
from hewfl.errors import DataError
from hewfl.experiments.spec import write_spec
from tests.report.test_report import hostile_run, results_of

KEY = ("digits", "hom-equal")


def test_what_is_written_is_read_back(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    results = results_of(hostile_run(tmp_path_factory.getbasetemp()))
    write_curves({KEY: results}, tmp_path)
    first = [(tmp_path / name).read_bytes() for name in (CURVES, WEIGHTS)]
    constants = list(results.constants)
    write_json(tmp_path / "summary.json", {", ".join(KEY): {"constants": constants}})
    write_text(tmp_path / "tuned.toml", write_spec(results.spec))
    (restored,) = read_curves(tmp_path).values()
    assert restored.labels == results.labels
    for label in results.labels:
        for name in ("gap", "pooled", "test_accuracy", "scalars", "paper_scalars"):
            ours, theirs = restored.curve(label, name), results.curve(label, name)
            np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-8)
        mass = results.mass(label)
        assert restored.mass(label).keys() == mass.keys()
        for h, seeds in restored.mass(label).items():
            np.testing.assert_allclose(seeds, mass[h], rtol=1e-7)
    write_curves({KEY: restored}, tmp_path)
    assert [(tmp_path / name).read_bytes() for name in (CURVES, WEIGHTS)] == first


def test_curves_that_are_not_there_are_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the published curves in .* cannot be read"):
        read_curves(tmp_path)
