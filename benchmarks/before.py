"""Processor time of shipped commands at an earlier commit over that of this checkout, in one run.

Each side runs in a process of its own, with caches of its own: once to compile, then the least of three. Both read the
experiments of this checkout as the earlier one can read them: its own files are run.
"""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measured_command import archsim

ROOT = Path(__file__).resolve().parents[1]
BEFORE = "18b5990"  # before attention kinds, the one iteration and hosts by engine
ONE = ["systems=[dojo]", "models=[deepseek-v3]", "workload.batch=[4096]", "workload.layers=4"]
COMMANDS = {
    "`published`, reserved, five policies, 4 layers": ["sweep", "configs/dojo.yaml", *ONE, "assumptions=published"],
    "`physical`, shared, five policies, 4 layers": ["sweep", "configs/dojo.yaml", *ONE, "assumptions=physical"],
    "`configs/design_space.yaml`, analytical, 45 points of it": [
        *("sweep", "configs/design_space.yaml", "sweep.sample.count=15", "systems=[{like: dojo, name: dojo-2}]"),
    ],
    "`configs/serve_h200.yaml`, 4,000 requests": ["serve", "configs/serve_h200.yaml", "requests.count=4000"],
}


def ratios(commit: str = BEFORE) -> Iterator[tuple[str, float]]:
    """(what runs, processor time before over now)."""
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "before"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", "-q", old, commit], check=True)
        try:
            for name, command in COMMANDS.items():
                before, now = (processor_s(checkout, command, Path(folder)) for checkout in (old, ROOT))
                yield f"{name}: {commit} over now", before / now
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", old], check=True)


def processor_s(checkout: Path, command: list[str], folder: Path, repeats: int = 3) -> float:
    """The least of some runs after a first one, none of which finds results of another."""
    verb, file, *changes = command
    options = [part for change in changes for part in ("--set", change)]
    options += ["--jobs", "1"] if verb == "sweep" else []
    own = {"PYTHONPATH": str(checkout), "NUMBA_CACHE_DIR": str(folder / f"numba-{checkout.name}")}
    taken = []
    for _ in range(repeats + 1):
        fresh = tempfile.mkdtemp(dir=folder)
        own["ARCHSIM_CACHE"] = f"{fresh}/cache"
        arguments = archsim(verb, file, *options, "--out", f"{fresh}/out")
        begin = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(arguments, check=True, cwd=checkout, env=os.environ | own, capture_output=True)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime)
    return min(taken[1:])
