"""Build of the optional compiled kernels; everything else is in pyproject.toml."""

from setuptools import Extension, setup


def kernels(name: str, source: str, *headers: str) -> Extension:
    """A module that is left out where there is no C compiler: NumPy twins remain."""
    return Extension(
        name,
        [source],
        depends=list(headers),
        extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
        optional=True,
    )


setup(
    ext_modules=[
        kernels(
            "hewfl.solver._solver",
            "src/hewfl/solver/_solver.c",
            "src/hewfl/core/_kernels.h",
        ),
        kernels(
            "hewfl.aggregate._passes",
            "src/hewfl/aggregate/_passes.c",
            "src/hewfl/core/_kernels.h",
        ),
        kernels(
            "hewfl.problems.softmax._softmax",
            "src/hewfl/problems/softmax/_softmax.c",
            "src/hewfl/problems/softmax/_branch.h",
            "src/hewfl/problems/softmax/_losses.h",
            "src/hewfl/problems/softmax/_processor.h",
        ),
    ],
)
