"""The compiled kernels are there when they can be, and are switched off when asked."""

import os
import shutil
import subprocess
import sys

import pytest

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


PRODUCTS = """
import hashlib, numpy as np
from hewfl.displacements.dense import as_dense
from hewfl.displacements.gram import round_products
rng, digest = np.random.default_rng(0), hashlib.sha256()
for n, d in ((1, 9), (2, 255), (5, 256), (21, 1000), (50, 257)):
    data = as_dense("x", rng.standard_normal((n, d)).astype(np.float32))
    products = round_products(data, rng.standard_normal(d), 2.0)
    digest.update(products.gram.tobytes() + products.linear.tobytes())
print(digest.hexdigest())
"""


@pytest.mark.skipif(not native.is_available(), reason="the kernels are not built")
def test_gram_matrices_have_the_same_bits_with_wide_and_narrow_vectors() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", PRODUCTS],
            env={**os.environ, "HEWFL_NATIVE": asked},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for asked in ("1", "avx2")
    }
    assert len(digests) == 1
