"""A user's own block on a die's way of weight slices, from a system file to the run's time."""

import numpy as np
import pytest
from support.small_runs import demand_of, policy, replay, small_model, small_system
from support.tiny import TINY

from archsim.base.errors import ArchsimError
from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.engine import EventEngine
from archsim.engine.interpreted.engine import InterpretedEngine
from archsim.machine.blocks import BlockSpec
from archsim.runs.plan import prepare, select
from archsim.runs.simulator import Simulator
from archsim.specs.library import load_assumptions, load_experiment
from microarch.blocks.request import Event, State

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
    with pytest.raises(ArchsimError, match=rf"test_own_blocks:{function}\b.* 1 "):
        run([f"test_own_blocks:{function}"])


def experiment_with(folder, block, *overrides):
    file = folder / "mine.yaml"
    text = TINY.replace("  d2d: {bandwidth: 1 TB/s}\n", f"  d2d: {{bandwidth: 1 TB/s}}\n  blocks: {block}\n", 1)
    file.write_text(text.replace("assumptions: published", "assumptions: physical"), encoding="utf-8")
    return load_experiment(file, ["policies=[ep]", "workload.batch=[12]", *overrides])


def prepared(folder, block):
    return prepare(experiment_with(folder, block)).runs[0]


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
    with pytest.raises(ArchsimError, match=r"mine.yaml:\d+: systems.0.blocks.0.*'nowhere'"):
        prepared(tmp_path, "['nowhere:block']")


class Expander:
    """A block with a state: every slice after the first of a die takes twice as long."""

    def __init__(self, expand_ns=500.0, slower=1.0):
        self.expand_ns, self.slower, self.seen = expand_ns, slower, set()

    def serve(self, request, now):
        factor = self.slower if request.die in self.seen else 1.0
        self.seen.add(request.die)
        return None, self.expand_ns * factor


class NeverKeep:
    """In the place of the PDU: no slice is kept."""

    SERVES = (State.DATA,)

    def __init__(self, shipped):
        self.shipped = shipped

    def serve(self, request, now):
        return Event.SERVED, self.shipped.serve(request, now)[1]


class NoEvent:
    """In the place of the PDU: it never says what ends the state."""

    SERVES = (State.DATA,)

    def __init__(self, shipped, event=None):
        self.event = event

    def serve(self, request, now):
        return self.event, 1.0


class WrongEvent(NoEvent):
    """In the place of the PDU: an event that ends other states alone."""

    def __init__(self, shipped):
        super().__init__(shipped, Event.HIT)


class Wire:
    """Packets of 4 KiB, one after the other over one wire for all pairs."""

    def __init__(self, machine, bytes_per_ns=100.0):
        self.bytes_per_ns, self.free_at, self.arrivals = bytes_per_ns, 0.0, []

    def send(self, message, src, dst, n_bytes, now):
        packets = -(-n_bytes // 4096)
        begin = max(now, min(self.free_at, now + 1e12))
        self.free_at = begin + packets * 4096 / self.bytes_per_ns
        self.arrivals.append((self.free_at, message))

    def poll(self, until):
        first = min(self.arrivals, default=(np.inf, 0))
        if first[0] > until or not self.arrivals:
            return None
        self.arrivals.remove(first)
        return first


class Lost(Wire):
    def poll(self, until):
        return None


INTERPRETED = ({}, {"contention": "reserved"}, {"arbitration": "round_robin"}, {"reads": "together"})


@pytest.mark.parametrize("changes", INTERPRETED, ids=str)
def test_an_object_that_always_takes_as_long_is_the_function(changes):
    own = {"expand_ns": 500.0}
    _, of_function = run([{"name": "test_own_blocks:expand", **own}], **changes)
    _, of_object = run([{"name": "test_own_blocks:Expander", **own}], InterpretedEngine, **changes)
    assert of_object == pytest.approx(of_function, rel=1e-12)


@pytest.mark.parametrize("changes", INTERPRETED, ids=str)
def test_an_object_keeps_its_state_over_the_run(changes):
    _, plain = run([], InterpretedEngine, **changes)
    _, slower = run([{"name": "test_own_blocks:Expander", "slower": 2.0}], InterpretedEngine, **changes)
    every = SLICES * plain.size
    assert (slower - plain).sum() == pytest.approx(500.0 + (every - 1) * 1000.0, rel=1e-9)


def several(blocks, engine=InterpretedEngine, name="pred", **changes):
    model = small_model(experts=6, top_k=2, hidden=512, expert_ffn=384, shared_ffn=384)
    system = small_system(2, 2).model_copy(update={"blocks": tuple(BlockSpec(name=block) for block in blocks)})
    assumptions = load_assumptions("physical", heatmap_update="free", **changes)
    demand = demand_of(model, system, policy(name), batch=12, decode_steps=2)
    return replay(system, model, policy(name), assumptions, demand, engine=engine).run()


def test_an_object_may_take_the_place_of_a_shipped_block():
    assert several([]).tally.dies["write_bytes"].sum() > 0
    kept_none = several(["test_own_blocks:NeverKeep"])
    assert kept_none.tally.dies["write_bytes"].sum() == 0
    assert (kept_none.memory.copies.room["used_bytes"] == 0).all()


@pytest.mark.parametrize("block, message", [
    ("NoEvent", "NoEvent.*DATA.*finish"),
    ("WrongEvent", "WrongEvent.*DATA.*Event.HIT.*Event.SERVED, Event.KEEP"),
])  # fmt: skip
@pytest.mark.parametrize("contention", ["reserved", "shared"])
def test_an_object_without_a_right_event_is_refused_by_name(block, message, contention):
    with pytest.raises(ArchsimError, match=f"blocks: test_own_blocks:{message}"):
        several([f"test_own_blocks:{block}"], contention=contention)


def test_a_packet_network_may_stand_in_for_links():
    plain, packets = several([], name="base"), several(["test_own_blocks:Wire"], name="base")
    assert packets.tally.pair_bytes.tolist() == plain.tally.pair_bytes.tolist()
    assert packets.decode_ns > plain.decode_ns  # one wire instead of a mesh
    with pytest.raises(ArchsimError, match="network.* [1-9][0-9]* "):
        several(["test_own_blocks:Lost"], name="base")


@pytest.mark.parametrize("engine", [EventEngine, AnalyticalEngine])
def test_only_the_interpreted_engine_takes_objects(engine):
    with pytest.raises(ArchsimError, match="test_own_blocks:Expander.*engine: interpreted"):
        run(["test_own_blocks:Expander"], engine)


def test_a_network_needs_shared_links():
    with pytest.raises(ArchsimError, match="contention: shared"):
        several(["test_own_blocks:Wire"], contention="reserved")


def test_check_refuses_what_run_refuses(tmp_path):
    own = "[test_own_blocks:Expander]"
    with pytest.raises(ArchsimError, match="engine: event"):
        select(experiment_with(tmp_path, own))
    assert len(select(experiment_with(tmp_path, own, "engine=interpreted"))) == 2
