"""One contract for all hardware blocks; their parameters; what ``archsim hardware blocks`` shows of them."""

import dataclasses
import importlib
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from support import decompressor
from support.contract import check_arrays, check_block, check_runs, check_walks
from support.small_runs import policy, scenario_of
from support.tiny import archsim

from archsim.engine.machine import build_machine
from archsim.show.blocks import DIAGRAMS, diagram_of, overview
from archsim.specs.library import load_assumptions, load_model, load_system
from microarch.blocks import catalogue as blocks
from microarch.blocks import hbm, link, llc
from microarch.blocks.request import Event, State, Unit

DOCS = Path(__file__).resolve().parents[2] / "docs" / "blocks"
NAMES = [*blocks.TABLES]
WHOLE = [blocks.REQUEST, blocks.TABLES["local_cp"], blocks.TABLES["global_cp"]]


def module(name):
    return importlib.import_module(f"microarch.blocks.{name}")


@pytest.mark.parametrize("name", NAMES)
def test_every_block_keeps_the_contract(name):
    check_block(module(name), blocks.TABLES[name])


@pytest.mark.parametrize("table", WHOLE, ids=lambda table: table.name)
def test_whole_tables_reach_every_state_and_drain(table):
    check_arrays(table)
    check_runs(table)
    check_walks(table)


def test_every_state_of_a_request_is_served_by_one_block():
    owners = [state for block in blocks.REQUEST_BLOCKS for state in block.SERVES]
    assert sorted(owners) == sorted(set(State) - {State.DONE})
    assert blocks.SERVED_BY[State.DONE] == Unit.NONE
    for block in blocks.REQUEST_BLOCKS:
        assert {state for state, _ in block.STEPS} == set(block.SERVES)
        assert all(event in Event for _, event in block.STEPS)


def parameters_of(block, system):
    """The ``Parameters`` class of a block with the values of a ``SystemSpec``."""
    return block(**{field.name: _value(system, field.metadata["key"]) for field in dataclasses.fields(block)})


def _value(spec, key):
    """The value of ``spec`` under a path of YAML keys."""
    for part in key.split("."):
        fields = type(spec).model_fields
        spec = getattr(spec, next(name for name, field in fields.items() if part in (name, field.alias)))
    return spec


@pytest.mark.parametrize("name", NAMES)
def test_default_parameters_are_those_of_dojo(name):
    block = module(name).Parameters
    assert parameters_of(block, load_system("dojo")) == block()


@pytest.mark.parametrize("system", ["dojo", "dojo_enhanced", "tsmc_sow"])
def test_the_engine_takes_the_parameters_of_the_blocks(system):
    spec = load_system(system)
    machine, _ = build_machine(scenario_of(spec, load_model("deepseek-v3"), policy("ep"), load_assumptions("physical")))
    memory, cache, links = (parameters_of(block.Parameters, spec) for block in (hbm, llc, link))
    assert (machine.hbm_latency_ns, machine.hbm_bytes_per_ns) == (memory.latency_ns, memory.bytes_per_ns)
    assert (machine.llc_hit_ns, machine.llc_miss_ns, machine.llc_write_ns) == (
        cache.hit_ns,
        cache.miss_ns,
        cache.write_ns,
    )
    assert (machine.hop_ns, machine.link_bytes_per_ns) == (links.hop_ns, links.bytes_per_ns)
    assert machine.request_bytes == links.request_bytes


def test_command_prints_all_blocks_and_one(tmp_path):
    everything = archsim(tmp_path, "blocks").stdout
    for name, table in blocks.TABLES.items():
        assert f"{name}: " in everything
        assert all(state.name in everything for state, _ in table.steps)
    pdu = archsim(tmp_path, "blocks", "pdu").stdout
    assert "cp_en: uint8[die, expert]" in pdu and "decision.fsm.prediction_port_bits" in pdu and "KEEP" in pdu


def test_command_writes_a_diagram_with_every_transition(tmp_path):
    assert archsim(tmp_path, "blocks", "pdu", "--diagram", "pdu.svg").returncode == 0
    drawn = ET.parse(tmp_path / "pdu.svg").getroot()
    words = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"DATA", "SERVED", "KEEP", "COMPUTE", "COPY", "(compute)", "(hbm)"} <= set(words)


def test_command_refuses_unknown_blocks_and_a_diagram_of_none(tmp_path):
    unknown = archsim(tmp_path, "blocks", "pdux")
    assert unknown.returncode == 2 and "did you mean 'pdu'" in unknown.stderr
    assert archsim(tmp_path, "blocks", "--diagram", "x.svg").returncode == 2


@pytest.mark.parametrize("name", DIAGRAMS)
def test_diagram_in_docs_is_up_to_date(name):
    assert (DOCS / f"{name}.svg").read_text(encoding="utf-8") == diagram_of(name), (
        "archsim hardware blocks --out docs/blocks"
    )


@pytest.mark.parametrize("name", DIAGRAMS)
def test_boxes_of_a_diagram_do_not_overlap(name):
    boxes = [
        tuple(float(box.get(key)) for key in ("x", "y", "width", "height"))
        for box in ET.fromstring(diagram_of(name)).iter("{http://www.w3.org/2000/svg}rect")
        if box.get("class") != "paper"
    ]
    assert len(boxes) > len(DIAGRAMS[name].steps)
    for i, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[:i]:
            apart_x = x >= other_x + other_width or other_x >= x + width
            apart_y = y >= other_y + other_height or other_y >= y + height
            assert apart_x or apart_y


# The recipe of docs/blocks.md, followed from outside the package with ``tests/support/decompressor.py``.


def test_the_block_keeps_the_contract_and_the_whole_table_drains():
    check_block(decompressor, decompressor.TABLE)
    check_arrays(decompressor.REQUEST)
    check_runs(decompressor.REQUEST)
    check_walks(decompressor.REQUEST)


def test_the_overview_says_of_each_block_a_whole_sentence():
    first = [line for line in overview().splitlines() if line.partition(":")[0] in DIAGRAMS]
    assert len(first) == len(DIAGRAMS) and [line for line in first if not line.endswith(".")] == []
