"""The report's section on decisions: what it shows of which systems, and that its numbers are those of the runs."""

import re
from dataclasses import replace

import pytest
from support.html_page import Page
from support.report_folder import read_csv, write_csv, write_folder

from archsim.base.yaml import dump_yaml
from archsim.cli.main import main
from archsim.report import decision_cost
from archsim.report.data import HOST_TIMES, read_report
from archsim.report.decision_cost import added_mm2, families, section, step_exposed_ns, words
from archsim.report.page import render_all, write_report
from archsim.report.units import percent, significant
from archsim.specs.library import load_assumptions, load_experiment, load_system
from archsim.specs.policies import PRESETS
from archsim.specs.system import SystemSpec

POLICIES = ("base", "allo", "allo+pred")
VARIANTS = {
    "dojo-host": {"executor": "host", "host": {"time": "60 us"}},
    "dojo-timed": {"executor": "host", "host": {"pcie_latency": "1 us", "source": "a calibration"}},
    "dojo-a72": {"executor": "firmware", "firmware": {"core": "a72"}},
    "dojo-slow": {"fsm": {"clock": "500 MHz"}},
    "dojo-narrow": {"fsm": {"lanes": 1}},
    "dojo-narrow-slow": {"fsm": {"lanes": 1, "clock": "500 MHz"}},
    "dojo-port64": {"fsm": {"heatmap_port_bits": 64}},
    "dojo-atu64": {"atu_entries": 64},
}
# System → overhead in percent of its runs; what it exposes a step follows, for a step of 400 us.
OVERHEAD = {
    "dojo": 0.5, "dojo-host": 20.0, "dojo-timed": 20.0, "dojo-a72": 4.0, "dojo-slow": 0.9, "dojo-narrow": 1.5,
    "dojo-narrow-slow": 3.0,
}
STEP_NS, DECODE_STEPS, LAYERS = 400e3, 2, 58


def policy(name):
    return {part: {"name": rule} if isinstance(rule, str) else rule for part, rule in PRESETS[name].items()}


def system_of(name):
    raw = load_system("dojo").model_dump(mode="json", by_alias=True)
    return raw | {"name": name, "decision": VARIANTS.get(name, {})}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The runs of dojo, again for every variant, with what decisions cost them."""
    folder = write_folder(
        tmp_path_factory.mktemp("decisions"), policies=POLICIES, decode_steps=DECODE_STEPS, prefill_ns=0,
        assumptions=(load_assumptions("physical"),),
    )  # fmt: skip
    for name in ("results", "dies", "links"):
        rows = read_csv(folder / f"{name}.csv")
        every = [
            row | {"system": system, "run": f"{row['run']}{system}"} for system in ("dojo", *VARIANTS) for row in rows
        ]
        write_csv(folder / f"{name}.csv", [row | _costs(row) for row in every] if name == "results" else every)
    manifest = load_experiment(folder / "manifest.yaml").resolved()
    specs = [SystemSpec.model_validate(system_of(name)) for name in ("dojo", *VARIANTS)]
    manifest["systems"] = [spec.model_dump(mode="json", by_alias=True) for spec in specs]
    (folder / "manifest.yaml").write_text(dump_yaml({"manifest": {"version": "0.1.0"}} | manifest))
    return folder


def _costs(row):
    percent = OVERHEAD.get(row["system"], OVERHEAD["dojo"])
    rate = float(row["throughput_tokens_per_s"]) / (1 + percent / 100)
    names = ("decision_overhead_percent", "decision_overhead_percent_p50", "decision_overhead_percent_p99")
    exposed_ns = percent / 100 * STEP_NS * DECODE_STEPS * LAYERS
    host_ns = 60e3 * DECODE_STEPS * LAYERS if row["system"] in ("dojo-host", "dojo-timed") else 0.0
    timed = (41e3, 58e3, 72e3, 95.5e3) if row["system"] == "dojo-timed" else [""] * len(HOST_TIMES)
    dropped = 1234 if row["system"] == "dojo-port64" else 0
    return dict.fromkeys(names, percent) | {
        "decision_exposed_ns": exposed_ns, "exposed_evaluate_ns": host_ns, "throughput_tokens_per_s": rate, "heatmap_dropped": dropped,  # noqa: E501
        **dict(zip(HOST_TIMES, timed, strict=True)),
    }  # fmt: skip


@pytest.fixture(scope="module")
def report(folder):
    return read_report(folder)


@pytest.fixture(scope="module")
def page(folder):
    return Page(write_report(folder).read_text(encoding="utf-8"))


def test_panels_are_of_one_system_of_a_family(report, page):
    assert report.families() == [("dojo", *VARIANTS)]
    assert {place.system for place in report.places()} == {"dojo"}
    assert page.text.count("How much faster than base is each policy?") == 2  # its caption, and what is read aloud
    whole = Page(render_all(report)["results.html"])
    assert whole.row("dojo-host", "deepseek-v3", "4,096", "allo", "physical")


def test_no_section_where_decisions_are_free(tmp_path):
    write_folder(tmp_path)
    assert section(read_report(tmp_path)) is None
    assert "Cost of decisions" not in write_report(tmp_path).read_text(encoding="utf-8")


def test_host_beside_the_published_range(report, page):
    row = page.row("dojo-host", "deepseek-v3", "4,096", "allo", "60.0", "80.0")
    assert (
        row[4] == "60.0\u00a0µs"
        and row[6] == "20.0\u00a0%"
        and row[9:11] == ["5.2 to 6.4\u00a0%", "not met: 14 points above"]
    )
    # 80 us are exposed, 20 of them not the host's: 5.2 % of 400 us are 20.8 us.
    assert row[11] == "800\u00a0ns to 5.60\u00a0µs host decision time, or a step 3.12× to 3.85× as long"
    assert "800\u00a0ns to 5.60\u00a0µs at batch 4,096 on dojo" in page.text
    assert "dojo-host: 0 of 2 in the published range; 2 above it by 14 points." in page.text


def test_a_host_that_was_timed_has_its_distribution_and_says_where_its_path_is_from(page):
    row = page.row("dojo-timed", "deepseek-v3", "4,096", "allo", "41.0", "80.0")
    assert row[4] == "41.0\u00a0µs, 58.0\u00a0µs, 72.0\u00a0µs, 95.5\u00a0µs"
    assert (
        row[11] == "800\u00a0ns to 5.60\u00a0µs host decision time, or a step 3.12× to 3.85× as long"
    )  # by the mean of the timed calls
    assert page.row("dojo-timed", "timed during the run")[-1] == "a calibration"


def test_misses_are_told_in_points():
    def at(simulated):
        return decision_cost.Comparison(5.0, 6.0, simulated, "", (0.0, 0.0))

    assert decision_cost.misses([at(5.5), at(7.0), at(20.0), at(4.5)]) == (
        "1 of 4 in the published range; 2 above it by 1.0 to 14 points; 1 below it by 0.50 points"
    )


@pytest.mark.parametrize(("simulated", "kind"), [(5.0, "below"), (5.2, "met"), (6.4, "met"), (6.5, "above")])
def test_a_published_range_includes_its_ends(report, simulated, kind):
    run = next(run for run in report.runs if (run.place.system, run.policy) == ("dojo-host", "allo"))
    changed = replace(run, numbers={**run.numbers, "decision_overhead_percent": simulated})
    system = families(report)[0].systems["dojo-host"]
    assert decision_cost.compare_run(report, changed, system).kind == kind


def test_nothing_was_published_for_another_batch(report):
    run = next(run for run in report.runs if (run.place.system, run.policy) == ("dojo-host", "allo"))
    system = families(report)[0].systems["dojo-host"]
    assert decision_cost.compare_run(report, run, system) is not None
    assert decision_cost.compare_run(report, replace(run, batch=1024), system) is None


def test_where_a_decision_disappears(report, page):
    (allo, _) = section(report)["datapaths"]
    assert allo.title == "allo, deepseek-v3 on dojo, batch 4,096"
    assert [(lanes, [cell.text for cell in cells]) for lanes, cells in allo.rows] == [
        (1, ["3.0\u00a0%", "1.5\u00a0%"]), (8, ["0.90\u00a0%", "0.50\u00a0%"]),
    ]  # fmt: skip
    assert [[cell.share is None for cell in cells] for _, cells in allo.rows] == [[False, False], [True, True]]
    assert "Hidden from 8 lanes at 0.5 GHz or 8 lanes at 0.85 GHz on." in page.text


def test_firmware_and_tables(page):
    assert page.row("dojo", "deepseek-v3", "4,096", "allo", "2.00")[6:] == [
        "firmware on Cortex-A72 at 2.5 GHz", "16.0\u00a0µs", "4.0\u00a0%", "96.6\u00a0%", "no",
    ]  # fmt: skip
    assert page.row("dojo", "deepseek-v3", "4,096", "allo+pred", "64")[5] == "1,234"


def test_what_prediction_costs_stands_beside_what_it_is_worth(report, page):
    (family,) = families(report)
    rows = list(decision_cost.rows(report, family))
    assert {(row["run"].policy, row["against"]) for row in rows} == {("allo+pred", "allo")}
    assert {row["run"].place.system for row in rows} == set(family.systems)
    row = next(row for row in rows if row["run"].place.system == "dojo")
    system, run = family.systems["dojo"], row["run"]
    mm2 = added_mm2(system, policy("allo+pred")) - added_mm2(system, policy("allo"))
    assert row["mm2"] == f"{significant(mm2, 2)} mm²" and float(row["mw"].split()[0]) > 100
    gain = run["throughput_tokens_per_s"] / report.find(run.place, run.batch, "allo")["throughput_tokens_per_s"]
    assert row["throughput"] == percent(gain, 1) and row["gains"] == (gain > 1)
    assert page.row("dojo", "deepseek-v3", "4,096", "allo+pred", "allo")[6:8] == [row["mm2"], row["ppm"]]


def test_area_of_a_report_joins_what_prediction_costs_and_is_worth(report, capsys):
    assert main(["area", str(report.folder)]) == 0
    said = capsys.readouterr().out.replace("\u00a0", " ")
    row = next(row for row in decision_cost.rows(report, families(report)[0]) if row["run"].place.system == "dojo")
    wanted = [row[name].replace("\u00a0", " ") for name in ("mm2", "ppm", "mw", "throughput")]
    line = next(line for line in said[said.index("prediction in ") :].splitlines() if line.split()[:1] == ["dojo"])
    assert all(each in line for each in ("4,096", "allo+pred", *wanted))
    assert main(["area", str(report.folder), "--set", "systems.0.mesh.x=2"]) == 2
    assert "is a report, whose runs are made" in capsys.readouterr().err


def test_front_has_what_no_other_point_beats(report):
    (family,) = families(report)
    points = decision_cost.points_of(report, family, report.places()[0])
    best = decision_cost.front(points)
    assert len(points) == 2 * (1 + len(VARIANTS)) and 0 < len(best) < len(points)
    at = {(point.mm2, point.speedup) for point in points}
    undominated = {one for one in at if not any(o != one and o[0] <= one[0] and o[1] >= one[1] for o in at)}
    assert {(point.mm2, point.speedup) for point in best} == undominated


def test_added_area_orders_designs(report):
    (family,) = families(report)
    area = {name: added_mm2(system, policy("allo")) for name, system in family.systems.items()}
    assert area["dojo-host"] < area["dojo-narrow"] < area["dojo"] == area["dojo-slow"] < area["dojo-a72"]
    assert area["dojo-atu64"] < area["dojo"]
    assert added_mm2(family.systems["dojo"], policy("allo+pred")) > area["dojo"]
    assert added_mm2(family.systems["dojo"], policy("base")) == 0
    assert words(family.systems["dojo-narrow"].decision) == "state machine, 1 lane at 0.85 GHz"


def test_page_is_the_same_again_and_complete(folder, page):
    text = write_report(folder).read_text(encoding="utf-8")
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    assert "decisions" in ids
    assert not re.search(r"\bnan\b|None", re.sub(r"<(style|script).*?</\1>", "", text, flags=re.S))


def test_exposed_a_step_does_not_depend_on_how_many_layers_ran(folder, report, tmp_path):
    """Three layers of 58 have three decisions an iteration; folders without the column are of all layers."""
    for name in ("manifest.yaml", "dies.csv", "links.csv"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    rows, part = read_csv(folder / "results.csv"), 3 / LAYERS
    scaled = ("decision_exposed_ns", "exposed_evaluate_ns", "decode_ns")
    write_csv(
        tmp_path / "results.csv",
        [row | {name: float(row[name]) * part for name in scaled} | {"layers": 3} for row in rows],
    )
    few = read_report(tmp_path)
    assert [step_exposed_ns(few, run) for run in few.runs] == pytest.approx(
        [step_exposed_ns(report, run) for run in report.runs]
    )
    hosts = [section(each)["hosts"] for each in (few, report)]
    assert [row["exposed"] for row in hosts[0]] == [row["exposed"] for row in hosts[1]]
    assert [row["claim"] and row["claim"].verdict for row in hosts[0]] == [
        row["claim"] and row["claim"].verdict for row in hosts[1]
    ]
    write_csv(tmp_path / "results.csv", [{key: value for key, value in row.items() if key != "layers"} for row in rows])
    old = read_report(tmp_path)
    assert [step_exposed_ns(old, run) for run in old.runs] == [step_exposed_ns(report, run) for run in report.runs]
