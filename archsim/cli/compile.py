"""``archsim compile``: compile the kernels once, as after an installation, so that no later command waits for them."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from archsim.base.code_digest import functions_compiled
from archsim.base.errors import ArchsimError
from archsim.cli.arguments import OK, add_jobs

SMALL = (
    "workload.layers=1", "workload.batch=[25]", "workload.decode_steps=1", "models=[deepseek-v3]", "systems=[dojo]",
)  # fmt: skip
# What is compiled → a command that runs it, on an experiment that takes no time once it is. Kernels of the same name
# are compiled by the first command that needs them.
RUNS: dict[str, Sequence[str]] = {
    "shared links (event engine)": ("sweep", "dojo", "assumptions=[physical]", *SMALL),
    "reserved links (event engine)": ("sweep", "dojo", "assumptions=[published]", *SMALL),
    "both (analytical engine)": ("sweep", "dojo", "engine=analytical", *SMALL),
    "serving": ("serve", "serve_h200", "requests.count=20"),
}


def add_compile(parser: argparse.ArgumentParser) -> None:
    add_jobs(parser, "processes")


def run_compile(args: argparse.Namespace) -> int:
    """Compile, and print what each part took. Raises ArchsimError where a part fails."""
    from archsim.base.host import available_cores

    begin, args.result = time.monotonic(), {}
    with TemporaryDirectory(prefix="archsim-") as folder, ThreadPoolExecutor(args.jobs or available_cores()) as pool:
        for what, took_s in pool.map(lambda what: _compile(what, Path(folder)), RUNS):
            args.result[what] = {"seconds": took_s}
            print(f"{what:<30} {took_s:5.0f} s", flush=True)
    where = os.environ.get("NUMBA_CACHE_DIR", "the caches of numba")
    print(f"{functions_compiled()} functions in {where}, {time.monotonic() - begin:.0f} s")
    return OK


def _compile(what: str, folder: Path) -> tuple[str, float]:
    """Run a command of `RUNS`, in a process of its own and with nothing kept that it could take instead."""
    verb, file, *changes = RUNS[what]
    own = folder / str(len(what)) / what.split()[0]
    sets = [word for change in changes for word in ("--set", change)]
    jobs = ["--jobs", "1"] if verb == "sweep" else []
    command = [sys.executable, "-m", "archsim", verb, file, *sets, *jobs, "--out", str(own / "out")]
    begin = time.monotonic()
    done = subprocess.run(
        command, env={**os.environ, "ARCHSIM_CACHE": str(own / "cache")}, capture_output=True, text=True, check=False
    )
    if done.returncode != OK:
        asked = " ".join(command[3:])
        raise ArchsimError(f"{what}: `archsim {asked}` ended with {done.returncode}: {done.stderr[-500:]}")
    return what, time.monotonic() - begin
