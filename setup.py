"""Build of the optional compiled kernels; everything else is in pyproject.toml."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "hewfl.core._native",
            ["src/hewfl/core/_native.c"],
            extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            py_limited_api=True,
            optional=True,  # without a C compiler the NumPy twins do the same work
        )
    ],
)
