"""A machine as it is made: packages, pieces, nodes, kinds of memory; and chips that exist, beside what is computed."""

from pathlib import Path

import pytest

from archsim.base.errors import SpecError
from archsim.base.yaml import read_yaml
from archsim.cli.main import main
from archsim.evidence import known_chips
from archsim.evidence.known_chips import known_figures
from archsim.machine.system import SystemSpec
from archsim.runs.energy import full_load_w
from archsim.runs.prices import Coefficients, build_costs, making_notes, refuse_unbuildable
from archsim.specs.library import load_system
from microarch.silicon.cost import CARRIER_MM2, dies_per_wafer

DIE = """name: own
source: test
mesh: {{x: {x}, y: {y}}}
hbm: {{{hbm}}}
d2d: {{bandwidth: 1.5 TB/s, hop_latency: 200 ns}}
llc: {{capacity: 64 MiB}}
compute: {{peak: 1000 TFLOP/s, dtype: fp8}}
{more}
"""
HBM = "bandwidth: 2 TB/s, capacity: 80 GB"


def system(tmp_path, hbm=HBM, x=1, y=1, more=""):
    file = tmp_path / "own.yaml"
    text = DIE.format(hbm=hbm, x=x, y=y, more=more)
    file.write_text(text if hbm else text.replace("hbm: {}\n", ""))
    return load_system(str(file))


def usd(machine):
    return sum(float(each) for each in machine.usd.values())


PEAK = "arrays at their peak"
OUTSIDE = {("B200", "waiting"), ("Cerebras WSE-3", "area"), ("Groq LPU", "area")} | {
    (chip, PEAK) for chip in ("Tesla D1", "Groq LPU", "TSMC SoW-X")
}  # fmt: skip


def test_chips_that_exist_are_within_their_bars_or_say_why():
    found = list(known_figures(served=False))
    assert {each.chip for each in found} >= {"H100 SXM", "H200 SXM", "B200", "MI300X", "Tesla D1", "Cerebras WSE-3"}
    outside = [each for each in found if not each.within]
    assert len(found) == 37 and all(each.why and each.source for each in outside)
    capped = [each for each in found if each.unit == "%"]  # rates at a power limit
    assert len(capped) == 4 and sum(each.within for each in capped) >= 3 and {
        (each.chip, each.what) for each in set(outside) - set(capped)
    } <= OUTSIDE  # fmt: skip
    assert all(each.low < each.found < each.high for each in capped)
    prices = [each for each in found if each.unit == "USD"]
    assert len(prices) == 4 and all(each.within for each in prices)


def test_arrays_at_their_peak_do_what_the_file_of_the_machine_says():
    for chip in read_yaml(Path(known_chips.__file__).with_suffix(".yaml")).data["chips"]:
        for figure in (each for each in chip["figures"] if each["what"] == PEAK):
            given = chip["system"]
            system = load_system(given) if isinstance(given, str) else SystemSpec.model_validate(given)
            peak = system.compute.peak_flop_per_s * (system.sites if chip.get("whole") else 1)
            assert 1e12 * figure["tflop_per_s"] == pytest.approx(peak, rel=0.01), chip["chip"]
            assert (figure["bytes"] == 2) == (system.compute.dtype in ("bf16", "fp16"))
    cores, lanes = 900_000, 8  # of a WSE-3: multiply-adds of 16 bits a cycle (The Next Platform, March 2024)
    wafer = load_system("wse3")
    assert 0.85e9 < wafer.sites * wafer.compute.peak_flop_per_s / (2 * cores * lanes) < 1.15e9  # clock


def test_a_read_of_sram_crosses_no_cut_between_pieces(tmp_path):
    """21 PB/s of 46,000 mm² at 0.109 pJ a bit; the same wafer of one piece a die draws no less."""
    sram = "kind: sram, bandwidth: 656 TB/s, capacity: 1.375 GB"
    one, five = (system(tmp_path, sram, 8, 4, f"made: {{carrier: wafer, area: 800 mm2, pieces: {n}}}") for n in (1, 5))
    assert full_load_w(build_costs(five)) == pytest.approx(full_load_w(build_costs(one)), rel=1e-6)


def test_a_package_pays_for_its_share_of_a_wafer_and_loses_alone(tmp_path):
    """59 packages of 864 mm² are cut from a wafer of 4,000 USD; of eight, a failed bond loses one."""
    one = build_costs(system(tmp_path))
    share = 4000 / dies_per_wafer(one.carrier_mm2)
    assert one.usd["carrier"] == pytest.approx(share) and 900 < usd(one) < 1300
    wafer = build_costs(system(tmp_path, more="made: {carrier: wafer}"))
    assert wafer.usd["carrier"] == 4000 and wafer.carriers == 1
    node = build_costs(load_system("h100_node"))
    parts = sum(float(each) for name, each in node.usd.items() if name not in ("bonding", "assembly"))
    bonds = node.pieces + node.stacks_per_die
    assert node.usd["bonding"] == pytest.approx(parts * ((1 - 0.0014) ** -bonds - 1))
    assert node.carriers == 8 and node.pieces == 1 and node.die_mm2 == pytest.approx(814)


@pytest.mark.parametrize(
    ("hbm", "number"),
    [("bandwidth: 2 TB/s, capacity: 96 GiB", 4), ("bandwidth: 2 TB/s, capacity: 97 GiB", 5),
     ("kind: hbm3e, bandwidth: 8 TB/s, capacity: 180 GB", 7),
     ("kind: lpddr5x, bandwidth: 0.6 TB/s, capacity: 768 GB", 0),
     ("kind: sram, bandwidth: 250 TB/s, capacity: 524 MB", 0)],
)  # fmt: skip
def test_memories_stand_where_they_belong(tmp_path, hbm, number):
    assert build_costs(system(tmp_path, hbm)).stacks_per_die == number


def test_a_wafer_of_sram_is_one_wafer_without_stacks(tmp_path):
    """Numbers of a WSE-3 by die: 44 GB at 21 PB/s, where HBM would need 306 stacks a die."""
    sram = "bandwidth: 250 TB/s, capacity: 524 MB"
    found = build_costs(system(tmp_path, f"kind: sram, {sram}", 12, 7))
    assert found.carriers == 1 and found.usd["hbm"] == 0 and found.silicon_mm2 < CARRIER_MM2
    assert full_load_w(found) < 100e3 and not list(making_notes(found))
    with pytest.raises(SpecError, match="306.*kind: sram"):
        refuse_unbuildable(build_costs(system(tmp_path, sram, 12, 7)))
    card = build_costs(system(tmp_path, "kind: lpddr5x, bandwidth: 0.6 TB/s, capacity: 768 GB", 2, 2))
    assert 9000 <= card.usd["hbm"] <= 18000 and usd(card) < 20000


def test_a_die_has_room_for_what_is_in_it_and_a_wafer_for_the_die(tmp_path):
    small = system(tmp_path, "kind: sram, bandwidth: 80 TB/s, capacity: 2 GB", more="made: {area: 100 mm2}")
    (note,) = making_notes(build_costs(small))
    assert "made.area: 100 mm²" in note and "less than" in note
    uncut = system(tmp_path, "kind: sram, bandwidth: 21 PB/s, capacity: 440 GB", more="made: {carrier: monolithic}")
    with pytest.raises(SpecError, match="hbm.*46,225"):
        refuse_unbuildable(build_costs(uncut))


def test_what_has_no_room_on_the_edge_of_a_die_is_told(tmp_path):
    (note,) = making_notes(build_costs(system(tmp_path, "bandwidth: 8 TB/s, capacity: 240 GB", 5, 5)))
    assert "117 mm" in note and "91 mm" in note and "edge" in note
    for name in ("dojo", "dojo_enhanced", "tsmc_sow", "sow_x", "h100_node", "gb200_nvl72", "mi300x_node"):
        assert not list(making_notes(build_costs(load_system(name)))), name


def test_nodes_scale_area_energy_and_price(tmp_path):
    old, plain, new = (
        build_costs(system(tmp_path, more=f"made: {{node: {node}}}" if node else "")) for node in ("n7", "", "n3")
    )
    assert old.area_mm2["compute"] > plain.area_mm2["compute"] > new.area_mm2["compute"]
    assert old.area_mm2["hbm"] == plain.area_mm2["hbm"] == new.area_mm2["hbm"]
    assert full_load_w(old) > full_load_w(plain) > full_load_w(new)
    known = Coefficients().change({"wafer_usd": 20000.0})  # a user's stays as given
    assert known.of(old.system).cost.wafer_usd.value == 20000.0
    assert Coefficients().of(plain.system) == Coefficients()


TIER = "{{kind: {}, capacity: 80 GB, bandwidth: 2 TB/s{}}}"


def test_a_memory_of_tiers_has_one_owner(tmp_path):
    first, second = TIER.format("hbm3e", ""), TIER.format("lpddr5x", "")
    found = system(tmp_path, "", more=f"memory: [{first}, {second}]")
    assert found.hbm.kind == "hbm3e" and [each.kind for each in found.memory] == ["lpddr5x"]
    again = type(found).model_validate(found.model_dump(by_alias=True))
    assert again == found
    alone = build_costs(system(tmp_path, "", more=f"memory: [{first}]"))
    beside = build_costs(found)
    assert beside.usd["beside"] == pytest.approx(80 * 4.5) and usd(beside) > usd(alone)
    assert any("keeps nothing" in note for note in making_notes(beside))


@pytest.mark.parametrize(
    ("hbm", "more", "key"),
    [
        ("", "memory: [{kind: sram, capacity: 500 MB}]", "memory.0.bandwidth"),
        ("", f"memory: [{TIER.format('hbm3', ', keeps: [weights]')}, {TIER.format('sram', ', keeps: [weights]')}]",
         "memory.1.keeps"),
        ("", f"memory: [{TIER.format('hbm3', ', keeps: [weights]')}, {TIER.format('lpddr5x', ', keeps: [kv]')}]",
         "memory.1.keeps"),
        (HBM, f"memory: [{TIER.format('sram', ', keeps: [kv]')}]", "memory.0.keeps"),
        (HBM, "made: {area: 1600 mm2, pieces: 1}", "made.pieces"),
        (HBM, "made: {node: n1}", "made.node"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_refused_with_its_key(tmp_path, hbm, more, key):
    with pytest.raises(SpecError, match=key.replace(".", r"\.")):
        system(tmp_path, hbm, more=more)


# As architects write them, and where: a key of the system, of its memory, its links, its cache or its array.
WRITTEN = {
    "": "node process tdp die_area chiplets package io_dies reticle stitching yield defect_density redundancy stacks "
        "dft vrm pdn tsv optics cpo noc interconnect host pcie ssd warpage aging cost bom voltage dvfs leakage pue "
        "security foundry transistors substrate wafer_diameter v_cache sram_mb vf_curve dvfs_domains board_power "
        "junction liquid_cooling binning spare_dies mttf dma tlb coherence qos in_network_reduction link_width "
        "wafer_count emib rdl_layers pump immersion tj_max guardband wear_leveling parity crossbar arbiter page_table "
        "hbm_cost hbm_price power_density fin_pitch gate_pitch memory_bandwidth kv_memory io_power spare_rows "
        "gpus mesh_x peak",
    "hbm": "banks refresh trefi ecc channels page_policy stack_height energy_per_bit generation "
        "pins data_rate bus_width cas timing controllers pim bandwidth_per_stack price_per_gb version "
        "stack_bandwidth retention layers",
    "d2d": "lanes serdes fec ber retry phy distance virtual_channels flit energy_per_bit "
        "pitch beachfront links_per_edge bandwidth_per_link modulation protocol latency lane_count "
        "jitter degree duplex",
    "llc": "llc_bandwidth l1 sharing slices line_size prefetcher bandwidth ports inclusive size miss_penalty hit_rate",
    "compute": "frequency tensor_cores sms systolic_array sparsity tops precision vdd "
        "fp16 peak_bf16 clock_mhz tile_size mfu warps pj_per_flop clock_rate peak_fp4 macs",
    "spares": "cores links",
    "dies_as_built": "dead_links dead_cores dead_dies binning yield defects hbm clock sigma",
    "links_as_built": "dead_links dead_dies ber bandwidth ports weak",
    "drawn": "d0 alpha defect_density bond_loss yield samples wafer_count link_loss",
    "decision": "latency cpu host_latency pcie clock area",
}  # fmt: skip


def test_terms_of_architects_are_keys_or_say_what_to_write(tmp_path):
    """Each with one sentence on what to write instead: neither a bare list of keys nor a guess."""
    file, told = tmp_path / "own.yaml", 0
    for part, terms in WRITTEN.items():
        for term in terms.split():
            text = DIE.format(hbm=HBM, x=1, y=1, more="")
            line = f"{term}: 5\n"
            text = (
                text.replace(f"{part}: {{", f"{part}: {{{term}: 5, ")
                if part and f"{part}: {{" in text
                else (text + (f"{part}: {{{line.strip()}}}\n" if part else line))
            )
            file.write_text(text)
            try:
                load_system(str(file))
                raise AssertionError(f"{part}.{term} is taken")
            except SpecError as error:
                problem = error
            said, place = str(problem), f"{part}.{term}" if part else term
            assert f"{place}: unknown key; " in said and "did you mean" not in said and "(known:" not in said, said
            told += 1
    assert told >= 45


@pytest.mark.parametrize(
    "change", ["bond_loss=1", "test_share=10", "defects_per_cm2=1e6", "wafer_usd=0", "bond_loss=-0.1"]
)
def test_impossible_coefficients_are_refused_by_name(change, capsys):
    assert main(["hardware", "cost", "dojo", "--coefficient", change]) == 2
    assert change.split("=")[0] in capsys.readouterr().err


def test_a_perfect_process_is_allowed(capsys):
    changes = [f"--coefficient={name}=0" for name in ("defects_per_cm2", "bond_loss")]
    assert main(["hardware", "cost", "dojo", *changes]) == 0
