"""A user's own block on a die's way of weight slices, from a system file to the run's time."""

import numpy as np
import pytest
from support.small_runs import demand_of, policy, replay, small_model, small_system
from support.tiny import TINY

from archsim.base.errors import ArchsimError
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.engine import EventEngine
from archsim.runs.plan import prepare
from archsim.runs.simulator import Simulator
from archsim.specs.loading.library import load_assumptions, load_experiment
from archsim.specs.machine.blocks import BlockSpec

SLICES = 3


def expand(n_bytes, expand_ns=500.0):
    """A decompressor that takes as long for every slice."""
    return np.full(len(n_bytes), expand_ns)


def negative(n_bytes):
    return -np.ones(len(n_bytes))


def too_few(n_bytes):
    return np.ones(len(n_bytes) + 1)


def run(blocks, engine=EventEngine, **changes):
    """One expert on one die whose LLC has room for one slice: fetch, compute, fetch, compute, fetch, compute."""
    model = small_model(experts=1, top_k=1, shared_experts=0)
    slice_bytes = model.hidden * model.expert_ffn
    system = small_system(1, 1, llc={"capacity_bytes": slice_bytes, "segment_bytes": slice_bytes}).model_copy(
        update={"blocks": tuple(BlockSpec.model_validate(block) for block in blocks)}
    )
    spec = policy("ep")
    assumptions = load_assumptions("physical", **{"activations": "ignored", "decision_cost": "free"} | changes)
    demand = demand_of(model, system, spec, batch=300, decode_steps=1)
    return slice_bytes, replay(system, model, spec, assumptions, demand, engine=engine).run().step_ns


@pytest.mark.parametrize("engine", [EventEngine, AnalyticalEngine])
@pytest.mark.parametrize("changes", [{}, {"gemm": "roofline"}, {"contention": "reserved"}], ids=str)
def test_a_block_on_the_critical_path_adds_its_time_to_every_slice(engine, changes):
    _, plain = run([], engine, **changes)
    assert plain.size > 0 and (plain > 0).all()
    _, slower = run([{"name": "test_own_blocks:expand", "expand_ns": 500.0}], engine, **changes)
    assert slower - plain == pytest.approx(SLICES * 500.0, rel=1e-9)


def test_bandwidth_is_charged_by_bytes_and_blocks_add_up():
    slice_bytes, plain = run([])
    _, slower = run(
        ["test_own_blocks:expand", {"name": "test_own_blocks:expand", "bandwidth": "1 TB/s", "expand_ns": 10.0}]
    )
    assert slower - plain == pytest.approx(SLICES * (510.0 + slice_bytes / 1000), rel=1e-9)


def test_a_block_that_takes_no_time_changes_nothing():
    assert run([])[1].tobytes() == run([{"name": "test_own_blocks:expand", "expand_ns": 0.0}])[1].tobytes()


@pytest.mark.parametrize("function", ["negative", "too_few"])
def test_what_is_no_time_is_told(function):
    with pytest.raises(
        ArchsimError, match=f"test_own_blocks:{function}: expected ns for 1 entries, finite and not negative"
    ):
        run([f"test_own_blocks:{function}"])


def prepared(folder, block):
    file = folder / "mine.yaml"
    text = TINY.replace("  d2d: {bandwidth: 1 TB/s}\n", f"  d2d: {{bandwidth: 1 TB/s}}\n  blocks: {block}\n", 1)
    file.write_text(text.replace("assumptions: published", "assumptions: physical"), encoding="utf-8")
    return prepare(load_experiment(file, ["policies=[ep]", "workload.batch=[12]"])).runs[0]


def test_a_system_file_names_it_and_its_code_is_part_of_the_run(tmp_path, monkeypatch):
    (tmp_path / "outside_block.py").write_text(
        "import numpy as np\n\ndef slow(n_bytes, ns):\n    return np.full(len(n_bytes), ns)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plain, slow, slower = (
        prepared(tmp_path, block)
        for block in ("[]", "[{name: 'outside_block:slow', ns: 1000.0}]", "[{name: 'outside_block:slow', ns: 2000.0}]")
    )
    assert len({each.key for each in (plain, slow, slower)}) == 3
    assert slow.code == slower.code != plain.code
    times = [Simulator().record(each)["row"]["decode_ns"] for each in (plain, slow, slower)]
    assert times[0] < times[1] < times[2]


def test_a_block_that_cannot_be_imported_is_told_with_its_place(tmp_path):
    with pytest.raises(ArchsimError, match=r"mine.yaml:\d+: systems.0.blocks.0.*cannot import module 'nowhere'"):
        prepared(tmp_path, "['nowhere:block']")
