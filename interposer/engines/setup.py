"""Puts ``tidegate_finetune.pth`` beside the package, where Python reads it at its start.

A wheel with ``libtidegate_coserve.so`` is for the machines that this library is built for (``scripts/packaging/library``);
it is loaded by name, so that any Python 3 does.
"""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

LIBRARY = Path(__file__).with_name("tidegate_engines") / "libtidegate_coserve.so"


class WithStart(build_py):
    def run(self) -> None:
        super().run()
        name = "tidegate_finetune.pth"
        self.copy_file(name, str(Path(self.build_lib) / name))


class WithLibrary(Distribution):
    def has_ext_modules(self) -> bool:
        return LIBRARY.exists()


class ForMachine(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", "manylinux_2_28_x86_64") if LIBRARY.exists() else super().get_tag()


setup(distclass=WithLibrary, cmdclass={"build_py": WithStart, "bdist_wheel": ForMachine})
