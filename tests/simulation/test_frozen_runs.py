"""Runs end at the frozen numbers of `frozen_runs.json`."""

import json

import numpy as np

from tests.simulation.frozen_runs import NUMBERS, run_all


def test_runs_end_at_the_frozen_numbers() -> None:
    frozen, now = json.loads(NUMBERS.read_text(encoding="utf-8")), run_all()
    assert list(now) == list(frozen)
    for name, numbers in frozen.items():
        for key, values in numbers.items():
            pairs = zip(now[name][key], values, strict=True)
            for k, (new, old) in enumerate(pairs):
                text = f"{name}, {key}, entry {k}"
                np.testing.assert_allclose(new, old, 1e-10, 1e-12, err_msg=text)
