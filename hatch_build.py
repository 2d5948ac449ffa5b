"""Builds packages with hatchling. ``ARCHSIM_COMPILED=1`` puts machine code into a wheel: its users need not wait for
the compiler.

That takes a minute or two and needs what archsim itself needs, which is worth it for a wheel that is installed more
than once. A wheel without machine code compiles functions when they are first used. So does an installation that can be
edited, and one on another kind of processor, or with another Python or numba than the wheel was built with.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import hatchling.build
from hatchling.build import *  # noqa: F403
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WANTED = os.environ.get("ARCHSIM_COMPILED") == "1"
PROJECT = Path(__file__).with_name("pyproject.toml")


def get_requires_for_build_wheel(config_settings=None):
    needs = hatchling.build.get_requires_for_build_wheel(config_settings)
    return needs + tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"] * WANTED


class MachineCode(BuildHookInterface):
    """A hook of hatchling."""

    PLUGIN_NAME = "custom"

    def initialize(self, version, build_data):
        if version == "editable" or not WANTED:
            return
        self._folder = tempfile.TemporaryDirectory(prefix="archsim-")
        folder = Path(self._folder.name)
        known = folder / f"archsim-{self.metadata.version}.dist-info"  # results name the version that is installed
        known.mkdir()
        (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: archsim\nVersion: {self.metadata.version}\n")
        beside = {"PYTHONPATH": os.pathsep.join([self.root, str(folder)]), "NUMBA_CACHE_DIR": str(folder)}
        command = [sys.executable, "-m", "archsim", "compile", "--into", str(folder / "machine_code")]
        done = subprocess.run(command, cwd=folder, env={**os.environ, **beside}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"archsim compile: {done.stderr[-2000:]}")
        build_data["force_include"][str(folder / "machine_code")] = "archsim/machine_code"

    def finalize(self, version, build_data, artifact_path):
        if hasattr(self, "_folder"):
            self._folder.cleanup()
