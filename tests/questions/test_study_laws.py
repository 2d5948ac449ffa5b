"""Laws of everything that keeps runs in a folder: interrupted it goes on, a second time nothing is run; so, from its
manifest and with more processes it ends with the same bytes. A study joins by one row of ``STUDIES``.
"""

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from support.examples import sampled
from support.explorations import EXPLORED
from support.papers import small
from support.tiny import TINY
from support.toy import SERVED, TOY
from support.watching import Heard

import archsim as ar
from archsim.runs import store
from archsim.runs import sweep as sweeping
from archsim.uncertainty import propagation, worlds

SWEPT = yaml.safe_load(TINY) | {"policies": ["ep", "allo+pred"]}
SWEPT["workload"] = SWEPT["workload"] | {"batch": [12], "context": 8, "seed": 3}
SWEPT["assumptions"] = ["physical", {"set": "published", "ties": "sequence", "hops": "all"}]
AXES = SWEPT | {"sweep": {"grid": {"hbm.bandwidth": ["1 TB/s", "2 TB/s"]}}, "policies": ["ep"]}
SWEPT["systems"] = SWEPT["systems"][:1]
EXPLORED = yaml.safe_load(EXPLORED) | {"policies": ["ep"], "engine": "analytical", "systems": SWEPT["systems"]}
SERVED_AXES = {"requests.arrivals.rate": ["4/s", "8/s"], "parallel.attention.tp": [4, 3], "scheduler.name": ["sglang"]}
TABLES = ("results.csv", "results.parquet", "dies.csv", "links.csv", "manifest.yaml")
SURE = ("sure.json", "sure.csv", "sure.html")


class Study(NamedTuple):
    """``start``: (given, folder, watcher, processes). ``files``: what must not depend on how it was made. ``heard``:
    what a watcher hears, keys of runs, or of worlds shares, of which the first is that of those kept.
    """

    start: Callable[[object, Path, Heard, int], object]
    given: object
    files: tuple[str, ...]
    manifest: bool = True
    heard: str = "ran"

    @property
    def first(self) -> int:
        return self.heard == "shares"


STUDIES = {
    "sweep": Study(lambda given, out, watcher, jobs: ar.sweep(given, out, jobs, watcher), SWEPT, TABLES),
    "points": Study(lambda given, out, watcher, jobs: ar.sweep(given, out, jobs, watcher), AXES, TABLES[1:2]),
    "explore": Study(
        lambda given, out, watcher, jobs: ar.explore(given, out, jobs, lambda: nullcontext(watcher)), EXPLORED,
        ("front.csv", "index.html", "manifest.yaml"),
    ),
    "serve": Study(
        lambda given, out, watcher, jobs: ar.serve_plan(given, out=out, watcher=watcher, jobs=jobs, samples=0), SERVED,
        ("results.csv", "results.parquet", "index.html", "manifest.yaml", "bench.json", "requests.csv"),
    ),
    "serve axes": Study(
        lambda given, out, watcher, jobs: ar.serve_plan(given, out=out, watcher=watcher, jobs=jobs, samples=0),
        SERVED | {"sweep": {"grid": SERVED_AXES}}, ("results.csv", "results.parquet", "index.html", "manifest.yaml"),
    ),
    "sure": Study(
        lambda given, out, watcher, jobs: ar.sure(given, 4, out, jobs=jobs, watcher=watcher),
        TOY | {"engine": "analytical"}, SURE, False, "shares",
    ),
    "serve sure": Study(
        lambda given, out, watcher, jobs: ar.serve_sure(given, 4, out=out, watcher=watcher, jobs=jobs), SERVED, SURE,
        False, "shares",
    ),
    "claims": Study(
        lambda given, out, watcher, jobs: ar.claims([given], out, jobs, watcher), small(),
        ("recorded.json", "small/index.html"), manifest=False,
    ),
}  # fmt: skip
AT_A_COMMIT = ("points", "serve")


class Whole(NamedTuple):
    study: Study
    given: object
    folder: Path
    ended: int


def files(study: Study, folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in study.files}


@contextmanager
def alone(cache: Path):
    """A cache of its own; what has ended is kept in the folder of the study alone, however short it was. Few samples
    are enough.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHSIM_CACHE", str(cache))
        patch.setattr(store, "WORTH_S", float("inf"))
        patch.setattr(sweeping, "KEPT_ALONE_S", 0.0)
        patch.setattr(propagation, "KEPT_FROM_S", 0.0)
        patch.setattr(worlds, "LEAST_SAMPLES", 4)
        yield


@pytest.fixture(scope="module")
def whole_of(tmp_path_factory):
    """A study that nothing has interrupted, by its name; each is made once."""
    known = {}

    def made(name: str) -> Whole:
        if name not in known:
            folder, study, watcher = tmp_path_factory.mktemp("study"), STUDIES[name], Heard(by=STUDIES[name].heard)
            given = study.given
            if name == "claims":  # takes files
                given = folder / "small.yaml"
                given.write_text(yaml.safe_dump(study.given))
            with alone(folder / "cache"):
                study.start(given, folder / "out", watcher, 1)
            known[name] = Whole(study, given, folder / "out", watcher.ended)
        return known[name]

    return made


@pytest.mark.parametrize("name", sampled(STUDIES, AT_A_COMMIT.__contains__))
def test_interrupted_it_goes_on_and_ends_with_the_same_bytes(whole_of, name, tmp_path):
    """Of what had ended nothing is run again, and until all has ended no table is there."""
    whole = whole_of(name)
    stop, again = Heard(max(1, whole.ended // 2), whole.study.heard), Heard(by=whole.study.heard)
    with alone(tmp_path / "cache"):
        with pytest.raises(KeyboardInterrupt):
            whole.study.start(whole.given, tmp_path / "out", stop, 1)
        left = {file.name for file in (tmp_path / "out").iterdir() if not file.name.startswith(".")}
        assert not left & set(whole.study.files) - {"manifest.yaml"}
        whole.study.start(whole.given, tmp_path / "out", again, 1)
    assert whole.ended > 1 and not again.failures and again.ended <= whole.ended - stop.ended + whole.study.first
    assert files(whole.study, tmp_path / "out") == files(whole.study, whole.folder)


@pytest.mark.parametrize("name", sampled(STUDIES, AT_A_COMMIT.__contains__))
def test_a_second_time_nothing_is_run_and_nothing_changes(whole_of, name, tmp_path):
    whole = whole_of(name)
    watcher, before = Heard(by=whole.study.heard), files(whole.study, whole.folder)
    with alone(tmp_path / "cache"):
        whole.study.start(whole.given, whole.folder, watcher, 1)
    assert watcher.ended <= whole.study.first and files(whole.study, whole.folder) == before


@pytest.mark.parametrize("name", sampled(
    [name for name, study in STUDIES.items() if study.manifest], AT_A_COMMIT.__contains__,
))  # fmt: skip
def test_a_manifest_gives_the_same_bytes(whole_of, name, tmp_path):
    whole = whole_of(name)
    with alone(tmp_path / "cache"):
        whole.study.start(whole.folder / "manifest.yaml", tmp_path / "out", Heard(by=whole.study.heard), 1)
    assert files(whole.study, tmp_path / "out") == files(whole.study, whole.folder)


@pytest.mark.parametrize("name", sampled(STUDIES, AT_A_COMMIT.__contains__))
def test_processes_change_nothing(whole_of, name, tmp_path):
    whole = whole_of(name)
    with alone(tmp_path / "cache"):
        whole.study.start(whole.given, tmp_path / "out", Heard(by=whole.study.heard), 2)
    assert files(whole.study, tmp_path / "out") == files(whole.study, whole.folder)
