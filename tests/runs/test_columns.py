"""The table of columns: what reads it agrees, and a user adds a column with a function and a line of YAML."""

from pathlib import Path

import pytest
from support.tiny import archsim, tiny, tiny_file

import archsim as ar
from archsim.base.causes import CAUSES, Cause
from archsim.base.errors import ArchsimError, SpecError
from archsim.base.tables import INTEGER, REAL, TEXT
from archsim.engine.state import CAUSE_OF
from archsim.runs.columns import (
    BY_NAME,
    COLUMNS,
    DIES,
    LAYOUT,
    LINKS,
    PAIRS,
    RUN_COLUMNS,
    STEP_COLUMNS,
    STEPS,
    columns_with,
    shown_columns,
)
from archsim.runs.results import Results
from archsim.runs.sweep import sweep
from archsim.specs.explore import OBJECTIVES
from microarch.blocks.global_cp import CRITICAL
from microarch.blocks.global_cp import State as decided
from microarch.blocks.request import State

ROOT = Path(__file__).resolve().parents[2]
OWN = '''\
def longest_step_ns(outcome, scenario) -> float:
    """The longest step of any layer.

    More."""
    return outcome.step_ns.max()

def experts_of_a_die(outcome, scenario) -> int:
    return scenario.model.experts // scenario.system.dies

def first_word(outcome, scenario) -> str:
    return scenario.policy.name.split("+")[0]

def fails(outcome, scenario) -> float:
    raise RuntimeError("no idea")

def decode_ns(outcome, scenario) -> float:
    return 0.0

def pairs(outcome, scenario) -> tuple:
    return ()
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with the user's module ``own_columns``, outside the package."""
    (tmp_path / "own_columns.py").write_text(OWN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "own_columns", raising=False)
    columns_with.cache_clear()
    return tmp_path


def test_every_column_says_what_it_is():
    assert len(BY_NAME) == len(COLUMNS) > 60
    without = [column.name for column in COLUMNS if not column.meaning]
    assert without == []
    assert {column.kind for column in COLUMNS} == {INTEGER, REAL, TEXT}
    assert [column.name for column in COLUMNS if column.measure is None] == ["speedup_vs_base", "speedup_vs_ep", "run"]
    assert {column.since for column in COLUMNS} == set(range(1, LAYOUT + 1))
    units = {"_ns": "ns", "_bytes": "bytes", "_mm2": "mm²", "_percent": "percent"}
    told = {
        column.name: column.unit
        for column in COLUMNS
        if column.name.endswith(tuple(units)) and column.name != "hop_bytes"
    }
    assert told == {name: units[f"_{name.rpartition('_')[2]}"] for name in told} and len(told) > 20


def test_names_of_states_are_those_of_the_blocks():
    exposed = [name for name in RUN_COLUMNS if name.startswith("exposed_")]
    assert exposed == [f"exposed_{state.name.lower()}_ns" for state in (decided.READ, decided.UPDATE, *CRITICAL)]
    assert len(CAUSE_OF) == len(State) and set(CAUSE_OF.tolist()) <= set(Cause)


def test_causes_have_one_table():
    """Columns, steps and the glossary have the causes of the table, by name."""
    names = [cause.column for cause in Cause]
    assert list(CAUSES) == list(Cause) and len({about.colour for about in CAUSES.values()}) == len(Cause)
    assert [name for name in RUN_COLUMNS if name.startswith("bound_")] == [f"bound_{name}" for name in names]
    assert [name for name in STEP_COLUMNS if name.startswith("bound_")] == [f"bound_{name}_ns" for name in names]
    glossary = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
    for cause, about in CAUSES.items():
        assert f"| **{about.label}** | `bound_{cause.column}` | {about.meaning} |" in glossary


def test_objectives_are_columns_with_units():
    assert {objective.column for objective in OBJECTIVES.values()} <= set(RUN_COLUMNS)
    assert all(BY_NAME[objective.column].unit for objective in OBJECTIVES.values())


def test_shown_columns_stand_behind_what_they_belong_to():
    names = [column.name for column in shown_columns()]
    at = names.index("decode_ns")
    assert names[at : at + 4] == ["decode_ns", "decode_ns_low", "decode_ns_high", "gemm_extrapolated"]
    assert sorted(names) == sorted(column.name for column in COLUMNS if column.header)


def test_dies_and_links_are_measured_as_declared(tmp_path):
    results = ar.run(tiny(tmp_path))
    for name, columns in (("dies", DIES), ("links", LINKS), ("pairs", PAIRS), ("steps", STEPS)):
        assert set(getattr(results, name).rows[0]) == {column.name for column in columns}


def test_a_user_adds_columns(own):
    """Two touch points: a function in a file of the user's, and its name in the experiment."""
    columns = "columns=[own_columns:longest_step_ns, own_columns:experts_of_a_die, own_columns:first_word]"
    experiment = tiny(own, columns, "workload.batch=12", "systems.0.mesh={x: 4, y: 2}")
    plain = sweep(tiny(own, "workload.batch=12", "systems.0.mesh={x: 4, y: 2}"), "plain", jobs=1)
    results = sweep(experiment, "out", jobs=2)
    assert list(results.runs.columns)[-3:] == ["longest_step_ns", "experts_of_a_die", "first_word"]
    frame = results.runs.to_pandas()
    assert (frame["longest_step_ns"] > 0).all() and (
        frame["longest_step_ns"] <= frame["prefill_ns"] + frame["decode_ns"]
    ).all()
    assert set(frame["experts_of_a_die"]) == {2, 4} and set(frame["first_word"]) == {"base", "ep", "allo", "pred"}
    assert Results.load("out") == results
    for row, same in zip(results.runs.rows, plain.runs.rows, strict=True):
        assert {name: row[name] for name in RUN_COLUMNS if name != "run"} == {
            name: same[name] for name in RUN_COLUMNS if name != "run"
        }
        assert row["run"] != same["run"], "a run that measures more is kept as another"
    column = columns_with(("own_columns:longest_step_ns",))[-1]
    assert (column.kind, column.unit, column.meaning) == (REAL, "ns", "The longest step of any layer.")


def test_a_users_column_is_in_the_manifest_and_the_command(own):
    swept = archsim(
        own, "sweep", tiny_file(own), "--set", "columns=[own_columns:longest_step_ns]", "--set", "workload.batch=12",
        "--out", "out",
    )
    assert swept.returncode == 0, swept.stderr
    again = archsim(own, "sweep", "out/manifest.yaml", "--out", "again")
    assert again.returncode == 0, again.stderr
    assert (own / "out" / "results.csv").read_text() == (own / "again" / "results.csv").read_text()
    assert (own / "out" / "results.csv").read_text().splitlines()[0].endswith(",layers_error,longest_step_ns")


@pytest.mark.parametrize(("function", "error", "problem"), [
    ("decode_ns", SpecError, "columns: 'decode_ns' is a column of the results already"),
    ("pairs", SpecError, "columns: own_columns:pairs: returns <class 'tuple'>; a column holds int, float or str"),
    ("fails", ArchsimError, "own_columns:fails: RuntimeError: no idea"),
    ("faults", SpecError, "has no function 'faults'; did you mean 'fails'?"),
])
def test_what_is_wrong_with_a_users_column_is_told(own, function, error, problem):
    with pytest.raises(error) as told:
        sweep(tiny(own, f"columns=[own_columns:{function}]", "workload.batch=12"), "out", jobs=1)
    assert problem in str(told.value)
