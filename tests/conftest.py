"""Shared fixtures: where the routing data and the reference results live (they are not part of the repository)."""

import builtins
import gc
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings
from support.examples import AT_A_COMMIT
from support.processes import children, kill
from support.shared import shared_path

from archsim.runs.physical_laws import REFUSE, SWITCH

# No test depends on a timer. All examples: `pytest --hypothesis-profile nightly`.
settings.register_profile("suite", deadline=None, max_examples=AT_A_COMMIT)
settings.register_profile("nightly", deadline=None, max_examples=100)
settings.load_profile("suite")

# Tests build many small objects, of which few are in cycles: looking for those as often as usual takes a quarter of the
# time to read a calibration.
gc.set_threshold(50_000, 20, 50)

# A parent that ignores SIGINT, such as nohup, would have every process of the tests ignore it, too.
signal.signal(signal.SIGINT, signal.default_int_handler)


# Where no kernel is compiled yet, one process begins with the file that needs the most of them, and the other ones with
# files that need none, instead of all waiting for the same kernel. Then come files with few tests that take long, so
# that no process is left with them at the end, and the others by their number of tests.
BEGIN = ("engine/test_every_law.py", *(f"calibration/test_{name}.py" for name in (
    "calibration_reading", "laws", "calibration_own_node", "calibration_comm", "calibration_moe",
    "calibration_sections",
)))  # fmt: skip


LONG = (
    "questions/test_study_laws.py", "questions/test_axes_answer.py", "cli/test_forms.py", "runs/test_cluster.py",
    "evidence/test_calibration_validate.py",
    "serving/test_schedulers.py", "serving/test_never_slower.py", "runs/test_run_time_laws.py",
)  # fmt: skip


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    names = [f"{item.path.parent.name}/{item.path.name}" for item in items]
    tests, place = Counter(names), {name: at for at, name in enumerate(BEGIN + LONG)}
    keys = [(place.get(name, len(place)), -tests[name], name) for name in names]
    items[:] = [items[at] for at in sorted(range(len(items)), key=keys.__getitem__)]


def pytest_collection_finish():
    """Modules stay: they are not searched for cycles."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    path = shared_path()
    if not (path / "data").is_dir():
        pytest.skip(f"needs the shared data folder: {path}/data not found; set ARCHSIM_SHARED to where it lies")
    return path


SUM = sum
OURS = ("archsim.", "calibration.", "microarch.")


@pytest.fixture(scope="session", autouse=True)
def no_sum_of_this_python_alone():
    """Floats are added by archsim.base.sums: the sum of Python has other last digits since 3.12."""

    def whole(values, /, start=0):
        found = SUM(values, start)
        if type(found) is float and (module := sys._getframe(1).f_globals["__name__"]).startswith(OURS):
            raise AssertionError(f"{module} adds floats by Python's sum; expected that of archsim.base.sums")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builtins, "sum", whole)
        yield


@pytest.fixture
def few_samples(monkeypatch):
    """Four samples are enough for a range."""
    monkeypatch.setattr("archsim.uncertainty.worlds.LEAST_SAMPLES", 4)


@pytest.fixture
def sum_of_python(monkeypatch):
    """For what numba compiles in the process of the test, which it keeps together with that function."""
    monkeypatch.setattr(builtins, "sum", SUM)


@pytest.fixture(scope="session", autouse=True)
def no_heartbeat():
    """What a command says depends on no clock."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("archsim.cli.heartbeat.SILENT_S", float("inf"))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_disk():
    """No test waits until a disk has written: none cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Nothing is read from, or left in, the cache of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHSIM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_law_broken():
    """A record that disobeys a law of physics is an error, here and in processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SWITCH, REFUSE)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_process():
    """Commands that are not told how many processes to take run in this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
        yield


@pytest.fixture(autouse=True)
def no_process_left():
    """A command that a failed test has started ends with the test; workers end with their parent."""
    before = children(os.getpid())
    yield
    for pid in children(os.getpid()) - before:
        kill(pid, "archsim.cli.main")
