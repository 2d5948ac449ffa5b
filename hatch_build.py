"""Builds packages with hatchling, and compiles the simulator's kernels meanwhile, so that no command waits for it.

A wheel takes the machine code along. An installation that can be edited finds it in the checkout's ``.numba_cache``,
where it is also kept for the next build of the same sources: that compiles nothing. It is for every processor of a
kind, and is loaded only where Python, numba and the compiled sources are the same. Compiling takes about a minute of
two cores, and needs numba and a few other packages, which the build downloads if the environment lacks them.

``ARCHSIM_COMPILED=0`` in the environment turns this off: then the first commands compile what they need. They also do
so where compiling fails, which ends no build and is told in one line. With ``1``, a build that cannot compile fails, so
that its wheel is sure to have machine code.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import hatchling.build
from hatchling.build import *  # noqa: F403
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NOT_TO_COMPILE = ("pandas", "scipy")  # large dependencies that no compiled function needs
NEEDS = [each for each in PROJECT["dependencies"] if not each.startswith(NOT_TO_COMPILE)]
MOST_S = 1200.0  # of compiling: twenty times what it takes
# Versions of installed packages, of the environment alone: not of the one that a build has for itself (-I).
VERSIONS = """
import importlib.metadata, json
print(json.dumps({each.name.lower(): each.version for each in importlib.metadata.distributions()}))
"""


def get_requires_for_build_wheel(config_settings=None):
    return hatchling.build.get_requires_for_build_wheel(config_settings) + _needs()


def get_requires_for_build_editable(config_settings=None):
    return hatchling.build.get_requires_for_build_editable(config_settings) + _needs()


def _needs():
    """What a build needs to compile, beyond what the environment has."""
    return [] if reason_against() or is_compiled() or has_all() else NEEDS


def reason_against():
    """Why nothing is compiled; empty if it is."""
    if os.environ.get("ARCHSIM_COMPILED") == "0":
        return "ARCHSIM_COMPILED is 0"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    known = f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]
    if not known or sys.implementation.name != "cpython":
        return f"numba may not exist for {sys.implementation.name} {python}"
    return ""


def folder():
    """Where machine code of these sources is kept for builds and for commands that run in the checkout."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from archsim.base.code_digest import installed_code

    return installed_code()


def is_compiled():
    """Whether that folder has machine code, which is of the environment's numba where it has one."""
    try:
        is_for = json.loads((folder() / "is_for.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return versions().get("numba", is_for["numba"]) == is_for["numba"]


def versions():
    """Version by name of the packages in the environment that the build may install into."""
    found = subprocess.run([sys.executable, "-I", "-c", VERSIONS], capture_output=True, text=True)
    return {} if found.returncode else json.loads(found.stdout)


def has_all():
    """Whether that environment has what compiling needs."""
    from packaging.requirements import Requirement  # hatchling has it

    there, needs = versions(), [Requirement(each) for each in NEEDS]
    return all(each.name in there and each.specifier.contains(there[each.name]) for each in needs)


class MachineCode(BuildHookInterface):
    """A hook of hatchling."""

    PLUGIN_NAME = "custom"

    def initialize(self, version, build_data):
        reason = reason_against()
        if not reason:
            self._folder = tempfile.TemporaryDirectory(prefix="archsim-")
            try:
                found = self._compiled(Path(self._folder.name))
                if version != "editable":
                    build_data["force_include"][str(found)] = "archsim/machine_code"
                return
            except (OSError, RuntimeError) as error:
                reason = str(error)
        if os.environ.get("ARCHSIM_COMPILED") == "1":
            raise RuntimeError(f"ARCHSIM_COMPILED is 1, but kernels cannot be compiled: {reason}")
        print(f"archsim: kernels are compiled at first use, not now: {reason}", file=sys.stderr)

    def finalize(self, version, build_data, artifact_path):
        if hasattr(self, "_folder"):
            self._folder.cleanup()

    def _compiled(self, own):
        """The folder of machine code: as it is kept, or compiled anew. ``own``: for what is needed meanwhile."""
        kept = folder()
        if is_compiled():
            return kept
        for name, version in {"archsim": self.metadata.version, "scipy": "0"}.items():  # results name them
            known = own / f"{name}-{version}.dist-info"
            known.mkdir()
            (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        found = own / "machine_code"
        compile_into(found, own)
        beside = kept.with_name(f"{kept.name}-{os.getpid()}")
        try:
            shutil.copytree(found, beside)
            shutil.rmtree(kept, ignore_errors=True)  # of another numba
            beside.rename(kept)
        except OSError as error:  # the checkout cannot be written, or another build was faster
            shutil.rmtree(beside, ignore_errors=True)
            if not is_compiled():
                print(f"archsim: kernels are kept in no folder: {error}", file=sys.stderr)
        return found


def compile_into(found, own):
    """``archsim compile`` of the checkout, in this environment. Raises RuntimeError if it fails."""
    path = [str(ROOT), str(own)]
    if importlib.util.find_spec("numba") and os.environ.get("PYTHONPATH"):  # the build's own packages
        path.append(os.environ["PYTHONPATH"])
    beside = {"PYTHONPATH": os.pathsep.join(path), "NUMBA_CACHE_DIR": str(own / "kept")}
    with (own / "errors").open("w+", encoding="utf-8") as errors:
        command = [sys.executable, "-m", "archsim", "compile", "--into", str(found)]
        process = subprocess.Popen(command, cwd=own, env=os.environ | beside, stderr=errors, start_new_session=True)
        try:
            returned = process.wait(MOST_S)
        except BaseException as error:
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise RuntimeError(f"it takes over {MOST_S:.0f} s") from None
            raise
        errors.seek(0)
        if returned:
            raise RuntimeError((errors.read().strip() or f"it ended with {returned}").splitlines()[-1])
