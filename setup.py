"""Puts configs, sweeps and examples into the wheel, below vfl/shipped; pyproject.toml has all the rest."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithShipped(build_py):
    """Copies the packages, and beside them the folders that a command may name a file of."""

    def run(self) -> None:
        """Copy everything, but in an editable installation, which reads the repository itself."""
        super().run()
        if self.editable_mode:
            return
        leave_out = shutil.ignore_patterns("results", "__pycache__", "plugin_package", "*.ipynb")
        for name in ("configs", "experiments", "examples"):
            if Path(name).is_dir():
                target = Path(self.build_lib) / "vfl" / "shipped" / name
                shutil.rmtree(target, ignore_errors=True)
                shutil.copytree(name, target, ignore=leave_out)


setup(cmdclass={"build_py": BuildWithShipped})
