"""Tables of results: what the columns must satisfy among themselves, and that files hold exactly what the tables do."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
from support.examples import sampled
from support.tiny import archsim as tiny_archsim
from support.tiny import tiny, tiny_file
from support.trace_files import save_npz

import archsim
import archsim as ar
from archsim.base.causes import CAUSES, Cause
from archsim.base.errors import ArchsimError, SpecError
from archsim.base.files import read_sealed
from archsim.base.tables import INTEGER, REAL, TEXT, Table, read_csv, read_parquet
from archsim.engine import step_counts
from archsim.engine.state import CAUSE_OF
from archsim.runs import columns as of_runs
from archsim.runs import finished, simulator
from archsim.runs.calibration_notes import calibration_notes, die_of
from archsim.runs.choice import choose
from archsim.runs.columns import (
    BY_NAME,
    COLUMNS,
    DIE_COLUMNS,
    DIES,
    LINK_COLUMNS,
    LINKS,
    PAIRS,
    RUN_COLUMNS,
    STEP_COLUMNS,
    STEPS,
    columns_with,
    shown_columns,
)
from archsim.runs.energy import work_of
from archsim.runs.feasibility import rooms, uncounted_notes
from archsim.runs.measures import energy, loads
from archsim.runs.notes import memory_notes, result_notes
from archsim.runs.plan import prepare, select
from archsim.runs.results import REFERENCES, Results
from archsim.runs.simulator import Simulator
from archsim.runs.sweep import sweep
from archsim.specs.explore import OBJECTIVES
from archsim.specs.library import load_experiment, load_system
from microarch.blocks.global_cp import CRITICAL
from microarch.blocks.global_cp import State as decided
from microarch.blocks.request import State

CALIBRATION = ("decode_ns_low", "decode_ns_high", "gemm_extrapolated", "copies_extrapolated")
OPTIONAL = {column.name for column in (*COLUMNS, *DIES) if column.optional}
HOST_TIMES = tuple(name for name in RUN_COLUMNS if name.startswith("host_p"))
SETS = [
    "published",
    "{set: published, hops: all, weights: all}",
    "physical",
    "{set: physical, arbitration: round_robin}",
]
ISSUE_COLUMNS = (
    "system, mesh_x, mesh_y, model, trace, batch, policy, engine, assumptions, decode_steps, prefill_ns, decode_ns, "
    "throughput_tokens_per_s, speedup_vs_base, speedup_vs_ep, hop_messages, hop_bytes, "
    "local_hbm_read_bytes, remote_hbm_read_bytes, "
    "local_hbm_write_bytes, activation_bytes, die_utilisation, load_max_over_mean, replicas_max_bytes_per_die, events"
).split(", ")


@pytest.fixture(scope="module", params=sampled(SETS, lambda each: each == SETS[-1]))
def swept(request, tmp_path_factory):
    """(experiment, results, folder) of a sweep under one set of assumptions."""
    folder = tmp_path_factory.mktemp("results")
    experiment = tiny(folder, f"assumptions={request.param}")
    return experiment, archsim.sweep(experiment, folder / "out", jobs=1), folder / "out"


def test_columns_and_order_of_rows(swept):
    experiment, results, folder = swept
    with (folder / "results.csv").open(newline="") as stream:
        header, *rows = csv.reader(stream)
    assert header == list(RUN_COLUMNS) and [name for name in header if name in ISSUE_COLUMNS] == ISSUE_COLUMNS
    expected = [
        (system.name, model.name, str(batch), assumptions.label, policy.name)
        for system in experiment.systems
        for model in experiment.models
        for batch in experiment.workload.batch
        for assumptions in experiment.assumptions
        for policy in experiment.policies
    ]
    at = [header.index(name) for name in ("system", "model", "batch", "assumptions", "policy")]
    assert [tuple(row[column] for column in at) for row in rows] == expected
    assert len({row[header.index("run")] for row in rows}) == experiment.runs == len(results.runs)


def test_files_hold_what_the_tables_do(swept):
    _, results, folder = swept
    loaded = Results.load(folder)
    assert loaded == results
    parquet = pandas.read_parquet(folder / "results.parquet")
    frames = [frame.astype(object) for frame in (parquet, results.runs.to_pandas())]
    frames = [frame.where(frame.notna(), None) for frame in frames]
    pandas.testing.assert_frame_equal(*frames)
    assert list(parquet.columns) == list(RUN_COLUMNS)


@pytest.mark.parametrize("policy", REFERENCES)
def test_speed_is_measured_against_ep_and_base(swept, policy):
    rows = swept[1].runs.rows
    assert len(rows) == swept[0].runs
    for row in rows:
        reference = next(
            each
            for each in rows
            if each["policy"] == policy
            and all(each[name] == row[name] for name in ("system", "model", "batch", "assumptions"))
        )
        assert row[f"speedup_vs_{policy}"] == row["throughput_tokens_per_s"] / reference["throughput_tokens_per_s"]
        assert row["policy"] != policy or row[f"speedup_vs_{policy}"] == 1


def test_dies_sum_to_their_run(swept):
    experiment, results, _ = swept
    dies = results.dies.to_pandas().groupby("run")
    assert len(results.runs.rows) == len(dies) == experiment.runs
    for row in results.runs.rows:
        of_run = dies.get_group(row["run"])
        assert list(of_run["die"]) == list(range(row["mesh_x"] * row["mesh_y"]))
        assert len(set(zip(of_run["x"], of_run["y"], strict=True))) == len(of_run)
        for name in ("local_hbm_read_bytes", "remote_hbm_read_bytes", "local_hbm_write_bytes"):
            assert of_run[name].sum() == row[name]
        assert of_run["replica_peak_bytes"].max() == row["replicas_max_bytes_per_die"]
        assert of_run["compute_utilisation"].mean() == pytest.approx(row["die_utilisation"])
        # Every request has 3 prompt tokens and 4 decode steps, top-2 experts in each of 2 layers.
        assert of_run["tokens"].sum() == row["batch"] * (3 + 4) * 2 * 2


def test_links_carry_what_hops(swept):
    """Bytes over links are bytes times distance; statistics, which are no messages of steps, have theirs beside."""
    results = swept[1]
    each = results.links.to_pandas().groupby("run")[["bytes", "statistics_bytes"]].sum()
    carried = each["bytes"] - each["statistics_bytes"]
    assert len(results.runs.rows) == len(carried) == swept[0].runs
    for row in results.runs.rows:
        if row["assumptions"].startswith("published") and "hops=all" not in row["assumptions"]:
            assert carried[row["run"]] >= row["hop_bytes"]
        else:
            assert carried[row["run"]] == row["hop_bytes"]
            assert row["hop_messages"] == sum(row[f"hop_{kind}_messages"] for kind in ("request", "data", "activation"))


def test_links_lie_between_neighbours(swept):
    links = swept[1].links.to_pandas()
    assert ((links.src_x - links.dst_x).abs() + (links.src_y - links.dst_y).abs() == 1).all()
    for (_, mesh_x, mesh_y), rows in links.merge(swept[1].runs.to_pandas(), on="run").groupby(
        ["run", "mesh_x", "mesh_y"]
    ):
        edges = mesh_x * (mesh_y - 1) + mesh_y * (mesh_x - 1)
        one_way = set(rows.direction) == {"one way"}
        assert len(rows) == (2 * edges if one_way else edges)
        assert len(set(zip(rows.src, rows.dst, strict=True))) == len(rows)


def test_shares_are_shares(swept):
    results = swept[1]
    bounds = results.runs.to_pandas().filter(like="bound_")
    assert bounds.shape[1] == len(Cause) and (bounds >= 0).all().all()
    assert bounds.sum(axis=1).to_numpy() == pytest.approx(1)
    for frame, names in ((results.dies, ["compute_utilisation", "hbm_utilisation"]), (results.links, ["utilisation"])):
        shares = frame.to_pandas()[names].to_numpy()
        assert (shares >= 0).all() and (shares <= 1 + 1e-12).all() and shares.any()


def test_decode_steps_and_throughput(swept):
    rows = swept[1].runs.rows
    assert len(rows) == swept[0].runs
    for row in rows:
        assert row["decode_steps"] == 4 and row["prefill_ns"] > 0
        steps = 5 if row["assumptions"].startswith("published") else 4  # nominal: the prefill is counted
        assert row["throughput_tokens_per_s"] == pytest.approx(row["batch"] * steps / row["decode_ns"] * 1e9)


def test_throughput_is_counted_alike_and_for_all_layers(swept, tmp_path):
    rows = swept[1].runs.rows
    assert len(rows) == swept[0].runs
    for row in rows:
        assert row["tokens_per_s"] == pytest.approx(row["batch"] * 4 / row["decode_ns"] * 1e9)
        assert row["decode_step_ns"] == pytest.approx(row["decode_ns"] / 4)
        assert row["decode_batch_token_ns"] * row["tokens_per_s"] == pytest.approx(1e9)
        assert 0 < row["mfu"] < 1 and 0 < row["hbm_bandwidth_utilisation"] < 1
        assert row["over_roofline"] == pytest.approx(1 / max(row["mfu"], row["hbm_bandwidth_utilisation"]))
    part = archsim.run(tiny(tmp_path, "workload.layers=1")).runs.rows[0]
    assert part["tokens_per_s"] == pytest.approx(part["batch"] * 4 / (2 * part["decode_ns"]) * 1e9)


def test_steps_sum_to_their_run(swept):
    experiment, results, folder = swept
    steps = pandas.read_parquet(folder / "steps.parquet")
    assert len(steps) == experiment.runs * 5 * 2  # prefill and 4 decode steps of 2 layers
    summed = steps.groupby("run").sum(numeric_only=True)
    runs = results.runs.to_pandas().set_index("run").loc[summed.index]
    assert summed["time_ns"].to_numpy() == pytest.approx((runs.prefill_ns + runs.decode_ns).to_numpy())
    for column, of_run in (
        ("hbm_local_read_bytes", "local_hbm_read_bytes"), ("hbm_remote_read_bytes", "remote_hbm_read_bytes"),
        ("hbm_write_bytes", "local_hbm_write_bytes"), ("dispatch_bytes", "dispatch_bytes"),
        ("combine_bytes", "combine_bytes"), ("tokens", "expert_tokens"),
    ):  # fmt: skip
        assert (summed[column] == runs[of_run]).all(), column
    bounds = steps.filter(like="bound_").sum(axis=1)
    assert bounds.to_numpy() == pytest.approx(steps["time_ns"].to_numpy())
    assert (steps["die_tokens"] <= steps["tokens"]).all() and (steps["die_tokens"] > 0).all()
    dies = results.dies.to_pandas()
    assert (dies.prefill_hbm_bytes + dies.decode_hbm_bytes == dies.hbm_bytes).all()
    assert (dies.prefill_tokens + dies.decode_tokens == dies.tokens).all()


def test_a_run_of_too_many_steps_keeps_their_sums_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(step_counts, "MOST_STEPS", 3)
    (run,) = select(choose(tiny(tmp_path), policy="ep", batch=12)).runs()
    record = Simulator().record(run)
    assert record["steps"] == {}
    assert sum(record["dies"]["decode_tokens"]) == 12 * 4 * 2 * 2  # steps, top-2 experts, layers


def test_the_hottest_link_of_a_step_is_a_link(swept):
    results = swept[1]
    steps, links = results.steps.to_pandas(), results.links.to_pandas()
    hot = steps[steps["link"].notna()].merge(links, on=["run", "link"], suffixes=("", "_of_link"))
    assert len(hot) == steps["link"].notna().sum() > 0
    assert (hot["link_src"] == hot["src"]).all() and (hot["link_dst"] == hot["dst"]).all()
    assert (hot["link_bytes"] <= hot["bytes"]).all() and (hot["link_busy_ns"] <= hot["busy_ns"] + 1e-6).all()


def test_generated_throughput_counts_tokens_of_decode(tmp_path):
    experiment = tiny(tmp_path, "assumptions={set: published, throughput: generated}")
    row = archsim.run(experiment, policy="ep").runs.rows[0]
    assert row["throughput_tokens_per_s"] == pytest.approx(row["batch"] * 4 / row["decode_ns"] * 1e9)


def test_no_prompt_is_no_prefill(tmp_path):
    row = archsim.run(tiny(tmp_path, "workload.trace.synthetic.prompt_tokens=0")).runs.rows[0]
    assert row["prefill_ns"] == 0 and row["decode_steps"] == 4


def test_no_base_is_no_speedup(tmp_path):
    row = archsim.run(tiny(tmp_path), policy="ep").runs
    assert row.rows[0]["speedup_vs_base"] is None
    assert dict(zip(RUN_COLUMNS, row.to_csv().splitlines()[1].split(","), strict=True))["speedup_vs_base"] == ""


def test_cells_are_short_and_exact(tmp_path):
    table = Table(
        {"name": TEXT, "end_ns": REAL, "share": REAL, "bytes": INTEGER},
        (
            {"name": "a, b", "end_ns": 3.0, "share": 1.0, "bytes": 2**60},
            {"name": "c", "end_ns": 0.1 + 0.2, "share": None, "bytes": 0},
        ),
    )
    assert table.to_csv() == 'name,end_ns,share,bytes\n"a, b",3,1.0,1152921504606846976\nc,0.30000000000000004,,0\n'
    table.write_csv(tmp_path / "table.csv")
    assert read_csv(tmp_path / "table.csv", table.columns) == table


def test_tables_of_rows_and_of_files_are_chosen_from_alike(tmp_path):
    """Rows of a value need not be neighbours; a missing number is one that is chosen by None."""
    columns = {"run": TEXT, "n": INTEGER, "share": REAL}
    rows = [{"run": run, "n": n or None, "share": n / 7} for run in "abca" for n in range(3)]
    table = Table(columns, rows)
    table.write_csv(tmp_path / "table.csv")
    table.write_parquet(tmp_path / "table.parquet")
    kept = [read(tmp_path / f"table.{end}", columns) for read, end in ((read_csv, "csv"), (read_parquet, "parquet"))]
    for each in (table, *kept):
        assert list(each) == rows and len(each) == len(rows) == 12 and each == table
        assert list(each.where(run="a", n=2)) == [rows[2], rows[11]] and len(each.where(n=None)) == 4
        assert each.where(run="b").where(n=1).rows == (rows[4],) and not len(each.where(n=1, share=0.0).by("run"))
        assert {run: len(of) for run, of in each.by("run").items()} == {"a": 6, "b": 3, "c": 3}
        assert each.by("run")["a"].rows == (*rows[:3], *rows[9:]) and list(each.by("run")) == ["a", "b", "c"]
        assert each.column("share").tolist() == [n / 7 for n in range(3)] * 4 and each.column("run")[3] == "b"
        assert np.isnan(each.column("n")[::3]).all() and each.where(n=2).column("n").dtype == np.int64
        with pytest.raises(ArchsimError, match="no column 'shares'; did you mean 'share'"):
            each.where(shares=1)
        for own, said in (
            ({"run": "A"}, r"no row has run = 'A'; did you mean 'a'\? \(values: 'a', 'b', 'c'\)"),
            ({"n": 5}, r"no row has n = 5 \(nearest: 1, 2\)"),
            ({"n": "2"}, r"no row has n = '2' \(values: 1, 2\)"),
            ({"share": 0.2}, r"no row has share = 0.2 \(nearest: 0.0, 0.14"),
        ):
            with pytest.raises(ArchsimError, match=said):
                each.where(**own)
        assert not len(each.where(n=1).where(n=2)) and not len(each.where(n=1).where(run="a", n=2))
    assert not len(Table(columns, []).where(run="x"))


@pytest.mark.parametrize(("text", "said"), [
    ("a,b\n1,x\n", "table.csv:2: b: 'x' is not a number"), ("a,b\n1,2\n1.5,2\n", "3: a: '1.5' is not a whole number"),
    ("a,b\n1\n", "table.csv:2: Expected 2 columns, got 1"), ("a\n1\n", "table.csv:1: no column 'b'"),
])  # fmt: skip
def test_a_damaged_table_is_refused_at_its_place(tmp_path, text, said):
    (tmp_path / "table.csv").write_text(text, encoding="utf-8")
    with pytest.raises(ArchsimError, match=re.escape(said)):
        read_csv(tmp_path / "table.csv", {"a": INTEGER, "b": REAL})


def test_missing_files_are_named(tmp_path):
    with pytest.raises(
        ArchsimError, match=r"results\.parquet: no such file; are these the results of a sweep that ended\?"
    ):
        Results.load(tmp_path)


def test_every_column_has_one_kind(swept):
    """What is kept as JSON comes back as it was, so a resumed sweep writes the same bytes."""
    _, results, folder = swept
    kinds = {TEXT: str, INTEGER: int, REAL: float}
    for table, columns in ((results.runs, RUN_COLUMNS), (results.dies, DIE_COLUMNS), (results.links, LINK_COLUMNS)):
        for row in table.rows:
            left_out = {*HOST_TIMES, *CALIBRATION, "drawn_from"}
            left_out |= {name for name in columns if name in OPTIONAL and row[name] is None}
            given = {name: kind for name, kind in columns.items() if name not in left_out}
            assert all(type(row[name]) is kinds[kind] for name, kind in given.items())
    assert all(row[name] is None for row in results.runs.rows for name in HOST_TIMES)  # no host decided
    kind = float if "physical" in results.runs.rows[0]["assumptions"] else type(None)  # published needs no calibration
    assert all(
        type(row[name]) is kind for row in results.runs.rows for name in CALIBRATION if name != "copies_extrapolated"
    )
    assert all(row["copies_extrapolated"] is None for row in results.runs.rows)  # no link is calibrated
    # as many requests are generated as the largest batch has
    assert all(row["drawn_from"] is None for row in results.runs.rows)
    assert len(list((folder / "runs").glob("*.json"))) == len(results.runs)
    kept = json.loads(read_sealed(folder / "runs" / f"{results.runs.rows[0]['run']}.json"))
    assert set(kept["record"]["row"]) | {"run", "speedup_vs_base", "speedup_vs_ep"} == set(RUN_COLUMNS)


# ---- The table of columns: what reads it agrees, and a user adds a column with a function and a line of YAML.

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
    units = {"_ns": "ns", "_bytes": "bytes", "_mm2": "mm²", "_percent": "percent"}
    told = {
        column.name: column.unit
        for column in COLUMNS
        if column.name.endswith(tuple(units)) and column.name != "hop_bytes"
    }
    assert told == {name: units[f"_{name.rpartition('_')[2]}"] for name in told} and len(told) > 20


def test_every_column_is_measured_once_and_every_measure_has_a_column(tmp_path, monkeypatch):
    (run,) = select(choose(tiny(tmp_path), policy="ep", batch=12)).runs()
    seen: list[finished.Finished] = []
    measured = of_runs.row_of
    monkeypatch.setattr(simulator.columns, "row_of", lambda each: seen.append(each) or measured(each))
    record = Simulator().record(run)
    follow = ["speedup_vs_base", "speedup_vs_ep", "run"]  # from other rows
    assert list(record["row"]) == [name for name in RUN_COLUMNS if name not in follow]
    work = work_of(run.model, run.assumptions, record["dies"], record["links"], 0)
    found = [name for topic in of_runs.TOPICS for name in topic(seen[0])]
    found += [*work, *loads.use(seen[0], record["row"]), *energy.energy(seen[0], record["row"])]
    assert sorted([*found, "broken_laws"]) == sorted(record["row"])  # which is asked of all of them


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
    fewer = "policies=[base, pred]", "workload.batch=12", "systems.0.mesh={x: 4, y: 2}"
    experiment = tiny(own, columns, *fewer)
    plain = sweep(tiny(own, *fewer), "plain", jobs=1)
    results = sweep(experiment, "out", jobs=1)
    assert list(results.runs.columns)[-3:] == ["longest_step_ns", "experts_of_a_die", "first_word"]
    frame = results.runs.to_pandas()
    assert (frame["longest_step_ns"] > 0).all() and (
        frame["longest_step_ns"] <= frame["prefill_ns"] + frame["decode_ns"]
    ).all()
    assert set(frame["experts_of_a_die"]) == {2, 4} and set(frame["first_word"]) == {"base", "pred"}
    assert Results.load("out") == results
    for row, same in zip(results.runs.rows, plain.runs.rows, strict=True):
        assert {name: row[name] for name in RUN_COLUMNS if name != "run"} == {
            name: same[name] for name in RUN_COLUMNS if name != "run"
        }
        assert row["run"] != same["run"], "a run that measures more is kept as another"
    column = columns_with(("own_columns:longest_step_ns",))[-1]
    assert (column.kind, column.unit, column.meaning) == (REAL, "ns", "The longest step of any layer.")


def test_a_users_column_is_in_the_manifest_and_the_command(own):
    swept = tiny_archsim(
        own,
        "sweep",
        tiny_file(own),
        "--set",
        "columns=[own_columns:longest_step_ns]",
        "--set",
        "workload.batch=12",
        "--set",
        "policies=[base]",
        "--jobs",
        "1",
        "--out",
        "out",
    )
    assert swept.returncode == 0, swept.stderr
    again = tiny_archsim(own, "sweep", "out/manifest.yaml", "--jobs", "1", "--out", "again")
    assert again.returncode == 0, again.stderr
    assert (own / "out" / "results.csv").read_text() == (own / "again" / "results.csv").read_text()
    assert (own / "out" / "results.csv").read_text().splitlines()[0].count(",broken_laws,longest_step_ns") == 1


@pytest.mark.parametrize(("function", "error", "problem"), [
    ("decode_ns", SpecError, "columns: 'decode_ns' is a column of the results already"),
    ("pairs", SpecError, "columns: own_columns:pairs: returns <class 'tuple'>; a column holds int, float or str"),
    ("fails", ArchsimError, "own_columns:fails: RuntimeError: no idea"),
    ("faults", SpecError, "has no function 'faults'; did you mean 'fails'?"),
])  # fmt: skip
def test_what_is_wrong_with_a_users_column_is_told(own, function, error, problem):
    with pytest.raises(error) as told:
        sweep(tiny(own, f"columns=[own_columns:{function}]", "workload.batch=12"), "out", jobs=1)
    assert problem in str(told.value)


# ---- The context of requests that a recorded trace or a preset alone knows.

MODEL = {"name": "toy", "source": "made up", "layers": 2, "moe_layers": {"first": 0, "last": 1}, "hidden": 64}
MODEL |= {"expert_ffn": 64, "experts": 8, "top_k": 2, "vocabulary": 100}
ATTENTION = {"attention": {"heads": 4, "kv_heads": 2, "head_dim": 16}}
LENGTHS = ((5, 4), (9, 1), (2, 9))


def run_of(trace, batch, model=None, assumptions="physical", **workload):
    return prepare(
        load_experiment(
            {
                "name": "x",
                "systems": ["dojo"],
                "models": [model or MODEL | ATTENTION],
                "workload": {"trace": trace, "batch": batch} | workload,
                "policies": ["ep"],
                "assumptions": assumptions,
            }
        )
    ).runs[0]


@pytest.fixture
def recorded(tmp_path):
    """Requests with prompts of 5, 9 and 2 tokens, and 4, 1 and 9 decode steps."""
    rng, requests = np.random.default_rng(0), {}
    for name, (prompt, decode) in enumerate(LENGTHS):
        iteration = np.r_[np.zeros(prompt, int), np.arange(1, decode + 1)]
        requests[name] = rng.random((len(iteration), 2, 8)).argsort(axis=2)[:, :, :2], iteration
    return str(save_npz(tmp_path / "recorded.npz", requests, [0, 1]))


@pytest.mark.parametrize(("batch", "steps", "tokens"), [(1, 127, 9), (2, 127, 10), (3, 127, 11), (3, 1, 10)])
def test_of_a_recorded_trace_it_is_that_of_the_longest_request_of_the_batch(recorded, batch, steps, tokens):
    run = run_of(recorded, batch, decode_steps=steps)
    (room,) = rooms([run])
    assert room.fit.context == run.workload.context == tokens and run.context_from == "longest request"
    assert uncounted_notes([room]) == [
        "workload.context is not given, so every request holds as much KV cache as the longest of its batch."
    ]


def test_what_is_written_counts(recorded):
    given = run_of(recorded, 3, context=7)
    assert given.workload.context == 7 and given.context_from == "workload"
    assert run_of(recorded, 3).key != given.key
    assert run_of(recorded, 3, model=MODEL).workload.context is None
    assert run_of(recorded, 3, assumptions="published").workload.context is None


def test_of_a_preset_it_is_that_of_the_longest_request_drawn():
    few, many = (
        run_of({"synthetic": {"like": "mixtral-8x7b"}}, batch, "mixtral-8x7b", decode_steps=9) for batch in (1, 50)
    )
    assert 9 < few.workload.context <= many.workload.context
    asked = {"synthetic": {"like": "mixtral-8x7b", "prompt_tokens": 30, "decode_steps": 5}}
    assert run_of(asked, 3, "mixtral-8x7b").workload.context == 35


@pytest.mark.parametrize("like", [{}, {"like": "gpt-oss-20b"}])
def test_requests_without_prompts_say_nothing(like):
    run = run_of({"synthetic": like | {"prompt_tokens": 0}}, 3, "gpt-oss-20b")
    with pytest.raises(SpecError, match=r"^workload\.context: "):
        list(rooms([run]))


def test_a_note_tells_it():
    row = {"model": "a", "hbm_all_counted": 1, "context_from": "longest request"}
    (note,) = memory_notes([row | {"context_tokens": tokens} for tokens in (5, 9)])
    assert note.startswith("workload.context is not given") and "(up to 9)" in note


# ---- What was not measured says so wherever its results stand, and whose law it takes.

SYSTEMS = ("mi355x_node", "vr_nvl144", "cloudmatrix384")


@pytest.mark.parametrize("name", sampled(SYSTEMS, lambda name: name == SYSTEMS[0]))
def test_pages_say_that_nothing_was_measured(name):
    system = load_system(name)
    (note,) = [
        each
        for each in calibration_notes([{"system": name, "gemm_extrapolated": 1.0}], [(name, die_of(system))])
        if "datasheet only" in each
    ]
    assert note.startswith(f"Nothing was measured on {name} (datasheet only).")


def test_measured_systems_do_not():
    die = die_of(load_system("h100_node"))
    notes = calibration_notes([{"system": "h100_node", "gemm_extrapolated": 0.0}], [("h100_node", die)])
    assert not any("datasheet only" in each for each in notes)


@pytest.fixture(scope="module")
def row():
    changes = ["systems=[mi355x_node]", "models=[qwen3-30b-a3b]", "workload.batch=[64]", "workload.layers=2"]
    return ar.run(load_experiment("configs/wafer_or_cluster.yaml", changes)).runs.rows[0]


def test_every_time_of_it_is_extrapolated(row):
    assert row["gemm_extrapolated"] == 1.0


def test_energy_of_a_whole_iteration_holds_more_than_moe_layers(row):
    """Attention, the head and waiting come on top; the ends of the coefficients lie around it."""
    assert row["energy_per_token_j"] < row["iteration_energy_per_token_j"]
    low, high = row["iteration_energy_per_token_j_low"], row["iteration_energy_per_token_j_high"]
    assert low < row["iteration_energy_per_token_j"] < high


@pytest.mark.parametrize(("system", "model", "told"), [
    ("h100_node", "qwen3-30b-a3b", []),
    ("h100_node", "olmoe-1b-7b", ["fused layers of", "dispatch and combine of"]),
    ("dojo", "olmoe-1b-7b", ["GEMMs take the times of h100", "fused layers of"]),
])  # fmt: skip
def test_a_stand_in_counts_as_extrapolated_and_names_whose_law_it_is(system, model, told):
    changes = [f"systems=[{system}]", f"models=[{model}]", "workload.batch=[64]", "workload.layers=1"]
    row = ar.run(load_experiment("configs/wafer_or_cluster.yaml", changes)).runs.rows[0]
    pieces = row["stand_ins"].split(" | ") if row["stand_ins"] else []
    assert len(pieces) == len(told) and all(piece.startswith(each) for piece, each in zip(pieces, told, strict=True))
    assert (row["gemm_extrapolated"] == 1.0) == any("dispatch" not in each for each in told)
    assert row["transfer_extrapolated"] in (None, float(any("dispatch" in each for each in told)))
    notes = calibration_notes([row], [(system, die_of(load_system(system)))])
    assert all(any(piece in note and "counts as extrapolated" in note for note in notes) for piece in pieces)


def test_a_step_of_more_requests_that_takes_less_time_says_that_its_plan_is_another():
    row = {"system": "x", "model": "m", "policy": "base", "engine": "event", "assumptions": "physical"}
    rows = [row | {"batch": batch, "decode_step_ns": ns} for batch, ns in ((64, 100.0), (128, 80.0), (256, 120.0))]
    (note,) = [each for each in result_notes(rows, []) if "another plan" in each]
    assert note.startswith(
        "For m on x under base, a decode step of 128 requests takes 20% less time than a decode step of 64."
    )
    assert not any("another plan" in each for each in result_notes(rows[1:], []))
