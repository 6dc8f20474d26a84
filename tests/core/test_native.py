"""The compiled kernels are there when they can be, and are switched off when asked."""

import os
import shutil
import subprocess
import sys

from hewfl.core import native


def test_they_are_built_where_a_compiler_is() -> None:
    if os.environ.get("HEWFL_NATIVE") == "0":
        assert not native.is_available()
    elif shutil.which("cc") or shutil.which("gcc"):
        assert native.is_available(), (
            "a compiler is here, but the kernels were not built"
        )


def test_the_setting_switches_them_off() -> None:
    code = "from hewfl.core import native; print(native.is_available())"
    environment = {**os.environ, "HEWFL_NATIVE": "0"}
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "False"


def test_a_module_that_was_not_built_is_none() -> None:
    assert native.library("hewfl.solver._missing") is None
    with native.disabled():
        assert native.library(native.SOLVER) is None
