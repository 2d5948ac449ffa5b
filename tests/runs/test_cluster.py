"""Work on a Dask cluster: the same bytes as here; a worker that dies loses nothing; nobody there is said in time."""

import json
import os
import pickle
import signal
import threading
from collections import deque
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import yaml
from support.dask_processes import Cluster, free_port
from support.examples import sampled
from support.tiny import SLOW_POLICY, archsim, tiny, tiny_file
from support.waiting import wait_for

pytest.importorskip("distributed", reason="needs Dask: pip install 'archsim[cluster]'")

import archsim as ar
from archsim.api import EXAMPLE
from archsim.cli.main import main
from archsim.runs import executor
from archsim.runs.cluster import DASK_MOST_TOGETHER, PATIENCE_S, TURNS, batches, simulate_on_cluster
from archsim.runs.pool import Failure
from archsim.runs.sweep import Unwatched, sweep

BYTES = ("results.csv", "results.parquet", "dies.csv", "links.csv")


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path, workers=2)
    yield made
    made.end()


class Watching(Unwatched):
    """Calls ``do`` when the first run has finished."""

    def __init__(self, do):
        self._do, self.finished_runs, self.kept_runs = do, 0, 0

    def kept(self, runs):
        self.kept_runs += runs  # those that took long on a busy machine are in the cache

    def on_finished(self, run, record):
        self.finished_runs += 1
        if self.finished_runs == 1:
            self._do()

    def on_failed(self, run, failure):
        raise AssertionError(failure.message)


@pytest.mark.nightly
def test_a_cluster_gives_the_same_bytes(tmp_path, cluster):
    experiment = tiny(tmp_path)
    sweep(experiment, tmp_path / "here", jobs=1)
    with ar.on_cluster(cluster.address):
        sweep(experiment, tmp_path / "there")
    for name in BYTES:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name


@pytest.mark.nightly
def test_a_cluster_gives_the_same_worlds(tmp_path, cluster):
    experiment = tiny(tmp_path, "policies=[ep]", "engine=analytical")
    for name, address in (("here", None), ("there", cluster.address)):
        with ar.on_cluster(address):
            ar.sure(experiment, 16, tmp_path / name, jobs=1)
    for name in ("sure.json", "sure.csv", "sure.html"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name


SERVED = {
    "system": "h200_node", "model": "llama-3.1-8b", "precision": {"products": "bf16"},
    "requests": {"arrivals": {"rate": "4/s"}, "input": {"fixed": 64}, "output": {"fixed": 8}, "count": 20},
    "slo": {"ttft": "1 s"},
}  # fmt: skip
SEARCHED = {"devices": 2, "max_num_seqs": [8], "max_num_batched_tokens": [512]}
FILES = {
    "tiny": dict(EXAMPLE), "blocks": {**EXAMPLE, "policies": ["base", "allo", "allo+pred"]},
    "designs": {**EXAMPLE, "name": "designs", "engine": "analytical",
                "sweep": {"grid": {"system.d2d.bandwidth": ["100 GB/s", "200 GB/s"]}},
                "explore": {"objectives": ["throughput", "area"]}},
    "die4": EXAMPLE["systems"][0], "twice": {**EXAMPLE["systems"][0], "name": "twice", "hbm": {
        "bandwidth": "2 TB/s", "capacity": "80 GB"}},
    "toy": EXAMPLE["models"][0], "searched": SERVED | {"search": SEARCHED},
    "axes": SERVED | {"sweep": {"grid": {"requests.arrivals.rate": ["4/s", "8/s"]}}},
}  # fmt: skip
# Command → files of its folder that are the same wherever it is done.
HEAVY = {
    "why --bound tiny.yaml": "index.html optimum.csv",
    "compare die4.yaml twice.yaml --model toy.yaml --policy ep --batch 64 --samples 16": "index.html frontier.csv",
    "compare base ep --in tiny.yaml": "index.html",
    "why --ablate tiny.yaml": "index.html ablation.csv",
    "sweep --search designs.yaml": "index.html front.csv",
    "serve --search searched.yaml": "index.html search.csv",
    "serve axes.yaml --samples 16": "index.html results.csv sure.csv",
    "recommend llama-3.1-8b --on h200:2 --tpot 10ms --engine vllm": "serve.yaml configurations.csv start.sh",
    "compare axes.yaml --samples 16": "index.html sure.csv",
    "compare --without prediction --in blocks.yaml": "",
}


@pytest.fixture(scope="module")
def here():
    """The address of a cluster of two threads of this process."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, protocol="tcp", dashboard_address=None
    ) as made:
        yield made.scheduler_address


def test_work_is_sent_to_a_worker_once_and_not_with_each_task(monkeypatch, here):
    large, sizes, done = bytes(10**6), [], executor.cluster.simulate_on_cluster

    def counted(jobs, *given):
        sizes.extend(len(pickle.dumps(job)) for job in jobs)
        return done(jobs, *given)

    monkeypatch.setattr(executor.cluster, "simulate_on_cluster", counted)
    with ar.on_cluster(here):
        for factor in (1, 2):
            found = dict(executor.do_all(lambda task, factor=factor: factor * task * len(large), [1, 2, 3], 1))
            assert found == {task: factor * task * 10**6 for task in (1, 2, 3)}
    assert len(sizes) == 6 and max(sizes) < 10_000


@pytest.mark.parametrize("words", sampled(HEAVY, lambda words: words == "why --bound tiny.yaml"))
def test_every_heavy_command_gives_the_same_files_on_a_cluster(tmp_path, monkeypatch, here, words, capsys):
    monkeypatch.chdir(tmp_path)
    for name, given in FILES.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(given))))
    monkeypatch.setattr("archsim.serving.answers.question.MOST_REQUESTS", 400)
    monkeypatch.setattr("archsim.serving.answers.highest_rate.SUSTAINED", 0)
    asked = []
    done = executor.cluster.simulate_on_cluster
    monkeypatch.setattr(executor.cluster, "simulate_on_cluster", lambda *given: asked.append(given) or done(*given))
    monkeypatch.setattr("archsim.runs.store.find", lambda job: None)  # else what was kept is not simulated
    printed = []
    for place, more in (("here", ["--jobs", "1"]), ("there", ["--scheduler", here])):
        assert main([*words.split(), *more, *([] if "--without" in words else ["--out", place])]) == 0
        printed.append([line for line in capsys.readouterr().out.splitlines() if place not in line])
        assert bool(asked) == (place == "there")
    assert printed[0] == printed[1]
    for name in HEAVY[words].split():
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name


@pytest.mark.nightly
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
    with ar.on_cluster(cluster.address):
        sweep(experiment, tmp_path / "there", watcher=watching)
    cluster.workers[0].wait(timeout=10)
    assert watching.finished_runs + watching.kept_runs == experiment.runs
    assert cluster.workers[0].returncode == -signal.SIGKILL
    for name in BYTES:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name


@pytest.mark.nightly
def test_a_worker_that_dies_with_results_nobody_has_read_loses_nothing(tmp_path, cluster, monkeypatch):
    experiment, killed = tiny(tmp_path), []
    sweep(experiment, tmp_path / "here", jobs=1)
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "empty"))  # of results: all are simulated again

    def kill_the_fullest():
        held = held_when_all_ended(cluster)
        pid = max(held, key=held.get)
        killed.append(held[pid])
        worker = next(each for each in cluster.workers if each.pid == pid)
        worker.kill()
        worker.wait(timeout=10)

    watching = Watching(kill_the_fullest)
    with ar.on_cluster(cluster.address):
        sweep(experiment, tmp_path / "there", watcher=watching)
    assert killed and killed[0] > 0, "the worker held a result that was still to be read"
    assert watching.finished_runs + watching.kept_runs == experiment.runs
    for name in BYTES:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes(), name


def held_when_all_ended(cluster) -> dict[int, int]:
    """Results that each worker holds, by its process, when no task is left to run."""
    from distributed import Client

    with Client(cluster.address, set_as_default=False) as client:
        wait_for(lambda: not any(client.processing().values()))
        pids = client.run(os.getpid)
        return {pids[address]: len(keys) for address, keys in client.has_what().items()}


def test_nobody_there_is_said_within_ten_seconds(tmp_path, monkeypatch):
    assert PATIENCE_S < 10
    monkeypatch.setattr("archsim.runs.cluster.PATIENCE_S", 0.5)
    address = f"tcp://127.0.0.1:{free_port()}"
    done = archsim(tmp_path, "sweep", tiny_file(tmp_path), "--scheduler", address)
    assert done.returncode == 2 and f"--scheduler {address}: no Dask scheduler answers there" in done.stderr
    assert "Traceback" not in done.stderr


def runs_of(*demands):
    """A run for each of these demands."""
    runs = enumerate(demands)
    return [SimpleNamespace(group=key, name="run", key=str(at), code="") for at, key in runs]


@pytest.mark.parametrize("threads", [1, 3, 500])
def test_batches_share_a_demand_and_leave_turns_for_every_thread(threads):
    runs = runs_of(*"abacabbbbb" * 100)
    found = batches(runs, threads)
    assert sorted(int(run.key) for alike in found for batch in alike for run in batch) == list(range(len(runs)))
    assert all(len({run.group for batch in alike for run in batch}) == 1 for alike in found)
    assert len({alike[0][0].group for alike in found}) == len(found) == 3
    most = max(len(batch) for alike in found for batch in alike)
    assert most == max(1, min(DASK_MOST_TOGETHER, len(runs) // (TURNS * threads)))
    assert all(len(alike[0]) == 1 for alike in found if len(alike) > 1)


class Future(SimpleNamespace):
    __hash__ = object.__hash__


class Deadly:
    """A cluster of one thread on which the run of key ``deadly`` ends its worker; as much of Dask as is used."""

    def __init__(self, deadly):
        self._deadly, self.sizes, self.cancelled, self.begun = deadly, [], 0, set()

    def submit(self, function, batch, *rest, **options):
        demand = batch[0].group
        assert len(batch) == 1 or demand in self.begun, "the demand is built by one worker"
        self.sizes.append(len(batch))
        return Future(result=lambda: self._run(batch))

    def _run(self, batch):
        self.begun.add(batch[0].group)
        if any(run.key == self._deadly for run in batch):
            raise OSError("worker lost")
        return [{"run": run.key} for run in batch]

    def nthreads(self):
        return {"worker": 1}

    def as_current(self):
        return nullcontext()

    def cancel(self, futures):
        self.cancelled = len(futures)

    class as_completed(deque):
        def __iter__(self):
            while self:
                yield self.popleft()

        update = deque.extend


def test_a_run_that_ends_its_workers_fails_alone(monkeypatch):
    cluster = Deadly("21")

    @contextmanager
    def client(distributed, address):
        yield cluster

    monkeypatch.setattr("archsim.runs.cluster._client", client)
    monkeypatch.setattr("archsim.runs.cluster._import_distributed", lambda: cluster)
    replies = {run.key: reply for run, reply in simulate_on_cluster(runs_of(*"a" * 64), "tcp://nobody:1")}
    failed = [key for key, reply in replies.items() if isinstance(reply, Failure)]
    assert len(replies) == 64 and failed == ["21"] and "worker lost" in replies["21"].message
    assert cluster.sizes == [1] + [8] * 7 + [7] + [1] * 8 and cluster.cancelled == 0
