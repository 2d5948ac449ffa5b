"""Tables of results: what the columns must satisfy among themselves, and that files hold exactly what the tables do."""

import csv
import json

import pandas
import pytest
from support.tiny import tiny

import archsim
from archsim.base.causes import Cause
from archsim.base.errors import ArchsimError
from archsim.base.files import read_sealed
from archsim.base.tables import INTEGER, REAL, TEXT, Table, read_csv
from archsim.engine import loop
from archsim.runs.columns import COLUMNS, DIE_COLUMNS, DIES, LINK_COLUMNS, RUN_COLUMNS
from archsim.runs.plan import choose, select
from archsim.runs.results import REFERENCES, Results
from archsim.runs.simulator import Simulator

CALIBRATION = ("decode_ns_low", "decode_ns_high", "gemm_extrapolated", "copies_extrapolated")
OPTIONAL = {column.name for column in (*COLUMNS, *DIES) if column.optional}
HOST_TIMES = tuple(name for name in RUN_COLUMNS if name.startswith("host_p"))
SETS = [
    "published", "{set: published, hops: all, weights: all}", "physical", "{set: physical, arbitration: round_robin}"
]
ISSUE_COLUMNS = (
    "system, mesh_x, mesh_y, model, trace, batch, policy, engine, assumptions, decode_steps, prefill_ns, decode_ns, "
    "throughput_tokens_per_s, speedup_vs_base, speedup_vs_ep, hop_messages, hop_bytes, "
    "local_hbm_read_bytes, remote_hbm_read_bytes, "
    "local_hbm_write_bytes, activation_bytes, die_utilisation, load_max_over_mean, replicas_max_bytes_per_die, events"
).split(", ")


@pytest.fixture(scope="module", params=SETS)
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
    """Bytes over links are bytes times distance."""
    results = swept[1]
    carried = results.links.to_pandas().groupby("run")["bytes"].sum()
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
    monkeypatch.setattr(loop, "MOST_STEPS", 3)
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
    table = Table({"name": TEXT, "end_ns": REAL, "share": REAL, "bytes": INTEGER}, (
        {"name": "a, b", "end_ns": 3.0, "share": 1.0, "bytes": 2**60},
        {"name": "c", "end_ns": 0.1 + 0.2, "share": None, "bytes": 0},
    ))
    assert table.to_csv() == 'name,end_ns,share,bytes\n"a, b",3,1.0,1152921504606846976\nc,0.30000000000000004,,0\n'
    table.write_csv(tmp_path / "table.csv")
    assert read_csv(tmp_path / "table.csv", table.columns) == table


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
