"""Sweeps on a Dask cluster: the same bytes as here; a worker that dies loses nothing; nobody there is said in time."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.tiny import SLOW_POLICY, archsim, tiny, tiny_file

pytest.importorskip("distributed", reason="needs Dask: pip install 'archsim[cluster]'")

from archsim.runs.sweep import Unwatched, sweep

ROOT = Path(__file__).resolve().parents[2]
BYTES = ("results.csv", "results.parquet", "dies.csv", "links.csv")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class Cluster:
    """A scheduler and workers, each a process of its own."""

    def __init__(self, folder: Path, workers: int):
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self._folder, self._env = folder, os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        self.scheduler = self._start("scheduler", "--host", self.address, "--no-dashboard")
        self.workers = [self._start("worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard") for _ in range(workers)]

    def _start(self, role: str, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_" + role, *arguments],
            cwd=self._folder, env=self._env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def end(self):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path, workers=2)
    yield made
    made.end()


class Watching(Unwatched):
    """Calls ``do`` when the first run has finished."""

    def __init__(self, do):
        self._do, self.finished_runs = do, 0

    def finished(self, run, record):
        self.finished_runs += 1
        if self.finished_runs == 1:
            self._do()

    def failed(self, run, failure):
        raise AssertionError(failure.message)


def test_a_cluster_gives_the_same_bytes(tmp_path, cluster):
    experiment = tiny(tmp_path)
    sweep(experiment, tmp_path / "here", jobs=1)
    sweep(experiment, tmp_path / "there", scheduler=cluster.address)
    for name in BYTES:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name


def test_a_worker_that_dies_in_a_run_loses_nothing(tmp_path, cluster, monkeypatch):
    (tmp_path / "slow.py").write_text(SLOW_POLICY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    experiment = tiny(tmp_path, "policies=[ep, {name: slow, allocation: slow:slowly}]")
    sweep(experiment, tmp_path / "here", jobs=1)

    def kill_one():
        # The other runs take tens of milliseconds each: one of them is under way.
        threading.Timer(0.05, lambda: cluster.workers[0].send_signal(signal.SIGKILL)).start()

    watching = Watching(kill_one)
    sweep(experiment, tmp_path / "there", watcher=watching, scheduler=cluster.address)
    cluster.workers[0].wait(timeout=10)
    assert watching.finished_runs == experiment.runs and cluster.workers[0].returncode == -signal.SIGKILL
    for name in BYTES:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name


def test_nobody_there_is_said_within_ten_seconds(tmp_path):
    begin = time.monotonic()
    address = f"tcp://127.0.0.1:{free_port()}"
    done = archsim(tmp_path, "sweep", tiny_file(tmp_path), "--scheduler", address)
    assert done.returncode == 2 and f"--scheduler {address}: no Dask scheduler answers there" in done.stderr
    # of which archsim starts, and waits 6 s
    assert "Traceback" not in done.stderr and time.monotonic() - begin < 10 + 5
