"""A Dask cluster on this machine, in processes of its own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Cluster:
    """A scheduler and workers, each a process of its own. ``nanny``: that starts a killed worker again."""

    def __init__(self, folder: Path, workers: int, env: Mapping[str, str] = os.environ, nanny: bool = False):
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self._folder, self._nanny = folder, "--nanny" if nanny else "--no-nanny"
        self._env = {**env, "PYTHONPATH": os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])}
        self.scheduler = self._start("scheduler", "--host", self.address, "--no-dashboard")
        self.workers = [self._worker() for _ in range(workers)]

    def wait(self, seconds: float = 60) -> None:
        """Until all workers are there. Raises TimeoutError."""
        from distributed import Client

        with Client(self.address, timeout=seconds, set_as_default=False) as client:
            client.wait_for_workers(len(self.workers), timeout=seconds)

    def replace(self, number: int) -> None:
        """Kill a worker and start another in its place."""
        self.workers[number].kill()
        self.workers[number].wait()
        self.workers[number] = self._worker()

    def kill_under_nanny(self, number: int) -> None:
        """Kill the process that works; its nanny starts another."""
        nanny = self.workers[number].pid
        for task in Path(f"/proc/{nanny}/task").iterdir():
            for child in (task / "children").read_text().split():
                if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
                    os.kill(int(child), signal.SIGKILL)

    def _worker(self) -> subprocess.Popen:
        return self._start("worker", self.address, "--nthreads", "1", self._nanny, "--no-dashboard")

    def _start(self, role: str, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_" + role, *arguments],
            cwd=self._folder, env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def end(self):
        """Nannies end their workers when they are asked to."""
        for process in self.workers:
            process.terminate()
        for process in (*self.workers, self.scheduler):
            try:
                process.wait(timeout=5 if process is not self.scheduler else 0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
