"""Build of the optional compiled kernels; everything else is in pyproject.toml.

HEWFL_PURE=1 leaves the kernels out: a wheel for every machine, with the NumPy twins.
HEWFL_SANITIZE=1 builds them with the sanitizers of addresses and undefined behaviour.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup

# Python without the global lock has no stable interface for compiled modules
PURE = os.environ.get("HEWFL_PURE") == "1" or bool(
    sysconfig.get_config_var("Py_GIL_DISABLED")
)
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math"]
if os.environ.get("HEWFL_SANITIZE") == "1":
    FLAGS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"]
    FLAGS += ["-fno-sanitize-recover=undefined"]
elif sys.platform == "win32":
    FLAGS = []  # the kernels need GCC or Clang; MSVC's build fails, and is left out


def kernels(name: str, source: str, *headers: str) -> Extension:
    """A module that is left out where there is no C compiler: NumPy twins remain."""
    return Extension(
        name,
        [source],
        depends=list(headers),
        extra_compile_args=FLAGS,
        extra_link_args=[flag for flag in FLAGS if flag.startswith("-fsanitize")],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
        optional=True,
    )


setup(
    # one wheel of a platform serves Python 3.11 and all that come after it
    options={} if PURE else {"bdist_wheel": {"py_limited_api": "cp311"}},
    ext_modules=[]
    if PURE
    else [
        kernels(
            "hewfl.solver._solver",
            "src/hewfl/solver/_solver.c",
            "src/hewfl/core/_buffers.h",
            "src/hewfl/core/_kernels.h",
        ),
        kernels(
            "hewfl.displacements._passes",
            "src/hewfl/displacements/_passes.c",
            "src/hewfl/displacements/_columns.h",
            "src/hewfl/core/_buffers.h",
            "src/hewfl/core/_kernels.h",
        ),
        kernels(
            "hewfl.problems.softmax._softmax",
            "src/hewfl/problems/softmax/_softmax.c",
            "src/hewfl/core/_buffers.h",
            "src/hewfl/problems/softmax/_branch.h",
            "src/hewfl/problems/softmax/_losses.h",
            "src/hewfl/problems/softmax/_processor.h",
            "src/hewfl/problems/softmax/_sparse.h",
        ),
    ],
)
