"""Area and power of the tables and cores: sizes from parameters, laws of the model, table II, the command."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny import archsim, tiny_file

from archsim.base.errors import SpecError
from archsim.cli.main import main
from archsim.machine.decision import DecisionSpec
from archsim.specs.library import load_experiment, load_model, load_system
from microarch.blocks.table_sizes import (
    Storage,
    TableDesign,
    bits_to_count,
    shortfalls,
    tables_of,
)
from microarch.silicon.area import AreaAndPower, core_cost, parts_of, table_cost, total
from microarch.silicon.decision_area import added_parts, decision_parts, design_of
from microarch.silicon.memory_area import CELL_UM2, LARGE, MACRO, macro_factor
from microarch.silicon.published_area import (
    PUBLISHED,
    PUBLISHED_TOTAL,
    TOLERANCE,
    deviation,
    explanation,
    published_row,
)
from microarch.silicon.table_designs import misfits, named_coefficients, needed_by, parse_design, published_design
from microarch.silicon.technology import A72, A76, CLOCK, N5, SCALED, TECHNOLOGIES

ROOT = Path(__file__).resolve().parents[2]
KB, MB = 2**10, 2**20
DESIGNS = st.builds(
    TableDesign,
    experts=st.integers(1, 2048),
    layers=st.integers(1, 200),
    dies=st.integers(1, 200),
    hbm_capacity_bytes=st.integers(10**6, 10**12),
    counter_bits=st.integers(1, 32),
    granule_bytes=st.sampled_from([32, 64, 4096]),
    ports=st.integers(1, 4),
)


def on_chip(part) -> bool:
    return part.table is not None and part.table.storage is not Storage.DRAM


def costs(design, technology=N5):
    return {part.name: part.cost for part in parts_of(design, technology)}


def named(design):
    return {table.name: table for table in tables_of(design)}


# Sizes


def test_published_sizes_follow_from_512_experts_25_dies_and_100_layers():
    design = TableDesign(experts=512, dies=25, layers=100, hbm_capacity_bytes=80 * 10**9)
    assert {name: table.size_bytes for name, table in named(design).items()} == {
        "expert distribution table": 4.5 * KB,
        "heatmap cache": 0.5 * MB,
        "heatmap": 50 * MB,
        "prediction table": 128,
        "ATU": 4.25 * KB,
    }


@pytest.mark.parametrize(
    "change, bits",
    [
        ({"dies": 64}, (72, 69)),  # one word of presence bits; ids of 6 bits
        ({"dies": 65}, (8 + 128, 70)),
        ({"dies": 300}, (16 + 320, 72)),
        ({"hbm_capacity_bytes": 180 * 10**9}, (72, 70)),  # an address bit more, twice
        ({"granule_bytes": 4096}, (72, 56)),  # six fewer, twice
        ({"presence_word_bits": 1}, (8 + 25, 68)),
    ],
)
def test_bits_of_an_entry_follow_dies_hbm_and_granules(change, bits):
    tables = named(replace(TableDesign(), **change))
    assert tuple(tables[name].bits_per_entry for name in ("expert distribution table", "ATU")) == bits


@pytest.mark.parametrize("things, bits", [(1, 1), (2, 1), (3, 2), (25, 5), (32, 5), (33, 6), (512, 9)])
def test_an_id_tells_all_things_apart(things, bits):
    assert bits_to_count(things) == bits


@given(DESIGNS, st.integers(1, 512))
def test_tables_grow_with_experts_and_layers(design, more):
    for table, larger in zip(tables_of(design), tables_of(replace(design, experts=design.experts + more)), strict=True):
        assert larger.bits > table.bits
        assert larger.bits_per_entry == table.bits_per_entry
    tables, deeper = named(design), named(replace(design, layers=2 * design.layers))
    assert deeper["heatmap"].bits == 2 * tables["heatmap"].bits == 2 * design.layers * tables["heatmap cache"].bits


@pytest.mark.parametrize("field", ["experts", "ports", "granule_bytes", "clock_hz"])
def test_a_design_of_nothing_is_refused(field):
    with pytest.raises(ValueError, match=field):
        TableDesign(**{field: 0})


# Laws of area and power


@given(DESIGNS)
def test_what_every_die_has_is_linear_in_dies(design):
    one, five = (replace(design, dies=dies) for dies in (25, 30))  # ids of 5 bits for both
    for name in ("prediction table", "ATU", "Local CP (Cortex-A72)"):
        assert costs(five)[name].area_mm2 == pytest.approx(costs(one)[name].area_mm2 * 30 / 25)
        assert costs(five)[name].power_mw == pytest.approx(costs(one)[name].power_mw * 30 / 25)
    assert costs(five)["heatmap cache"] == costs(one)["heatmap cache"]


@given(DESIGNS, st.sampled_from([N5, SCALED]))
def test_area_and_power_never_fall_with_experts_dies_ports_or_layers(design, technology):
    before = costs(design, technology)
    assert before
    for field in ("experts", "dies", "ports", "layers"):
        after = costs(replace(design, **{field: getattr(design, field) + 1}), technology)
        for name, cost in before.items():
            assert after[name].area_mm2 >= cost.area_mm2 * (1 - 1e-12), (field, name)
            assert after[name].power_mw >= cost.power_mw * (1 - 1e-12), (field, name)


@given(DESIGNS)
def test_a_port_costs_area_in_every_table_on_chip(design):
    one, two = (parts_of(replace(design, ports=ports)) for ports in (1, 2))
    pairs = [(part, wider) for part, wider in zip(one, two, strict=True) if on_chip(part)]
    assert pairs
    for part, wider in pairs:
        assert wider.cost.area_mm2 > 1.1 * part.cost.area_mm2


def test_a_table_in_dram_takes_no_area():
    assert costs(TableDesign())["heatmap"] == AreaAndPower(0.0, 0.0)


def test_power_follows_the_clock_but_for_leakage():
    slow, fast = (TableDesign(clock_hz=hz) for hz in (1e9, 2e9))
    parts = parts_of(slow)
    assert any(on_chip(part) for part in parts)
    for part in parts:
        leakage = 0.0
        if part.table is not None and part.table.storage is Storage.SRAM:
            leakage = part.copies * part.table.bits * N5.sram_leakage.value * 1e-6
        expected = 2 * (part.cost.power_mw - leakage) + leakage
        assert costs(fast)[part.name].power_mw == pytest.approx(expected)


@pytest.mark.parametrize("name, storage, share", [
    ("periphery_edge", Storage.SRAM, lambda bits: 103 / math.sqrt(bits) / (1.43 + 103 / math.sqrt(bits))),
    ("periphery", Storage.SRAM, lambda bits: 1.43 / (1.43 + 103 / math.sqrt(bits))),
    ("bitcell", Storage.SRAM, lambda bits: 1.0),
    ("flop", Storage.REGISTERS, lambda bits: 1.0),
    ("flop_port", Storage.REGISTERS, lambda bits: 1.51 / 2.51),
])  # fmt: skip
def test_doubling_a_coefficient_doubles_its_share_of_the_area(name, storage, share):
    twice = replace(N5, **{name: replace(getattr(N5, name), value=2 * getattr(N5, name).value)})
    tables = tables_of(TableDesign())
    assert any(table.storage is storage for table in tables)
    for table in tables:
        before, after = (table_cost(table, 1e9, technology).area_mm2 for technology in (N5, twice))
        expected = 1 + share(table.bits) if table.storage is storage else 1.0
        assert after == pytest.approx(before * expected)


def test_a_coefficient_moves_what_it_is_for_and_nothing_else():
    twice = replace(N5, energy_scale=replace(N5.energy_scale, value=1.4))
    tables = tables_of(TableDesign())
    assert {table.storage for table in tables} >= {Storage.SRAM, Storage.REGISTERS}
    for table in tables:
        before, after = (table_cost(table, 1e9, technology) for technology in (N5, twice))
        assert after.area_mm2 == before.area_mm2
        leakage = table.bits * N5.sram_leakage.value * 1e-6
        dynamic = before.power_mw - leakage if table.storage is Storage.SRAM else 0.0
        assert after.power_mw - before.power_mw == pytest.approx(dynamic)


def test_access_energy_meets_its_sources_and_grows():
    sizes = [8 * 8 * KB, 32 * 8 * KB, 8 * MB]
    assert [N5.access_pj(bits, 64) for bits in sizes] == pytest.approx([0.7 * pj for pj in (7.5, 8.5, 14.0)])
    energies = [N5.access_pj(2**octave, 64) for octave in range(1, 40)]
    assert energies == sorted(energies) and energies[0] >= 0
    assert N5.access_pj(2**20, 128) == 2 * N5.access_pj(2**20, 64)


# Table II


def test_rows_of_table_ii_add_up_as_the_note_says():
    rows = total(PUBLISHED.values())
    assert rows.area_mm2 == pytest.approx(8.63, abs=0.005) and PUBLISHED_TOTAL.area_mm2 == 6.13
    assert rows.power_mw == pytest.approx(PUBLISHED_TOTAL.power_mw, abs=0.005)


@pytest.mark.parametrize("technology", TECHNOLOGIES.values(), ids=TECHNOLOGIES)
def test_every_row_is_within_a_quarter_or_explained(technology):
    design = TableDesign()
    compared = [part for part in parts_of(design, technology) if published_row(part, design)]
    assert {part.name for part in compared} == set(PUBLISHED)
    for part in compared:
        row = published_row(part, design)
        differences = deviation(part.cost.area_mm2, row.area_mm2), deviation(part.cost.power_mw, row.power_mw)
        assert (explanation(part, design, technology) is None) == all(abs(each) <= TOLERANCE for each in differences)


def test_power_and_cores_are_within_a_quarter_and_scaled_areas_too():
    design = TableDesign()
    for technology, of in ((N5, "power_mw"), (SCALED, "area_mm2")):
        rows = {part: row for part in parts_of(design, technology) if (row := published_row(part, design))}
        assert len(rows) == 6
        for part, row in rows.items():
            assert abs(deviation(getattr(part.cost, of), getattr(row, of))) < TOLERANCE, part.name


def test_published_areas_are_smaller_than_their_cells_alone():
    """What the sentences of the command say: no periphery could make up for it."""
    parts = [part for part in parts_of(TableDesign()) if on_chip(part)]
    assert len(parts) == 4
    for part in parts:
        cell = N5.bitcell if part.table.storage is Storage.SRAM else N5.flop
        assert PUBLISHED[part.name].area_mm2 < part.table.bits * part.copies * cell.value * 1e-6


def test_only_tables_of_the_published_size_are_compared():
    names = lambda design: {part.name for part in parts_of(design) if published_row(part, design)}  # noqa: E731
    cores = {"Local CP (Cortex-A72)", "Global CP (Cortex-A76)"}
    assert names(TableDesign(experts=256)) == cores
    assert names(TableDesign(hbm_capacity_bytes=180 * 10**9)) == set(PUBLISHED) - {"ATU"}
    assert names(TableDesign(clock_hz=1e9)) == set()
    design = TableDesign(dies=24)  # the same tables on one die fewer
    row = {part.name: published_row(part, design) for part in parts_of(design)}["ATU"]
    assert row == PUBLISHED["ATU"].times(24 / 25)


def test_clock_of_the_tables_is_the_fitted_one():
    assert TableDesign().clock_hz == CLOCK.value
    assert core_cost(A76, 2 * CLOCK.value).power_mw == 2 * core_cost(A76, CLOCK.value).power_mw
    assert core_cost(A72, CLOCK.value).area_mm2 < core_cost(A76, CLOCK.value).area_mm2


# SRAM by node

# (bits, um2) of one-port ASAP7 macros, hammer-vlsi 1.2.0: from the smallest to the largest, the farthest from the law
MACROS = (
    (512, 33.4), (1024, 61.1), (2048, 116.3), (4096, 221.5), (8192, 430.8), (16384, 839.9), (16384, 863.1),
    (32768, 1654.5), (32768, 1885.1), (65536, 3267.6), (65536, 3307.6),
)  # fmt: skip


def test_the_macro_factor_is_that_of_macros_and_of_large_arrays():
    for bits, um2 in MACROS:
        assert bits * CELL_UM2["ASAP7"].value * macro_factor(bits) == pytest.approx(um2, rel=0.12)
    assert 1e6 / (31.8 * 2**20) / CELL_UM2["N5"].value == pytest.approx(LARGE.value, rel=0.01)


def test_cells_shrink_with_the_node_and_n5_is_that_of_the_model():
    cells = [CELL_UM2[node].value for node in ("N16", "N7", "N5", "N3B", "N2")]
    assert cells == sorted(cells, reverse=True) and CELL_UM2["N5"].value == N5.bitcell.value
    assert LARGE.value < 1 / CELL_UM2["N2"].value / 38 < MACRO.value  # TSMC's 38 Mb/mm2 of N2 are macros


# What a system's decision asks for


def deciding(**decision):
    return load_system("dojo").model_copy(update={"decision": DecisionSpec.model_validate(decision)})


def cost_of(system):
    return total(part.cost for part in decision_parts(system.decision, design_of(system)))


@pytest.mark.parametrize("less, more", [
    ({"fsm": {"lanes": 8}}, {"fsm": {"lanes": 16}}),
    ({"fsm": {"comparators": 32}}, {"fsm": {"comparators": 64}}),
    ({"fsm": {"sorter": "bitonic"}}, {"fsm": {"sorter": "merge"}}),
    ({"fsm": {"heatmap_port_bits": 64}}, {"fsm": {"heatmap_port_bits": 512}}),
    ({"atu_ways": 4}, {"atu_ways": 8}),
    ({"atu_entries": 512}, {"atu_entries": 1024}),
    ({"atu_entries": 64}, {"atu_entries": 512}),
    ({"executor": "host"}, {"executor": "fsm"}),
    ({"executor": "fsm"}, {"executor": "firmware"}),
    ({"executor": "firmware", "firmware": {"core": "a72"}}, {"executor": "firmware", "firmware": {"core": "a76"}}),
])  # fmt: skip
def test_more_of_what_decides_takes_more_area_and_power(less, more):
    small, large = cost_of(deciding(**less)), cost_of(deciding(**more))
    assert small.area_mm2 < large.area_mm2 and small.power_mw < large.power_mw


@pytest.mark.parametrize("field, few, many", [("table_port_bits", 36, 72), ("prediction_port_bits", 8, 16)])
def test_a_wider_port_takes_no_area_and_no_less_power(field, few, many):
    narrow, wide = (cost_of(deciding(fsm={field: bits})) for bits in (few, many))
    assert narrow.area_mm2 == wide.area_mm2
    assert narrow.power_mw < wide.power_mw if field != "prediction_port_bits" else narrow == wide


def test_a_quicker_clock_takes_power_and_no_area():
    slow, fast = (cost_of(deciding(fsm={"clock": clock}, local_clock=clock)) for clock in ("1 GHz", "2 GHz"))
    assert slow.area_mm2 == fast.area_mm2
    assert 1.9 * slow.power_mw < fast.power_mw < 2 * slow.power_mw  # leakage stays
    slow, fast = (cost_of(deciding(executor="firmware", firmware={"clock": clock})) for clock in ("1 GHz", "2 GHz"))
    assert slow.area_mm2 == fast.area_mm2 and slow.power_mw < fast.power_mw


def test_each_of_the_deciders_has_its_own_silicon():
    names = {
        executor: {part.name for part in decision_parts(system.decision, design_of(system))}
        for executor in ("fsm", "firmware", "host")
        for system in [deciding(executor=executor)]
    }
    on_dies = {"prediction table", "ATU", "ATU: order of use", "Local CP (Cortex-A72)"}
    tables = on_dies | {"expert distribution table", "heatmap cache", "heatmap"}
    assert names["host"] == on_dies
    assert names["firmware"] == tables | {"Global CP (Cortex-A76)"}
    assert names["fsm"] == tables | {
        "PDU: second register",
        *(f"Global CP: {name}" for name in ("lanes", "candidates", "comparators", "heatmap adders", "sorter")),
    }


def test_a_strategy_adds_what_it_needs_and_no_more():
    system = deciding()
    added = {(a, p): {part.name for part in added_parts(system, a, p)} for a in (False, True) for p in (False, True)}
    assert added[False, False] == set()
    of_prediction = {"prediction table", "heatmap cache", "PDU: second register", "Global CP: heatmap adders"}
    assert added[True, True] - added[True, False] == of_prediction
    assert added[True, True] - added[False, True] == {"expert distribution table"}
    assert "ATU" in added[True, False] & added[False, True]


def test_table_ii_is_compared_on_its_own_parameters_whatever_decides():
    plain, other = (
        deciding(),
        deciding(executor="firmware", firmware={"core": "a72"}, atu_entries=64, fsm={"clock": "1 GHz"}),
    )
    assert published_design(plain, {}) == published_design(other, {}) == TableDesign()
    assert (
        design_of(plain).clock_hz == 2e9
        and replace(design_of(plain), clock_hz=2.5e9, atu_entries=None) == TableDesign()
    )
    assert design_of(plain, {"clock_hz": 1e9}).clock_hz == 1e9


# What fits


def test_a_model_that_needs_more_says_which_entries_and_bits():
    experiment = load_experiment(
        ROOT / "configs" / "dojo.yaml", ["models.0.experts=600", "models.1.moe_layers.last=93"]
    )
    lines = list(misfits(experiment.models, TableDesign()))
    assert lines == [
        "deepseek-v3 does not fit the prediction table: 88 entries × 2 bit = 176 bits more on each of 25 dies, for "
        "experts 512 to 599",
        "deepseek-v3 does not fit the ATU: 88 entries × 68 bit = 5,984 bits more on each of 25 dies, for experts 512 "
        "to 599",
        "deepseek-v3 does not fit the expert distribution table: 88 entries × 72 bit = 6,336 bits more, for experts "
        "512 to 599",
        "deepseek-v3 does not fit the heatmap cache: 97,856 entries × 16 bit = 1,565,696 bits more, for 600 × 600 "
        "counters, per layer",
    ]


@given(DESIGNS, DESIGNS)
def test_shortfall_is_the_difference_of_two_tables(built, needed):
    short = {each.table.name: each.entries for each in shortfalls(built, needed)}
    missing = {
        table.name: max(0, other.entries - table.entries)
        for table, other in zip(tables_of(built), tables_of(needed), strict=True)
    }
    assert short == {name: entries for name, entries in missing.items() if entries}


def test_tables_for_a_model_have_its_experts_and_layers():
    needed = needed_by(load_model("kimi-k2"), TableDesign())
    assert (needed.experts, needed.layers, needed.dies) == (384, 60, 25)
    assert shortfalls(TableDesign(), needed) == ()


# The command


def test_design_follows_the_system_and_the_options():
    design = design_of(load_system("dojo_enhanced"), parse_design(["experts=1024", "ports=2", "clock_hz=1e9"]))
    assert (design.dies, design.hbm_capacity_bytes) == (25, 180 * 10**9)
    assert (design.experts, design.ports, design.clock_hz) == (1024, 2, 1e9)


@pytest.mark.parametrize("text, problem", [
    ("experts", "expected KEY=VALUE"),
    ("expert=3", "did you mean 'experts'"),
    ("dies=3", "derived from the system"),
    ("ports=many", "invalid literal"),
    ("ports=0", "must be above 0"),
])  # fmt: skip
def test_a_bad_design_is_refused(text, problem):
    with pytest.raises(SpecError, match=problem):
        parse_design([text])


def test_command_prints_tables_deviations_and_sentences(tmp_path):
    ended = archsim(ROOT, "area", "configs/dojo.yaml")
    assert ended.returncode == 0, ended.stderr
    rows = {line[:26].strip(): line for line in ended.stdout.splitlines()}
    for name, size in [("prediction table", "128 B"), ("ATU", "4.25 KB"), ("expert distribution table", "4.5 KB")]:
        assert size in rows[name] and "table II" not in rows[name]
    assert "0.5 MB" in rows["heatmap cache"] and "50 MB" in rows["heatmap"]
    for name, row in PUBLISHED.items():
        assert f"{row.area_mm2:.4f}" in rows[name] and f"{row.power_mw:.2f}" in rows[name]
    assert "prints a total area of 6.13 mm², but its rows add up to 8.63 mm²" in ended.stdout
    assert ended.stdout.count("as if scaled by the node's name") == 4
    assert "does not fit" not in ended.stdout


def test_command_prints_sums_of_its_rows(capsys):
    file = ROOT / "configs" / "dojo.yaml"
    experiment = load_experiment(file)
    assert main(["area", str(file)]) == 0
    configured, published = (
        line.split()[3:5] for line in capsys.readouterr().out.splitlines() if line.strip().startswith("sum of rows")
    )
    (system,) = experiment.systems
    for sums, parts in (
        (configured, decision_parts(system.decision, design_of(system))),
        (published, parts_of(TableDesign())),
    ):
        expected = total(part.cost for part in parts)
        assert sums == [f"{expected.area_mm2:.4f}", f"{expected.power_mw:.2f}"]


def test_command_has_a_table_for_every_system_and_follows_overrides(tmp_path, capsys):
    changes = ["--set", "systems.0.mesh.x=5", "--set", "models.0.experts=900"]
    assert main(["area", str(tiny_file(tmp_path)), *changes, "--sources"]) == 0
    out = capsys.readouterr().out
    assert "small, decided by state machine, 8 lanes at 0.85 GHz: tables for 512 experts, 100 layers, 10 dies" in out
    assert "small, table II: published cores" in out and "square, decided by" in out
    assert out.count("toy does not fit the ATU: 388 entries") == 2
    assert "WikiChip" in out


def test_command_reads_the_decision(tmp_path, capsys):
    tiny_area = lambda change: main(["area", str(tiny_file(tmp_path)), "--set", change])  # noqa: E731
    tiny_area("systems.0.decision={executor: firmware, firmware: {core: a72, clock: 1 GHz}, atu_entries: 4}")
    out = capsys.readouterr().out
    assert "small, decided by firmware on Cortex-A72 at 1 GHz" in out and "Global CP (Cortex-A72)" in out
    assert "toy does not fit the ATU: 12 entries × 56 bit = 672 bits more on each of 6 dies, for experts 4 to 15" in out
    tiny_area("systems.0.decision.executor=host")
    out = capsys.readouterr().out
    assert "there is no Global CP on the wafer" in out


def test_user_errors_end_with_two(tmp_path):
    tiny_file(tmp_path)
    ended = archsim(tmp_path, "area", "tiny.yaml", "--design", "prots=2")
    assert ended.returncode == 2 and "did you mean 'ports'" in ended.stderr and ended.stdout == ""


def test_sources_are_printed_for_every_coefficient(tmp_path, capsys):
    assert main(["area", str(tiny_file(tmp_path)), "--sources"]) == 0
    out = capsys.readouterr().out
    coefficients = dict(named_coefficients(N5))
    assert len(coefficients) == 34
    for name, coefficient in coefficients.items():
        assert name in out and f"{coefficient.value:g}" in out, name
        assert coefficient.source and coefficient.unit
