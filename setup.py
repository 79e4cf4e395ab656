"""Builds the native kernels where there is a C++ compiler; the metadata is in pyproject.toml.

Without a compiler the installation goes on and says so: plain torch operations serve then.
"""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("src/twofold/kernels/csrc")


class OptionalBuild(build_ext):
    """A build that may fail: whatever goes wrong is printed, and the package is installed without the library."""

    def run(self) -> None:
        """Build, or say why not."""
        try:
            super().run()
        except Exception as error:
            print(f"twofold: the native kernels were not built ({error}); plain torch operations will serve")


setup(
    ext_modules=[
        Extension(
            "twofold.kernels._native",
            sources=sorted(str(path) for path in SOURCES.glob("*.cpp")),
            depends=sorted(str(path) for path in SOURCES.glob("*.h")),
            extra_compile_args=["-O3", "-std=c++17", "-fvisibility=hidden", "-fno-math-errno", "-pthread"],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": OptionalBuild},
)
