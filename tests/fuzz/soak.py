"""Disturbs sweeps and compares what they end with to undisturbed ones, to the byte.

``python tests/fuzz/soak.py --kills 200 --flips 100 --seed 1`` kills commands and Dask's workers at random times, flips
bits of files that they keep, and lets disks be full; after every few disturbances a command runs to its end. With
``--seconds 7200`` it goes on for two hours. Prints a table; ends with status 1 if a file differs or a command fails,
and says which.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

MOST_ALIVE_S = 5.0  # a command is killed before; all end in less without a disturbance, once compiled
FULL_AT_BYTES = (0, 4096, 1 << 16)  # of a file that grows no more, as on a full disk
TIMED = "timings.csv"  # says how long a run took
CLUSTER = "<address>"  # in a command: that of the Dask cluster
WORKS = {  # name → command, overrides
    "runs": ("sweep tiny.yaml --jobs 2",),
    "own policy": ("sweep tiny.yaml --jobs 2", "policies=[ep, {name: slow, allocation: 'slow:slowly'}, allo]"),
    "one process": ("sweep tiny.yaml --jobs 1", "workload.batch=[64, 96]", "assumptions=physical"),
    "recorded": ("sweep tiny.yaml --jobs 2", "workload={trace: trace.npz, batch: [4, 6], decode_steps: 3}"),
    "points": ("sweep points.yaml --jobs 2",),
    "Dask": (f"sweep tiny.yaml --scheduler {CLUSTER}", "workload.batch=[16, 24, 48]"),
    "serve": ("serve serve.yaml",),
}
SERVED = """\
system: h200_node
model: qwen3-30b-a3b
parallel: {attention: {tp: 4}}
requests: {arrivals: {rate: 6/s}, input: {mean: 200, cv: 0.5}, output: {fixed: 20}, count: 24}
sweep: {grid: {requests.arrivals.rate: [4/s, 8/s, 16/s], scheduler.name: [sglang, vllm_v1]}}
"""


def main() -> int:
    """Disturb, let end, compare; print."""
    args = _arguments()
    rng, counts, faults, began_s = random.Random(args.seed), Counter(), [], time.monotonic()
    with suppress(KeyboardInterrupt), TemporaryDirectory() as name, closing(Soaked(Path(name))) as soaked:
        while (
            counts["killed"] < args.kills or counts["flipped"] < args.flips or time.monotonic() < began_s + args.seconds
        ):
            work = rng.choice(list(WORKS))
            for _ in range(rng.randrange(1, 5)):
                soaked.disturbed(work, rng, counts)
            faults += soaked.ended(work)
            counts["ended"] += 1
            if rng.random() < 0.5:
                soaked.forget(work)
    print(" ".join(f"{key} {value:,};" for key, value in sorted(counts.items())), f"{len(faults)} faults")
    print(*faults, sep="\n")
    return 1 if faults else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python tests/fuzz/soak.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--flips", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=0.0, help="at least")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Soaked:
    """Works in a folder of their own, with caches of their own; what each ends with undisturbed is known first."""

    def __init__(self, folder: Path):
        from support.dask_processes import Cluster
        from support.tiny import SLOW_POLICY, TINY
        from support.trace_files import save_npz, toy_requests

        self._folder = folder
        (folder / "tiny.yaml").write_text(TINY)
        (folder / "slow.py").write_text(SLOW_POLICY)
        axes = "sweep: {grid: {system.d2d.bandwidth: [1 TB/s, 2 TB/s, 3 TB/s], workload.batch: [8, 16]}}\n"
        (folder / "points.yaml").write_text(TINY.replace("name: tiny", "name: points") + axes)
        (folder / "serve.yaml").write_text(SERVED)
        save_npz(folder / "trace.npz", toy_requests([f"a/{n}" for n in range(8)], 2, 16), [1, 2])
        self._good, self._cluster = {}, Cluster(folder, workers=2)
        for work in WORKS:
            process = self._run(work, "calm")
            if (said := process.communicate()[1]) and process.returncode:
                raise SystemExit(f"{work}: {said}")
            self._good[work] = self._files(self._out(work, "calm"))

    def close(self) -> None:
        self._cluster.end()

    def disturbed(self, work: str, rng: random.Random, counts: Counter) -> None:
        """Start a command and kill it, or let it meet a full disk; then flip a bit of what is kept, perhaps."""
        full = rng.random() < 0.15
        process = self._run(work, "wild", rng.choice(FULL_AT_BYTES) if full else None)
        if CLUSTER in WORKS[work][0] and rng.random() < 0.5:
            time.sleep(MOST_ALIVE_S / 2 * rng.random())
            self._cluster.replace(rng.randrange(2))
            counts["workers killed"] += 1
        try:
            process.communicate(timeout=MOST_ALIVE_S * (4 if full else rng.random()))
            counts["full disk" if full else "ended before its kill"] += 1
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            counts["killed"] += 1
        kept = [file for file in self._kept(work) if file.stat().st_size]
        if kept and rng.random() < 0.6:
            file = rng.choice(kept)
            content = bytearray(file.read_bytes())
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            file.write_bytes(content)
            counts["flipped"] += 1

    def ended(self, work: str) -> list[str]:
        """Faults of the command when nothing disturbs it: its failure, files that differ, files that are not there."""
        process = self._run(work, "wild")
        said = process.communicate()[1]
        if process.returncode:
            return [f"{work}: status {process.returncode}: {said.strip()[-500:]}"]
        good, found = self._good[work], self._files(self._out(work, "wild"))
        return [f"{work}: {name} differs" for name in sorted(good.keys() | found) if good.get(name) != found.get(name)]

    def forget(self, work: str) -> None:
        """Begin anew, but for the caches."""
        shutil.rmtree(self._out(work, "wild"))

    def _out(self, work: str, kind: str) -> Path:
        return self._folder / kind / work.replace(" ", "_")

    def _run(self, work: str, kind: str, most_bytes: int | None = None) -> subprocess.Popen:
        def limit() -> None:
            os.setsid()
            if most_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))

        command, *overrides = WORKS[work]
        changes = [word for change in overrides for word in ("--set", change)]
        words = command.replace(CLUSTER, self._cluster.address).split()
        arguments = [*words, *changes, "--out", str(self._out(work, kind))]
        cache = {"ARCHSIM_CACHE": str(self._folder / "cache"), "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, "-m", "archsim", *arguments],
            cwd=self._folder, env=os.environ | cache, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            preexec_fn=limit,
        )  # fmt: skip

    def _kept(self, work: str) -> list[Path]:
        """Files that are read again: of the report, and of the caches."""
        folders = self._out(work, "wild"), self._folder / "cache"
        return sorted(file for folder in folders for file in folder.rglob("*") if file.is_file())

    @staticmethod
    def _files(folder: Path) -> dict[str, bytes]:
        """Name → content of what a report shows."""
        return {file.name: file.read_bytes() for file in folder.glob("[!.]*") if file.is_file() and file.name != TIMED}


if __name__ == "__main__":
    sys.exit(main())
