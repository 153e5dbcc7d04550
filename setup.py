"""The C twin of the kernels: optional, so that a machine without a compiler still installs."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "millrace.kernels._kernels",
            [f"src/millrace/kernels/{name}.c" for name in ("_kernels", "_blocks", "_filters")],
            depends=["src/millrace/kernels/_blocks.h", "src/millrace/kernels/_filters.h"],
            extra_compile_args=["-O3", "-Wall", "-Wextra"],
            optional=True,
        )
    ]
)
