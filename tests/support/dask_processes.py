"""A Dask cluster on this machine, in processes of its own."""

import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Cluster:
    """A scheduler and workers, each a process of its own."""

    def __init__(self, folder: Path, workers: int):
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self._folder, self._env = (
            folder,
            os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        self.scheduler = self._start("scheduler", "--host", self.address, "--no-dashboard")
        self.workers = [self._worker() for _ in range(workers)]

    def replace(self, number: int) -> None:
        """Kill a worker and start another in its place."""
        self.workers[number].kill()
        self.workers[number].wait()
        self.workers[number] = self._worker()

    def _worker(self) -> subprocess.Popen:
        return self._start("worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard")

    def _start(self, role: str, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_" + role, *arguments],
            cwd=self._folder, env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def end(self):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()
