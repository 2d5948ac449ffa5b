"""Sweeps: the same bytes whatever the order, the jobs and the history; nothing stale, nothing lost."""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.examples import sampled
from support.processes import kill
from support.tiny import SLOW_POLICY, TINY, archsim, start, tiny, tiny_file
from support.waiting import wait_for
from support.watching import Heard

import archsim as ar
from archsim.base.errors import ArchsimError, CapacityError, TraceError
from archsim.base.files import read_sealed, sole_writer, write_draft, write_sealed
from archsim.cli.main import main
from archsim.engine.fabrics import build_fabric, extent_of
from archsim.engine.loop import Replay
from archsim.runs import run_queue
from archsim.runs import simulator as simulator_module
from archsim.runs.columns import RUN_COLUMNS
from archsim.runs.plan import plan_of, prepare
from archsim.runs.run import ROW
from archsim.runs.run_cost import cost_of, cost_sentence, refuse_unheld
from archsim.runs.run_queue import RunQueue
from archsim.runs.simulator import Remembered, Simulator
from archsim.runs.store import RecordStore
from archsim.runs.sweep import Unwatched, sweep
from archsim.specs.assumptions import ASSUMPTIONS, ONLY_OF_GROUPS
from archsim.specs.library import load_assumptions, load_experiment, load_model, load_system
from archsim.specs.workload import SyntheticSpec
from archsim.traffic import demand_cache, generative
from archsim.traffic import trace as trace_module
from archsim.traffic.generative import GenerativeTraffic
from archsim.traffic.subjects import SeveralSubjects, SubjectTraffic, traffic_of
from archsim.traffic.synthetic import SyntheticTraffic
from archsim.traffic.traffic_presets import generated_traffic, load_traffic

SLOW = "policies=[ep, {name: slow, allocation: slow:slowly}, allo]"


def expanded(experiment):
    return prepare(experiment).runs


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a report that must not depend on how it was made."""
    return {name: (folder / name).read_bytes() for name in ("results.csv", "results.parquet", "dies.csv", "links.csv")}


def test_order_of_the_experiment_changes_no_run(tmp_path):
    one = sweep(tiny(tmp_path), tmp_path / "a", jobs=1)
    two = sweep(tiny(tmp_path, "policies=[allo+pred, ep, base]", "workload.batch=[40, 12]"), tmp_path / "b", jobs=1)
    rows = {row["run"]: row for row in one.runs.rows}
    assert len(two.runs) == 12 and all(rows[row["run"]] == row for row in two.runs.rows)


def test_a_run_alone_is_the_run_in_the_sweep(tmp_path):
    """Runs that share a demand that holds more than they need come out as with a demand of their own."""
    experiment = tiny(tmp_path, "policies=[ep, pred]", "assumptions=[published, {set: published, weights: all}]")
    swept = {row["run"]: row for row in sweep(experiment, tmp_path / "out", jobs=1).runs.rows}
    for policy in ("ep", "pred"):
        for system in ("small", "square"):
            for assumptions in ("published", "published+weights=all"):
                named = {"policy": policy, "system": system, "assumptions": assumptions}
                row = dict(ar.run(experiment, **named, batch=40).runs.rows[0])
                speedups = ("speedup_vs_base", "speedup_vs_ep")
                assert {name for name, _ in row.items() - swept[row["run"]].items()} <= set(speedups)


def test_only_what_changed_is_run(tmp_path):
    small = "workload.batch=12"
    sweep(tiny(tmp_path, small), tmp_path / "out", jobs=1)
    changed, heard = tiny(tmp_path, small, "systems.1.d2d.bandwidth=2TB/s"), Heard()
    sweep(changed, tmp_path / "out", jobs=1, watcher=heard)
    assert len(heard.ran) == heard.found == changed.runs // 2
    sweep(changed, tmp_path / "fresh", jobs=1)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "fresh")


DAMAGE = {
    "truncated": lambda file: file.write_text(file.read_text()[: len(file.read_text()) // 2]),
    "empty": lambda file: file.write_text(""),
    "edited": lambda file: file.write_text(file.read_text().replace("1", "2")),
    "row: null": lambda file: file.write_text(re.sub('"row": {.*?}', '"row": null', file.read_text())),
    "no mapping": lambda file: write_sealed(file, "[1]"),
    "other code": lambda file: write_sealed(file, json.dumps(json.loads(read_sealed(file)) | {"code": "0" * 12})),
    "other run": lambda file: write_sealed(file, read_sealed(file).replace('"run": "', '"run": "f')),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small experiment, and the folder of its sweep."""
    folder = tmp_path_factory.mktemp("finished")
    experiment = tiny(folder, "systems=[isca26_dojo]", "policies=[base, ep]")
    sweep(experiment, folder / "out", jobs=1)
    return experiment, folder / "out"


@pytest.mark.parametrize("damage", sampled(DAMAGE, ("truncated", "other code", "other run").__contains__))
def test_what_is_damaged_or_stale_is_run_again(finished, tmp_path, damage, monkeypatch):
    monkeypatch.setattr("archsim.runs.store.WORTH_S", float("inf"))  # of the cache, which has it on a busy machine
    experiment, whole = finished
    shutil.copytree(whole, tmp_path / "out")
    before, heard = files_of(tmp_path / "out"), Heard()
    victim = sorted((tmp_path / "out" / "runs").iterdir())[1]
    DAMAGE[damage](victim)
    sweep(experiment, tmp_path / "out", jobs=1, watcher=heard)
    assert heard.ran == [victim.stem]
    assert files_of(tmp_path / "out") == before


def recorded(folder: Path, experts: int = 16, model: str = "toy") -> Path:
    """A small trace in the token-level layout: 3 requests of 2 prompt tokens and 3 decode steps, layers 1 and 2."""
    tokens = 3 * 5
    rng = np.random.default_rng(1)
    path = folder / "recorded.npz"
    np.savez(
        path,
        experts=rng.permuted(np.tile(np.arange(experts), (tokens, 2, 1)), axis=2)[:, :, :2].astype(np.int16),
        request_offsets=np.array([0, 5, 10, 15]),
        iteration=np.tile([0, 0, 1, 2, 3], 3),
        layer_ids=np.array([1, 2]),
        num_experts=experts,
        top_k=2,
        model=model,
    )
    return path


def test_recorded_trace_from_another_folder(tmp_path, monkeypatch):
    """A manifest that is run from elsewhere finds the trace and gives the same bytes."""
    (tmp_path / "data").mkdir()
    recorded(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    experiment = tiny(tmp_path, "workload.trace=data/recorded.npz", "workload.batch=[2, 7]", "policies=[base]")
    results = sweep(experiment, "reports/x", jobs=1)
    assert {row["trace"] for row in results.runs.rows} == {"data/recorded.npz"}
    assert {row["decode_steps"] for row in results.runs.rows} == {3}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    sweep(load_experiment(tmp_path / "reports" / "x" / "manifest.yaml"), "again", jobs=1)
    assert files_of(tmp_path / "reports" / "x") == files_of(tmp_path / "elsewhere" / "again")


def test_trace_of_another_model_is_refused_before_anything_runs(tmp_path):
    recorded(tmp_path, experts=24)
    with pytest.raises(TraceError, match="24"):
        sweep(tiny(tmp_path, f"workload.trace={tmp_path}/recorded.npz"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_misfits_are_all_told_before_anything_runs(tmp_path):
    experiment = tiny(
        tmp_path,
        "systems.0.hbm.capacity=1 MB",
        "systems.1.hbm.capacity=2 MB",
        "assumptions=[published, {set: published, capacity: finite}]",
    )
    with pytest.raises(CapacityError) as error:
        sweep(experiment, tmp_path / "out")
    lines = str(error.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["toy does not fit on small", "toy does not fit on square"]
    assert not (tmp_path / "out").exists()


FIELDS = [
    "systems.0.name=other",
    "systems.0.mesh.x=4",
    "systems.0.hbm.latency=301ns",
    "models.0.hidden=513",
    "policies=[{preset: base, name: base, allocation: {offset: 8}}]",
    "assumptions={set: published, hops: all}",
    "workload.batch=[13]",
    "workload.decode_steps=5",
    "workload.seed=1",
    "workload.trace.synthetic.stickiness=0.2",
]


@pytest.mark.parametrize("override", FIELDS)
def test_key_names_everything_that_a_run_is_made_of(tmp_path, override):
    assert expanded(tiny(tmp_path))[0].key != expanded(tiny(tmp_path, override))[0].key


def test_key_names_nothing_else(tmp_path):
    changed = tiny(tmp_path, "name=renamed", "systems.1.mesh.x=4", "policies=[base]", "workload.batch=[12, 77]")
    assert expanded(changed)[0].key == expanded(tiny(tmp_path))[0].key
    assert len({run.key for run in expanded(tiny(tmp_path))}) == tiny(tmp_path).runs


BOTH_KINDS = "assumptions=[published, {set: published, contention: shared}]"


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_schedule_gives_every_run_once(tmp_path, workers):
    experiment = tiny(tmp_path, BOTH_KINDS)
    schedule, given, turn = RunQueue(expanded(experiment)), [], 0
    while task := schedule.next(turn % workers):
        schedule.note_compiled(task.job)
        given.append(task.job.key)
        turn += 1
    assert sorted(given) == sorted(run.key for run in expanded(experiment))
    assert all(schedule.next(worker) is None for worker in range(workers))


def test_workers_compile_different_kernels_on_different_demands(tmp_path):
    schedule = RunQueue(expanded(tiny(tmp_path, BOTH_KINDS)))
    first = [schedule.next(worker) for worker in (0, 1)]
    assert all(task.cold for task in first)
    assert {task.job.assumptions.contention for task in first} == {"reserved", "shared"}
    assert len({task.job.demand.key for task in first}) == 2
    schedule.note_compiled(first[0].job)
    later = [schedule.next(0) for _ in range(4)]
    assert all(task and not task.cold for task in later)
    assert {task.job.assumptions.contention for task in later} == {first[0].job.assumptions.contention}


def test_a_worker_waits_for_a_kernel_rather_than_compile_it_again(tmp_path):
    schedule = RunQueue(expanded(tiny(tmp_path)))
    first, given = schedule.next(0), []
    waiting = threading.Thread(target=lambda: given.append(schedule.next(1)))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive() and given == []
    schedule.note_compiled(first.job)
    waiting.join(10)
    assert len(given) == 1 and not given[0].cold


def test_a_worker_stays_with_its_demand_then_helps(tmp_path):
    experiment = tiny(tmp_path)
    schedule, first = RunQueue(expanded(experiment)), None
    for worker in (0, 1):
        first = schedule.next(worker)
        schedule.note_compiled(first.job)
    rest = [schedule.next(1) for _ in range(experiment.runs - 2)]
    demands = [task.job.demand.key for task in (first, *rest)]
    changes = sum(one != two for one, two in zip(demands, demands[1:], strict=False))
    assert changes == len(set(demands)) - 1 == len({run.demand.key for run in expanded(experiment)}) - 1


def test_the_first_worker_builds_the_demands_of_all_batches_and_others_go_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(run_queue, "LEAST_TOGETHER", 0)
    runs = expanded(tiny(tmp_path, "workload.batch=[40, 12, 25]"))
    other = tiny(tmp_path, "workload.batch=[40, 12, 25]", "models.0.name=other")
    schedule = RunQueue([*runs, *expanded(other)])
    schedule.note_compiled(runs[0])
    one, two = schedule.next(0), schedule.next(1)
    assert [run.batch for run in one.together] == [run.batch for run in two.together] == [40, 25, 12]
    assert one.job.model.name != two.job.model.name
    schedule.note_gathered(two.together)
    later = [schedule.next(1) for _ in range(len(runs) - 1)]
    assert {task.job.model.name for task in later} == {two.job.model.name}
    assert not any(task.together for task in later)
    given = []
    waiting = threading.Thread(target=lambda: given.append(schedule.next(1)))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive() and given == [], "a demand that is being gathered is not built beside that"
    schedule.note_gathered(one.together)
    waiting.join(10)
    assert given[0].job.demand.batch == 25 and given[0].together == ()


def test_a_worker_goes_on_with_the_traffic_it_has_drawn():
    runs = [
        SimpleNamespace(size=size, group=(traffic, size, asked), family=None, traffic=traffic, kernel=0)
        for traffic in "ab" for size in (10, 20, 40) for asked in ("tokens", "origins")
    ]  # fmt: skip
    schedule, taken = RunQueue(runs), {0: [], 1: []}
    schedule.note_compiled(runs[0])
    for turn in range(len(runs)):
        taken[turn % 2].append(schedule.next(turn % 2).job)
    assert [{run.traffic for run in each} for each in taken.values()] == [{"a"}, {"b"}]
    assert [[run.size for run in each] for each in taken.values()] == [[40, 40, 20, 20, 10, 10]] * 2


def test_demands_of_several_batches_take_one_pass(tmp_path, monkeypatch):
    runs = expanded(tiny(tmp_path, "workload.batch=[40, 12]"))
    simulator, held, whole = Simulator(), [], simulator_module.sum_together
    alone = [simulator.record(run, details=False)["row"] for run in runs]
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demand_cache, "WORTH_S", 0)
    specs = list({run.demand.key: run.demand for run in runs}.values())

    def summed(sums):
        held.append((simulator._demand, len(simulator._outcomes)))
        whole(sums)

    monkeypatch.setattr(simulator_module, "sum_together", summed)
    simulator.gather(specs)
    assert held == [(None, 0)], "demands that no run needs any longer take memory beside the new ones"
    assert len(list(demand_cache.folder().iterdir())) == len(specs) == 2
    monkeypatch.setattr(demand_cache, "built_together", lambda *given: pytest.fail("summed again"))
    assert [Simulator().record(run, details=False)["row"] for run in runs] == alone


def test_without_a_cache_each_run_builds_its_own_demand(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file, not a folder")
    monkeypatch.setenv("ARCHSIM_CACHE", str(tmp_path / "cache"))
    runs = expanded(tiny(tmp_path, "workload.batch=[40, 12]"))
    passes, whole = [], simulator_module.sum_together
    monkeypatch.setattr(simulator_module, "sum_together", lambda sums: passes.append(len(sums)) or whole(sums))
    Simulator().gather(list({run.demand.key: run.demand for run in runs}.values()))
    assert passes == []
    Simulator().record(runs[0], details=False)
    assert passes == [1]


def test_a_worker_gets_a_run_without_a_look_at_all_that_wait():
    looks = []

    class Looked(SimpleNamespace):
        @property
        def kernel(self):
            looks.append(self.size)
            return "analytical", "reserved"

    runs = [Looked(size=number, group="one", family=None, traffic=None) for number in range(300)]
    schedule, given = RunQueue(runs), []
    while task := schedule.next(0):
        given.append(task.job)
        schedule.note_compiled(task.job)
    assert given == runs[::-1]
    assert len(looks) <= 4 * len(runs)


def test_failed_runs_are_told_and_the_others_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty.py").write_text("def wrong(step, **params):\n    raise RuntimeError('no idea')\n")
    sweep(tiny(tmp_path, "policies=[base]", "workload.batch=12"), "out", jobs=1)
    policies = "policies=[base, ep, {name: wrong, allocation: faulty:wrong}]"
    experiment, heard = tiny(tmp_path, policies, "workload.batch=12"), Heard()
    with pytest.raises(ArchsimError) as error:
        sweep(experiment, "out", jobs=1, watcher=heard)
    head, *lines = str(error.value).splitlines()
    assert head == "2 of 6 runs failed; the others are kept in out"
    assert (
        lines[0]
        == f"small toy batch 12 wrong published: faulty:wrong: RuntimeError: no idea ({tmp_path / 'faulty.py'}:2)"
    )
    assert len(heard.ran) == 2
    details = heard.failures[0].details.splitlines()
    assert details == [
        f'  File "{tmp_path / "faulty.py"}", line 2, in wrong',
        "    raise RuntimeError('no idea')",
        "RuntimeError: no idea",
    ]
    assert len((tmp_path / "out" / "results.partial.csv").read_text().splitlines()) == 1 + 4
    for name in ("results.csv", "dies.csv"):
        assert not (tmp_path / "out" / name).exists(), "is of the sweep before"


def test_a_worker_that_dies_is_a_failed_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "import os, signal\ndef dies(step, **params):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    (tmp_path / "deadly.py").write_text(source)
    policies = "policies=[base, {name: dies, allocation: deadly:dies}]"
    experiment, heard = tiny(tmp_path, policies, "workload.batch=12"), Heard()
    with pytest.raises(ArchsimError, match="2 of 4 runs failed(.|\n)*ended by signal 9"):
        sweep(experiment, "out", jobs=2, watcher=heard)
    assert len(heard.ran) == 2


def test_one_writer_at_a_time(tmp_path):
    with sole_writer(tmp_path / "out"):
        with pytest.raises(ArchsimError, match="another sweep is writing there"):
            sweep(tiny(tmp_path), tmp_path / "out")


def test_draft_is_no_file(tmp_path):
    with pytest.raises(RuntimeError), write_draft(tmp_path / "whole") as draft:
        draft.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".results.csv.draft").write_text("half")
    RecordStore(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]


def slow_folder(tmp_path: Path) -> tuple[Path, list[str]]:
    """(report's folder, arguments) of a sweep of 12 runs, a third of which take a tenth of a second each."""
    (tmp_path / "slow.py").write_text(SLOW_POLICY)
    return tmp_path / "out", ["sweep", str(tiny_file(tmp_path)), "--set", SLOW, "--out", "out", "--jobs", "2"]


def workers_of(process) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("needs /proc to find worker processes")
    return [int(pid) for pid in children.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.nightly
def test_killed_at_any_point_it_goes_on_from_there(tmp_path):
    """SIGKILL again and again: what had ended is not run again, and nothing that is there is half a file."""
    out, arguments = slow_folder(tmp_path)
    kept = 0
    for more in (1, 4):
        process = start(tmp_path, *arguments)
        wait_for(lambda: len(list(out.glob("runs/*.json"))) >= kept + more, process)  # noqa: B023
        workers = workers_of(process)
        process.kill()
        process.communicate(timeout=30)
        wait_for(lambda: not any(map(alive, workers)))  # noqa: B023
        kept = len(list(out.glob("runs/*.json")))
        assert all(json.loads(read_sealed(file))["record"]["run"] == file.stem for file in out.glob("runs/*.json"))
        # The table follows the run that has just been kept; killed in between, it is one row behind, or not there yet.
        table = out / "results.partial.csv"
        lines = table.read_text().splitlines() if table.exists() else [",".join(RUN_COLUMNS)]
        assert lines[0] == ",".join(RUN_COLUMNS) and kept - 1 <= len(lines) - 1 <= kept
        assert not (out / "index.html").exists() and not (out / "results.csv").exists()
    ended = archsim(tmp_path, *arguments)
    assert ended.returncode == 0, ended.stderr
    assert f"{kept} of 12 runs kept from before" in ended.stderr
    assert "[12/12]" in ended.stderr
    fresh = archsim(tmp_path, *arguments, "--out", "fresh")
    assert fresh.returncode == 0 and files_of(out) == files_of(tmp_path / "fresh")


def start_stuck(tmp_path: Path):
    """A sweep whose two workers are in runs that do not end, one run having ended: (process, workers)."""
    (tmp_path / "stuck.py").write_text("import time\ndef stuck(step, **params):\n    time.sleep(600)\n")
    stuck = "policies=[ep, {name: stuck, allocation: stuck:stuck}]"
    process = start(tmp_path, "sweep", tiny_file(tmp_path), "--set", stuck, "--out", "out", "--jobs", "2")
    out = tmp_path / "out"  # the row of a record follows it
    wait_for(lambda: list(out.glob("runs/*.json")) and (out / "results.partial.csv").exists(), process)
    workers = workers_of(process)
    assert len(workers) == 2 and all(map(alive, workers))
    return process, workers


@pytest.mark.nightly
def test_workers_end_with_their_parent_whatever_they_do(tmp_path):
    process, workers = start_stuck(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    wait_for(lambda: not any(map(alive, workers)))


def test_interrupted_it_keeps_what_has_ended_and_says_so(tmp_path):
    process, workers = start_stuck(tmp_path)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    out = tmp_path / "out"
    assert process.returncode == 130
    assert "Interrupted. Finished runs are kept in out" in err and "Traceback" not in err
    assert not any(map(alive, workers))
    assert list(out.glob("runs/*.json")) and (out / "results.partial.csv").exists()


@pytest.mark.nightly
def test_unguarded_script_may_sweep_beside(tmp_path):
    """The API needs no `if __name__ == "__main__"`: workers do not import the caller's script."""
    (tmp_path / "tiny.yaml").write_text(TINY)
    script = "import archsim\nprint(len(archsim.sweep(archsim.load_experiment('tiny.yaml'), 'out', jobs=2).runs))"
    (tmp_path / "script.py").write_text(script)
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "20\n", ended.stderr


def test_prepared_runs_are_in_the_order_of_the_results(tmp_path):
    names = [run.name for run in prepare(tiny(tmp_path)).runs]
    assert names[:3] == [f"small toy batch 12 {policy} published" for policy in ("base", "ep", "allo")]
    assert names[-1] == "square toy batch 40 allo+pred published"


def test_a_large_trace_is_read_once(tmp_path, monkeypatch):
    """The parent opens and digests it; a second opening looks at size and time alone, and runs take its columns from
    the cache.
    """
    from archsim.runs.simulator import Simulator
    from archsim.traffic.formats import readers

    monkeypatch.setattr(readers, "CACHED_BYTES", 0)
    path = recorded(tmp_path)
    os.utime(path, (1e9, 1e9))  # settled long ago
    experiment = tiny(tmp_path, f"workload.trace={path}", "workload.batch=2", "policies=[base]")
    first = prepare(experiment)
    (trace,) = first.traces.values()
    assert first.runs[0].demand.stored_trace == trace.stored_as != ""

    def read_again(*arguments):
        raise AssertionError("the trace is read or digested again")

    for name in ("read_npz", "_key"):
        monkeypatch.setattr(readers, name, read_again)
    again = prepare(experiment)
    assert again.runs[0].key == first.runs[0].key
    monkeypatch.setattr("archsim.traffic.formats.readers.open_trace", read_again)
    assert Simulator().record(again.runs[0])["run"] == first.runs[0].key  # as in a worker, which has no open trace
    os.utime(path, (1e9, 1e9 + 1))
    with pytest.raises(AssertionError, match="digested again"):
        prepare(experiment)


def test_a_trace_that_was_just_written_is_not_told_by_its_time(tmp_path, monkeypatch):
    from archsim.traffic.formats import readers

    monkeypatch.setattr(readers, "CACHED_BYTES", 0)
    experiment = tiny(tmp_path, f"workload.trace={recorded(tmp_path)}", "workload.batch=2", "policies=[base]")
    prepare(experiment)
    assert not (tmp_path / ".cache" / "keys").exists()


def test_results_are_lazy_and_say_what_was_not_kept(tmp_path):
    experiment = tiny(tmp_path, "workload.batch=12", "policies=[base]", "details=dropped")
    results = sweep(experiment, tmp_path / "out", jobs=1)
    assert len(results.runs) == len(results.timings) == 2 and not (tmp_path / "out" / "dies.csv").exists()
    with pytest.raises(ArchsimError, match=r"dies.csv: no such file; .* details: kept"):
        _ = results.dies
    kept = sweep(tiny(tmp_path, "workload.batch=12", "policies=[base]"), tmp_path / "out", jobs=1)
    assert len(kept.dies) == 3 * 2 + 2 * 2 and kept.runs == results.runs
    assert sorted(file.name for file in (tmp_path / "out").iterdir() if not file.name.startswith(".")) == [
        "dies.csv", "frames.json", "links.csv", "manifest.yaml", "pairs.csv", "results.csv", "results.parquet", "runs",
        "steps.parquet", "timings.csv",
    ]  # fmt: skip


def test_runs_with_their_dies_are_found_in_the_cache(tmp_path, monkeypatch):
    from archsim.runs import store

    monkeypatch.setattr(store, "WORTH_S", 0.0)
    experiment, heard = tiny(tmp_path, "workload.batch=12"), Heard()
    sweep(experiment, tmp_path / "one", jobs=1)
    sweep(experiment, tmp_path / "two", jobs=1, watcher=heard)
    assert heard.found == 10 and heard.ran == []
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    monkeypatch.setattr(store, "MOST_BYTES", 0)
    store.remove_oldest()
    assert not list(store.folder().glob("*/*.json"))


def test_the_partial_table_grows_by_a_row_a_run(tmp_path):
    """Written once a run, not again with every run: the file is as long as what has finished, whatever is still to
    come.
    """
    sizes = []

    class Sizes(Unwatched):
        def on_finished(self, run, record):
            sizes.append((tmp_path / "out" / "results.partial.csv").stat().st_size)

    sweep(tiny(tmp_path, "workload.batch=12", "systems=[isca26_dojo]"), tmp_path / "out", jobs=1, watcher=Sizes())
    assert len(sizes) == 5 and sizes == sorted(set(sizes))
    assert not (tmp_path / "out" / "results.partial.csv").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends workers on Linux alone")
def test_no_worker_stays_after_sigterm():
    """Not even one none of whose threads can run. Workers hold the pipe: it ends with the last of them."""
    code = """
import pickle, re, signal
from archsim.runs.pool import Worker
class Endless:
    def __reduce__(self):
        return re.fullmatch, ("(a+)+b", "a" * 60)  # in C, with the lock of the interpreter
workers = [Worker(), Worker()]
for worker in workers:
    worker.ask("__eq__", None)  # it has begun
    pickle.dump(("__eq__", Endless()), worker._process.stdin)
    worker._process.stdin.flush()
print(*(worker._process.pid for worker in workers), flush=True)
signal.pause()
"""
    ours, theirs = os.pipe()
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    with open(ours, "rb") as errors, parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        parent.terminate()
        ready, _, _ = select.select([errors], [], [], 30)
        for pid in workers:
            kill(pid, "archsim")
        assert len(workers) == 2 and ready and errors.read() == b""


# ---- Runs that differ only in how results are counted share a simulation, and have the results of their own.

POLICIES = "policies=[ep, allo, allo+pred, eplb]"
SENT = {"transfer_software", "dispatch", "combine"}
COUNTED = {"hops", "throughput", "overlap"}
SHARED = {
    "published": COUNTED
    | {"arbitration", "reads", "rate_updates", "dispatch", "combine", "transfer_software", "migration"},
    "physical": COUNTED | {"ties", "migration"},
    "groups": COUNTED - {"overlap"} | {"ties", "migration"},
}
BASES = {"groups": ("physical", {"execution": "expert_parallel", "transfer_software": "free"})}  # others: shipped
OF_PREDICTORS = {"heatmap_update", "prediction_rows", "copy_writes", "tables"}


def changed(name):
    """The set, and every set in which one field has another of its values that any system can run."""
    shipped, changes = BASES.get(name, (name, {}))
    base = load_assumptions(shipped, **changes).model_copy(update={"set": name})
    skipped = {"execution", "gemm", "memory"} | (set() if name == "published" else {"arbitration", "reads"} | SENT)
    others = [
        base.model_copy(update={"set": f"{field}-{value}", field: value})
        for field, values in ASSUMPTIONS.items()
        for value in values
        if field not in skipped and value not in (getattr(base, field), *ONLY_OF_GROUPS)
    ]
    return base, others


@pytest.fixture(scope="module", params=sampled(sorted(SHARED), lambda name: name == "physical"))
def made(request, tmp_path_factory):
    """The name of a set, and its runs with those of all changed sets."""
    base, others = changed(request.param)
    experiment = tiny(tmp_path_factory.mktemp("shared"), POLICIES).model_copy(update={"assumptions": (base, *others)})
    return request.param, prepare(experiment)


def test_only_fields_that_count_are_shared(made):
    name, prepared = made
    own = {(run.policy.name, run.batch, run.system.name): run for run in prepared.runs if run.assumptions.set == name}
    alike: dict[str, set[str]] = {}
    for run in prepared.runs:
        if run.simulation == own[run.policy.name, run.batch, run.system.name].simulation:
            alike.setdefault(run.policy.name, set()).add(run.assumptions.set.partition("-")[0])
    expected = SHARED[name] | {name}
    plain = expected | OF_PREDICTORS
    assert alike == {"ep": plain, "allo": plain, "allo+pred": expected, "eplb": plain - {"migration"}}


def test_results_are_those_of_simulations_of_their_own(made, monkeypatch):
    _, prepared = made
    groups: dict[str, list] = {}
    for run in prepared.runs:
        groups.setdefault(run.simulation, []).append(run)
    twins = [runs[:3] for runs in groups.values() if len(runs) > 1 and runs[0].batch == prepared.runs[0].batch]
    assert len(twins) >= 3
    own = [[Simulator(prepared.traces).record(run) for run in runs] for runs in twins]
    ran = []
    run_once = Replay.run
    monkeypatch.setattr(Replay, "run", lambda replay: ran.append(1) or run_once(replay))
    simulator = Simulator(prepared.traces)
    shared = [[simulator.record(run) for run in runs] for runs in twins]
    assert [without_host(runs) for runs in shared] == [without_host(runs) for runs in own]
    assert len(ran) == len(twins)


def test_a_row_is_the_record_without_details(made):
    run = made[1].runs[0]
    whole, row = without_host([Simulator().record(run), Simulator().record(run, details=False)])
    assert all(whole[name] for name in ("dies", "links", "pairs", "steps"))
    assert row == {name: whole[name] for name in ROW}


def test_generated_traffic_is_drawn_once_for_demands_that_read_it_one_after_the_other():
    class Counted(SyntheticTraffic):
        drawn = 0

        def steps(self, requests, decode_steps):
            Counted.drawn += 1
            return super().steps(requests, decode_steps)

    model, spec = load_model("qwen3-235b-a22b"), SyntheticSpec(prompt_tokens=0, decode_steps=2)
    traffic, streams, requests = Counted(model, spec, 3), {}, np.arange(3)

    def read(most):
        pieces = Remembered(traffic, ("three",), streams, most).steps(requests, 2)
        return [(piece.iteration, piece.experts.tolist()) for piece in pieces]

    selections = 3 * 2 * 94 * 8
    first = read(selections)
    assert read(selections) == first and Counted.drawn == 1 and len(first) == 2
    streams.clear()
    assert read(selections - 1) == read(selections - 1) == first and Counted.drawn == 3 and not streams
    next(Remembered(traffic, ("three",), streams).steps(requests, 2))  # left before its end
    assert not streams
    remembered = Remembered(traffic, ("three",), streams)
    assert (remembered.digest, remembered.request_digest) == (traffic.digest, traffic.request_digest)


@pytest.mark.parametrize("model, spec", [
    ("olmoe-1b-7b", {"like": "model", "decode_steps": 2, "mix": {"law_fr": 1, "medicine": 3}}),
    ("qwen3-235b-a22b", {"like": "model", "decode_steps": 2, "prompt_tokens": 0}),
    ("qwen3-235b-a22b", {"decode_steps": 2, "prompt_tokens": 2}),
    ("subjects", {}),
])  # fmt: skip
def test_a_smaller_batch_reads_the_beginning_of_a_larger_one(model, spec, monkeypatch):
    monkeypatch.setattr(trace_module, "CHUNK_BYTES", 1 << 16)  # pieces that end elsewhere
    monkeypatch.setattr(generative, "BLOCK", 8)
    if model == "subjects":
        of_all = load_traffic("olmoe-1b-7b", load_model("olmoe-1b-7b"))
        spec = {"like": "", "mix": {"law": 1.0, "chat": 2.0}}
        several = SeveralSubjects("two", "a test", dict.fromkeys(spec["mix"], of_all), (0.5, 0.5), {})
        one, whole = (traffic_of(several, batch, 3, spec["mix"]) for batch in (21, 40))
    else:
        one, whole = (generated_traffic(load_model(model), SyntheticSpec(**spec), batch) for batch in (21, 40))
    drawn, streams = [], {}
    for kind in (GenerativeTraffic, SyntheticTraffic, SubjectTraffic):
        monkeypatch.setattr(kind, "steps", lambda self, requests, steps, own=kind.steps: (
            drawn.append(len(requests)), own(self, requests, steps))[1])  # fmt: skip

    def read(source, batch):
        pieces = list(source.steps(np.arange(batch), 2))
        columns = [np.concatenate([getattr(each, name) for each in pieces]) for name in ("request", "experts")]
        return [np.concatenate([np.full(len(each.request), each.iteration) for each in pieces]), *columns]

    expected = read(one, 21)
    read(Remembered(whole, ("same",), streams), 40)
    for _ in range(2):
        for found, own in zip(read(Remembered(one, ("same",), streams), 21), expected, strict=True):
            assert np.array_equal(found, own)
    tasks = len(spec.get("mix", "1")) if "like" in spec else 0
    assert drawn[:2] == [21, 40] and all(each < max(8 * tasks, 1) for each in drawn[2:])
    read(Remembered(one, ("another",), streams), 21)
    assert drawn[-1] == 21, "of another name"


def without_host(records):
    """Records without times of the machine that simulates."""
    return [
        {**each, "host": None, "row": {name: value for name, value in each["row"].items() if name[:5] != "host_"}}
        for each in records
    ]


# ---- What a sweep takes is told before it is spent; what this machine cannot hold is refused.


def plan(**changes):
    """A small experiment; ``engine``, ``assumptions``, ``batch``, ``side`` or ``topology`` changed."""
    side, topology = changes.pop("side", 4), changes.pop("topology", "mesh")
    workload = {"trace": {"synthetic": {"like": "model", "prompt_tokens": 0}}, "batch": [changes.pop("batch", 64)]}
    system = {"like": "dojo", "name": "square", "mesh": {"x": side, "y": side}, "topology": topology}
    own = {"name": "small", "systems": [system], "models": ["olmoe-1b-7b"], "policies": ["ep"]}
    workload |= {"context": 64, "decode_steps": 2, "layers": 2}
    return plan_of(ar.load_experiment(own | {"workload": workload} | changes))


@pytest.mark.parametrize("system", ["dojo", "dojo_x4", "h200_node", "h200_cluster", "gb200_nvl72", "tsmc_sow", "sow_x"])
def test_links_are_counted_without_the_fabric(system):
    spec = load_system(system)
    links, route_links = extent_of(spec)
    fabric = build_fabric(spec, "row_major")
    assert (links, round(route_links)) == (fabric.links, len(fabric.route_links))


def test_more_of_anything_costs_more():
    physical = {"assumptions": ["physical"]}
    least = cost_of(plan(**physical).point(0))
    for changes in ({"batch": 256}, {"side": 6}):
        more = cost_of(plan(**physical | changes).point(0))
        assert more.events > least.events and more.host_ns > least.host_ns and more.host_bytes >= least.host_bytes
    published = cost_of(plan(assumptions=["published"]).point(0))
    assert published.events < least.events and published.host_bytes < least.host_bytes
    assert cost_of(plan(engine="analytical").point(0)).events == 0


def test_events_are_those_of_a_run_within_a_factor_of_two():
    for assumptions in ("published", "physical"):
        planned = plan(assumptions=[assumptions])
        (row,) = ar.run(planned.experiment).runs.rows
        assert 0.5 < cost_of(planned.point(0)).events / row["events"] < 2


def test_what_the_machine_cannot_hold_is_refused_with_what_fits():
    point = plan(side=16, assumptions=["physical"]).point(0)
    needed = int(cost_of(point).host_bytes)
    refuse_unheld(point, lambda: needed + 1)
    refuse_unheld(point, lambda: None)
    with pytest.raises(CapacityError, match=r"square: simulating 256 dies .* [Aa]bout 15 × 15 dies would fit"):
        refuse_unheld(point, lambda: needed - 1_000_000)


@pytest.mark.parametrize(("assumptions", "side", "measured_gb"), [
    ("physical", 24, 0.72),
    ("physical", 32, 1.81),
    ("physical", 40, 4.12),
    ("published", 24, 0.46),
    ("published", 32, 1.04),
])  # fmt: skip
def test_links_of_fully_connected_dies_take_memory(assumptions, side, measured_gb):
    """Measured: ``benchmarks/big_fabrics.py --topology fully_connected``."""
    point = plan(side=side, topology="fully_connected", assumptions=[assumptions]).point(0)
    assert measured_gb / 1.34 < cost_of(point).host_bytes / 1e9 < measured_gb * 1.34


def test_a_refusal_names_all_that_it_counts():
    point = plan(side=64, topology="fully_connected", assumptions=["physical"]).point(0)
    counts = "about 24 GiB of memory, for 16.8 million links, 16.8 million pairs of dies and 16.8 million links on"
    with pytest.raises(CapacityError, match=counts):
        refuse_unheld(point, lambda: 16 * 2**30)


def test_a_sentence_says_runs_events_time_and_memory():
    said = cost_sentence(plan(batch=64), 2)
    assert said.startswith("about ")
    assert " events, which takes 1 s on 1 core when compiled and 0.3 GB of memory per process" in said


def test_check_and_dry_run_say_it(capsys, tmp_path):
    file = tmp_path / "one.yaml"
    file.write_text(
        "name: one\nsystems: [dojo]\nmodels: [olmoe-1b-7b]\npolicies: [ep]\nengine: analytical\n"
        "workload: {trace: {synthetic: {like: model}}, batch: 64, decode_steps: 2, layers: 1}\n"
        "sweep: {grid: {workload.batch: {from: 1, to: 40, linear: 40}}}\n"
    )
    for command in ("check", "sweep --dry-run"):
        assert main([*command.split(), str(file)]) == 0
        told = capsys.readouterr().out
        assert "40 points" in told and "no events, " in told and "runs, no events" not in told
