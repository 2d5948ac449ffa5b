"""Laws that every run obeys, and the systems that they are tried on.

An engine, an execution, a policy or an assumption joins by one row of ``SYSTEMS``, a law by one row of ``LAWS``, with
its number and a mutant that it kills: every law is then tried on every system. A law asks of a run itself whether it
has what the law is about.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pytest

from archsim.engine.analytic.engine import AnalyticalEngine
from archsim.engine.engine import EventEngine
from archsim.engine.interpreted.engine import InterpretedEngine
from archsim.engine.loop import Replay, RunOutcome
from archsim.engine.moves import vector_bytes
from archsim.engine.pair_traffic import link_traffic, pair_bytes
from archsim.engine.state import COMBINE, DISPATCH, UNITS
from archsim.engine.weight_streaming import WeightStreaming
from archsim.model.attention import LayerSet
from archsim.specs.library import load_assumptions, load_model
from microarch.blocks.hbm import SLICES
from support.balancer_runs import BALANCERS, SWITCH, WAFER, run_of
from support.clusters import KERNELS, assumptions_of, cluster
from support.fabrics import FABRICS, system_on
from support.small_runs import (
    BATCH,
    CASES,
    at_each_commit,
    demand_of,
    policy,
    replay,
    small_model,
    small_system,
    traffic,
)

ENGINES = {"event": EventEngine, "analytical": AnalyticalEngine, "interpreted": InterpretedEngine}
TINY = small_model(experts=6, top_k=2, hidden=512, expert_ffn=384, shared_ffn=384, moe_layers=LayerSet(first=0, last=1))
FOUR = small_model(moe_layers=LayerSet(first=3, last=6))
SLOW = small_system(hbm={"capacity_bytes": 10**12}, d2d={"bandwidth_bytes_per_s": 2e10})
SHORT = small_system(llc={"segment_bytes": 2**16})  # segments shorter than any slice of ``small_model``


@dataclass(frozen=True)
class System:
    """``start``: a run at its beginning, the same every time. ``sampled``: whether it is tried at each commit."""

    name: str
    start: Callable[[], Replay]
    sampled: bool


class Ran(NamedTuple):
    """A run that has ended, and the works that its builder gave to its kernel (float64[die] ns, int64[2] bytes)."""

    replay: Replay
    outcome: RunOutcome
    array_ns: np.ndarray
    sent_bytes: np.ndarray

    @property
    def links(self) -> np.ndarray:
        return self.outcome.tally.resources[UNITS * self.outcome.machine.dies :]

    @property
    def total_ns(self) -> float:
        return self.outcome.prefill_ns + self.outcome.decode_ns

    @property
    def streams(self) -> bool:
        return isinstance(self.replay.engine.execution, WeightStreaming)


def of_weights(name: str, changes: dict, engine: str, model=FOUR, on=None, **parts) -> Callable[[], Replay]:
    """A wafer that streams weights, or a system with a fabric of another kind (``on``); a smaller wafer, with fewer
    tokens, where they are interpreted.
    """

    def start() -> Replay:
        system, of, spec, batch = system_on(on) if on else SHORT, model, policy(name, **parts), BATCH
        if engine == "interpreted":
            system, of, batch = small_system(2, 2), TINY, 12
        demand = demand_of(of, system, spec, batch=batch)
        routing = traffic(of, batch=batch).steps(np.arange(batch), 3)
        return replay(system, of, spec, load_assumptions("physical", **changes), demand, routing, ENGINES[engine])

    return start


def of_experts(nodes: int, name: str, engine: str, **changes) -> Callable[[], Replay]:
    """GPUs that keep their experts and exchange tokens."""

    def start() -> Replay:
        system = cluster(nodes)
        model = load_model("deepseek-v3").model_copy(update={"layers": 5, "moe_layers": LayerSet(first=3, last=4)})
        spec = policy(name)
        demand = demand_of(model, system, spec, decode_steps=2, batch=16 * system.dies)
        return replay(system, model, spec, assumptions_of(**changes), demand, engine=ENGINES[engine])

    return start


def of_balancer(name: str, system, engine: str, migration: str = "overlapped") -> Callable[[], Replay]:
    return lambda: run_of(name, system, ENGINES[engine], migration=migration)


def _text_of(changes: dict) -> str:
    return "+".join(f"{key}={value}" for key, value in changes.items()) or "physical"


SYSTEMS = [
    *(
        System(f"{engine} {name} {_text_of(changes)}", of_weights(name, changes, engine),
               at_each_commit((name, changes)) and (engine == "event" or not changes or name == "allo+pred"))
        for engine in ("event", "analytical")
        for name, changes in CASES
    ),
    *(
        System(f"{engine} {name} replicated {_text_of(changes)}",
               of_weights(name, changes, engine, placement="support.placements:replicated"),
               name == "allo+pred" and len(changes) < 2)
        for engine in ("event", "analytical")
        for name, changes in CASES[::5]
    ),
    *(
        System(f"{engine} ep shared experts shorter than a segment {_text_of(changes)}",
               of_weights("ep", changes, engine, small_model(shared_ffn=16)), engine == "event")
        for engine in ("event", "analytical")
        for changes in ({}, {"arbitration": "round_robin"}, {"contention": "reserved"})
    ),
    *(
        System(f"event allo+pred on {fabric} {_text_of(changes)}",
               of_weights("allo+pred", changes, "event", on=fabric), (at + by) % 2 == 0)
        for at, fabric in enumerate(FABRICS)
        for by, changes in enumerate(({"contention": "shared"}, {"contention": "reserved"}))
    ),
    *(
        System(f"interpreted {name} {_text_of(changes)}", of_weights(name, changes, "interpreted"), name == "allo+pred")
        for name in ("base", "allo+pred")
        for changes in ({}, {"contention": "reserved"})
    ),
    *(
        System(f"{engine} {name} {shape}", of_balancer(name, system, engine), (at + 2 * by + to) % 4 == 0)
        for at, name in enumerate(BALANCERS)
        for by, (shape, system) in enumerate({"mesh": WAFER, "switch": SWITCH}.items())
        for to, engine in enumerate(("event", "analytical"))
    ),
    *(
        System(f"{engine} {name} {migration}", of_balancer(name, WAFER, engine, migration), engine == "event")
        for engine in ("event", "analytical")
        for name in ("eplb", "lina")
        for migration in ("blocking", "free")
    ),
    *(  # weights that do not arrive
        System(f"{engine} {name} on slow links", of_balancer(name, SLOW, engine), engine == "event")
        for engine in ("event", "analytical")
        for name in ("eplb", "craft", "lina")
    ),
    *(
        System(f"{engine} {name} {nodes} nodes {dispatch}", of_experts(nodes, name, engine, dispatch=dispatch),
               engine == "event" or (nodes == 2 and name == "ep"))
        for engine in ("event", "analytical")
        for name in ("ep", "harmoeny")
        for nodes in (1, 2)
        for dispatch in (*KERNELS, *(("all_gather",) if nodes == 1 else ()))
    ),
]  # fmt: skip


def ran(start: Callable[[], Replay]) -> Ran:
    run = start()
    array_ns, sent_bytes = np.zeros(run.engine.machine.dies), np.zeros(2, np.int64)
    if isinstance(run.engine.execution, WeightStreaming):
        build = run.engine.execution.builder.build

        def seen(*arguments):
            work = build(*arguments)
            np.add.at(array_ns, work.entries["die"], SLICES * work.entries["compute_ns"])
            away = work.moves["src"] != work.moves["dst"]
            sent_bytes[:] += np.where(away, work.moves["bytes"], 0).sum(axis=1)
            return work

        run.engine.execution.builder.build = seen
    return Ran(run, run.run(), array_ns, sent_bytes)


def every_token_is_executed_once_by_each_of_its_experts(one: Ran) -> None:
    assert (one.outcome.load.sum(axis=2) == one.replay.demands.tokens.sum(axis=2)).all()
    assert one.total_ns > 0 and one.outcome.load.any()


def no_load_is_below_its_ceilings(one: Ran) -> None:
    perfect, slots, placed = np.moveaxis(one.outcome.ceilings, 2, 0)
    slack = 1 + 1e-9
    assert (perfect <= slots * slack).all() and (slots <= placed * slack).all()
    assert (perfect <= one.outcome.load.max(axis=2) * slack).all()
    allocation = one.replay.engine.scenario.policy.allocation.name
    if allocation in ("home", "even", "nearest", "static", "lplb", "libra"):  # among the holders of an expert
        assert (placed <= one.outcome.load.max(axis=2) * slack).all()


def every_byte_has_a_class_a_pair_and_a_route(one: Ran) -> None:
    outcome, tally, sent = one.outcome, one.outcome.tally, pair_bytes(one.outcome.tally)
    total = {name: int(each.sum()) for name, each in sent.items()}
    assert [total["dispatch"], total["combine"]] == tally.moved_bytes.tolist()
    balancing = outcome.balancing
    decided = sum(int(each.moves["bytes"].sum()) for each in outcome.migrations)
    assert balancing.migrated_bytes + balancing.under_way_bytes == decided
    assert balancing.under_way_bytes == 0 or one.replay.engine.balancing.pending is not None
    assert total["replica"] == balancing.migrated_bytes + balancing.replicated_bytes
    assert (balancing.replicated_bytes > 0) == (one.replay.engine.policy.replication is not None)
    remote = int(tally.dies["remote_read_bytes"].sum())
    assert total["weight"] == int(tally.llc_hits[1]) * outcome.machine.slice_bytes + remote
    assert total["request"] * outcome.machine.slice_bytes == total["weight"] * outcome.machine.request_bytes
    assert all((np.diagonal(each) == 0).all() for each in sent.values())
    crossed = link_traffic(outcome.machine, tally, np.ones(outcome.machine.link_resources))
    hops = np.diff(outcome.machine.route_ptr).reshape(outcome.machine.dies, -1)
    on_routes = {name: int((sent[name] * hops).sum()) for name in crossed}
    once = hops.max() > 2 and not one.streams  # a node gets a vector once, and hands it on
    for name in ("dispatch", "combine") if once else crossed:
        n_bytes = int(crossed[name].n_bytes.sum())
        assert abs(n_bytes - on_routes[name]) <= len(one.links) or (once and 0 < n_bytes < on_routes[name]), name
    crossed.pop("statistics")
    untimed = np.broadcast_to(balancing.untimed_bytes, len(tally.resources))[UNITS * outcome.machine.dies :]
    assert (sum(each.n_bytes for each in crossed.values()) == one.links["bytes"] + untimed).all()
    each_hop = {"switch": 2}.get(outcome.fabric.kind, 1)  # links: up and down; else one to every die that is entered
    if each_hop == 2 or outcome.fabric.nodes == outcome.fabric.dies:
        assert (one.links["bytes"] + untimed).sum() == each_hop * tally.hops[:, 1].sum()


def an_hbm_moves_what_is_read_written_and_computed_with(one: Ran) -> None:
    outcome, tally, dies = one.outcome, one.outcome.tally, one.outcome.machine.dies
    hits = tally.llc_hits.any() and one.replay.engine.scenario.assumptions.contention == "shared"
    counted = isinstance(one.replay.engine, AnalyticalEngine) or not hits
    if one.streams and counted and not outcome.balancing.migrated_bytes + outcome.balancing.replicated_bytes:
        moved = sum(tally.dies[field] for field in tally.dies.dtype.names)
        assert (tally.resources[dies : 2 * dies]["bytes"] == moved).all()


def no_run_is_shorter_than_a_resource_needs_for_its_bytes(one: Ran) -> None:
    machine = one.outcome.machine
    hbms = one.outcome.tally.resources[machine.dies : 2 * machine.dies]
    assert one.total_ns >= (hbms["bytes"] / machine.hbm_rates).max() * (1 - 1e-9)
    edges = machine.link_resources < len(machine.link_rates)  # one resource for both ways
    assert one.total_ns >= (one.links["bytes"] / (machine.link_bytes_per_ns if edges else machine.link_rates)).max() * (
        1 - 1e-6
    )


def causes_and_exposed_times_add_up_to_the_run(one: Ran) -> None:
    outcome = one.outcome
    exposed_ns = outcome.decision.exposed_ns.sum()
    assert outcome.tally.bound_ns.sum() + exposed_ns == pytest.approx(one.total_ns, rel=1e-9)
    assert (outcome.tally.bound_ns >= -1e-6).all()
    between_ns = outcome.balancing.migration_exposed_ns
    assert outcome.step_ns.sum() + between_ns == pytest.approx(one.total_ns, rel=1e-12)


def what_is_dispatched_comes_back(one: Ran) -> None:
    if one.streams:
        scenario, tally = one.replay.engine.scenario, one.outcome.tally
        vectors = vector_bytes(scenario.model.hidden, scenario.system.compute.dtype, scenario.assumptions.combine)
        sent = one.sent_bytes[DISPATCH] * vectors.combine, one.sent_bytes[COMBINE] * vectors.dispatch
        known = one.replay.demands.routed is not None  # else expected numbers of vectors, whose bytes are rounded
        assert sent[0] == pytest.approx(sent[1], rel=0.0 if known else 1e-3, abs=0.0)
        assert (one.sent_bytes[DISPATCH] > 0) == (scenario.assumptions.activations != "ignored")
        assert tally.moved_bytes.tolist() == one.sent_bytes.tolist()


def arrays_are_busy_with_all_work_and_nothing_else(one: Ran) -> None:
    """Waiting for the end of a slice that has begun to arrive is no work."""
    if one.streams:
        dies = one.outcome.machine.dies
        arrays = one.outcome.tally.resources[2 * dies : UNITS * dies]
        assert arrays["busy_ns"] == pytest.approx(one.array_ns, rel=1e-9)


def copies_keep_within_their_room(one: Ran) -> None:
    """What is kept less what is evicted is there, and evicted copies are those that were written."""
    if one.streams:
        copies, size = one.outcome.memory.copies, one.outcome.machine.slice_bytes
        room, written = copies.room, one.outcome.tally.dies["write_bytes"]
        assert (room["used_bytes"] <= room["peak_bytes"]).all() and (room["peak_bytes"] <= room["limit_bytes"]).all()
        assert (copies.present.sum(axis=1) * size == room["used_bytes"]).all()
        assert (written - room["evictions"] * size == room["used_bytes"]).all()
        assert (room["unused"] <= room["evictions"]).all()


def _with(one: Ran, **changes) -> Ran:
    return one._replace(outcome=replace(one.outcome, **changes))


def _counted(one: Ran, table: str, field: str | None, at: int) -> Ran:
    """With one more in a table of the tally."""
    changed = getattr(one.outcome.tally, table).copy()
    (changed if field is None else changed[field])[at] += 1
    return _with(one, tally=one.outcome.tally._replace(**{table: changed}))


class Law(NamedTuple):
    """``mutant``: the run with one number that the law forbids."""

    holds: Callable[[Ran], None]
    mutant: Callable[[Ran], Ran]


LAWS = {
    "INV-1 tokens": Law(
        every_token_is_executed_once_by_each_of_its_experts,
        lambda one: _with(one, load=one.outcome.load + np.eye(1, one.outcome.load.shape[2], dtype=np.int64)),
    ),
    "INV-2 ceilings": Law(
        no_load_is_below_its_ceilings, lambda one: _with(one, ceilings=one.outcome.ceilings * np.array([99, 1, 1]))
    ),
    "INV-3 routes": Law(every_byte_has_a_class_a_pair_and_a_route, lambda one: _counted(one, "moved_bytes", None, 0)),
    "INV-4 HBM": Law(
        an_hbm_moves_what_is_read_written_and_computed_with,
        lambda one: _counted(one, "resources", "bytes", one.outcome.machine.dies),
    ),
    "INV-5 rates": Law(
        no_run_is_shorter_than_a_resource_needs_for_its_bytes, lambda one: _with(one, prefill_ns=0.0, decode_ns=1e-3)
    ),
    "INV-6 causes": Law(
        causes_and_exposed_times_add_up_to_the_run, lambda one: _with(one, decode_ns=1.01 * one.outcome.decode_ns)
    ),
    "INV-7 dispatch": Law(
        what_is_dispatched_comes_back, lambda one: one._replace(sent_bytes=one.sent_bytes * np.array([2, 1]))
    ),
    "INV-8 arrays": Law(
        arrays_are_busy_with_all_work_and_nothing_else, lambda one: one._replace(array_ns=1.01 * one.array_ns)
    ),
    "INV-9 copies": Law(copies_keep_within_their_room, lambda one: _counted(one, "dies", "write_bytes", 0)),
}


def assert_equal_bytes(one: RunOutcome, other: RunOutcome) -> None:
    """The same run: times, counts and tables, to the bit."""
    assert one.step_ns.tobytes() == other.step_ns.tobytes() and one.load.tobytes() == other.load.tobytes()
    for name, mine, theirs in zip(one.tally._fields, one.tally, other.tally, strict=True):
        assert mine.tobytes() == theirs.tobytes(), name
