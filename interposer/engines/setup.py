"""Puts ``tidegate_finetune.pth`` beside the package, where Python reads it at its start."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithStart(build_py):
    def run(self) -> None:
        super().run()
        name = "tidegate_finetune.pth"
        self.copy_file(name, str(Path(self.build_lib) / name))


setup(cmdclass={"build_py": WithStart})
