"""``archsim compile``: compile the kernels once, so that no later command waits for them. Installations do it, too."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from archsim.base.code_digest import KERNELS, machine_code, shipped_code
from archsim.base.errors import ArchsimError
from archsim.cli.arguments import OK, add_jobs

SMALL = (
    "workload.layers=2", "workload.batch=[25]", "workload.decode_steps=2", "models=[deepseek-v3]", "systems=[dojo]",
)  # fmt: skip
_RATES = [f"{each} TB/s" for each in range(1, 9)]  # 64 machines of one design: as many as are walked in one call
_SCHEDULERS = "sweep={grid: {scheduler.name: [vllm_v1, sglang, trtllm]}}"
# What is compiled → a function of `archsim.api` that needs it, its experiment and what changes there, so that it takes
# no time once all is compiled. No page is written: installations compile, and what draws pages imports much. Kernels of
# the same name are compiled by the first function that needs them.
RUNS: dict[str, Sequence[str]] = {
    "shared links (event engine)": ("sweep", "dojo", "assumptions=[physical]", *SMALL),
    "reserved links (event engine)": ("sweep", "dojo", "assumptions=[published]", *SMALL),
    "both (analytical engine)": ("sweep", "dojo", "engine=analytical", *SMALL),
    "searches": (
        "explore", "explore_dojo", "workload.batch=25", "workload.layers=1", "policies=[base]",
        "explore.event_runs=0", "explore.analytical_runs=1",
        f"sweep={{grid: {{d2d.bandwidth: {_RATES}, hbm.bandwidth: {_RATES}}}}}",
    ),
    "serving": ("serve_plan", "serve_h200", "requests.count=20", _SCHEDULERS),
}  # fmt: skip
# Nothing is sampled: that needs SciPy, which an installation that compiles does not have.
ASKS = (
    "import sys; from archsim import api; verb, file, *changes = sys.argv[1:]; "
    "getattr(api, verb)(file, overrides=changes, jobs=1, **{'samples': 0} if verb == 'serve_plan' else {})"
)


def add_compile(parser: argparse.ArgumentParser) -> None:
    add_jobs(parser, "How many processes to use", cluster=False)
    parser.add_argument(
        "--into", metavar="FOLDER", type=Path,
        help="Compile for every processor of this kind, into a folder that a wheel takes along as "
        "archsim/machine_code. It is loaded where the sources, Python and numba are the same",
    )  # fmt: skip


def run_compile(args: argparse.Namespace) -> int:
    """Compile, and print what each part took. Raises ArchsimError where a part fails."""
    from archsim.base.host import available_cores
    from archsim.cli.heartbeat import Heard, begins

    begin, args.result = time.monotonic(), {}
    beside: Mapping[str, str] = {}
    jobs = min(args.jobs or available_cores(), len(RUNS))
    if isinstance(sys.stderr, Heard) and args.into is None:
        sys.stderr.expected, sys.stderr.processes = [each for each in KERNELS if each != "others"], jobs
    with TemporaryDirectory(prefix="archsim-") as own, ThreadPoolExecutor(jobs) as pool:
        folder = Path(own)
        if args.into is not None:
            from archsim.base.compiled import for_shipping, ship  # takes a second to load

            beside = for_shipping(folder / "kept")
        begins(f"compiling kernels in {len(RUNS)} parts")
        for done, (what, took_s) in enumerate(pool.map(lambda what: _compile(what, folder, beside), RUNS), 1):
            begins(f"compiling kernels, {done} of {len(RUNS)} parts done")
            args.result[what] = {"seconds": took_s}
            print(f"{what:<30} {took_s:5.0f} s", flush=True)
        if args.into is not None:
            functions, where = ship(folder / "kept", args.into), str(args.into)
        else:
            functions, where = machine_code().functions, os.environ.get("NUMBA_CACHE_DIR", "the caches of numba")
        if args.into is None and (shipped := shipped_code()) is not None:
            print(f"{sum(1 for _ in shipped.rglob('*.nbc'))} functions were compiled at the installation, in {shipped}")
    print(f"{functions} functions in {where}, {time.monotonic() - begin:.0f} s")
    return OK


def _compile(what: str, folder: Path, beside: Mapping[str, str]) -> tuple[str, float]:
    """Call a function of `RUNS` in a new process with an empty cache. ``beside``: in its environment."""
    own = folder / str(len(what)) / what.split()[0]
    command = [sys.executable, "-c", ASKS, *RUNS[what]]
    begin = time.monotonic()
    done = subprocess.run(
        command, env={**os.environ, "ARCHSIM_CACHE": str(own / "cache"), **beside}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != OK:
        name, file, *changes = RUNS[what]
        asked = f"{name}({file!r}, overrides={changes})"
        raise ArchsimError(f"{what}: archsim.{asked} ended with {done.returncode}: {done.stderr[-500:]}")
    return what, time.monotonic() - begin
