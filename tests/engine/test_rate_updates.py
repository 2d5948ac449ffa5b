"""``rate_updates: per_round_trip``: what it may change of ``instant``, and what it may not.

Kernels and interpreter are compared under it, and laws of conservation are checked, with the other assumptions.
"""

from collections import Counter

import numpy as np
import pytest
from support.small_runs import demand_of, policy, replay, small_model, small_system

from archsim.engine.interpreted import engine as interpreted
from archsim.engine.interpreted.engine import InterpretedEngine
from archsim.engine.interpreted.shared import Shared
from archsim.engine.machine import share_every_ns
from archsim.engine.state import UNITS
from archsim.specs.library import load_assumptions, load_model, load_system

PER_ROUND_TRIP = load_assumptions("physical", rate_updates="per_round_trip")
TINY = small_model(experts=6, top_k=2, hidden=512, expert_ffn=384, shared_ffn=384)


def run_of(name, assumptions, system=None, model=None, batch=600, **options):
    system, model, spec = system or small_system(), model or small_model(), policy(name)
    demand = demand_of(model, system, spec, decode_steps=1, batch=batch)
    return replay(system, model, spec, assumptions, demand, **options)


@pytest.mark.parametrize(("x", "round_trip_ns"), [(1, 0.0), (2, 2 * (200.0 + 16 / 1350))])
def test_a_round_trip_is_that_of_a_request_between_neighbours(x, round_trip_ns):
    engine = run_of("base", PER_ROUND_TRIP, small_system(x, 1), TINY, 12).engine
    assert share_every_ns(engine.machine, PER_ROUND_TRIP) == pytest.approx(round_trip_ns)
    assert share_every_ns(engine.machine, load_assumptions("physical")) == 0.0


@pytest.mark.parametrize("arbitration", ["fair", "round_robin"])
@pytest.mark.parametrize("name", ["base", "allo+pred"])
def test_without_a_distance_it_is_instant_to_the_bit(name, arbitration):
    physical = load_assumptions("physical", arbitration=arbitration, heatmap_update="free")
    paced = physical.model_copy(update={"rate_updates": "per_round_trip"})
    instant, paced = (run_of(name, each) for each in (physical, paced))
    paced.engine.execution.kernel.share_every_ns = 0.0
    instant, paced = instant.run(), paced.run()
    assert paced.step_ns.tobytes() == instant.step_ns.tobytes()
    assert paced.tally.resources.tobytes() == instant.tally.resources.tobytes()


@pytest.mark.parametrize("name", ["base", "allo"])
def test_no_capacity_is_exceeded_and_recomputes_keep_their_distance(name, monkeypatch):
    class Watched(Shared):
        def run(self, begin):
            self.shared_at = []
            end = super().run(begin)
            assert (np.diff(self.shared_at) >= self.share_every_ns * (1 - 1e-12)).all()
            return end

        def share(self, now):
            super().share(now)
            self.shared_at.append(now)

        def next_flow_time(self):
            passing = Counter()
            for flow in self.flows:
                for resource in flow.route:
                    passing[resource] += flow.rate
            m = self.machine
            for (kind, *number), rate in passing.items():
                most = m.hbm_bytes_per_ns if kind == "hbm" else m.link_rates[number[0] - UNITS * m.dies]
                assert rate <= most * (1 + 1e-9)
            return super().next_flow_time()

    monkeypatch.setattr(interpreted, "Shared", Watched)
    outcome = run_of(name, PER_ROUND_TRIP, small_system(2, 2), TINY, 24, engine=InterpretedEngine).run()
    assert outcome.step_ns.sum() > 0


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("ep", "dojo"), ("base", "tsmc_sow"),
        *(pytest.param(*each, marks=pytest.mark.nightly) for each in (("base", "dojo"), ("ep", "tsmc_sow"))),
    ],
)  # fmt: skip
def test_steps_of_deepseek_on_a_wafer_take_as_long_within_one_percent(name, system):
    model = load_model("deepseek-v3")
    instant, paced = (
        run_of(name, each, load_system(system), model, 4096).run().step_ns
        for each in (load_assumptions("physical"), PER_ROUND_TRIP)
    )
    steps = instant > 0
    assert abs(paced.sum() / instant.sum() - 1) < 0.01
    assert np.abs(paced[steps] / instant[steps] - 1).max() < 0.06
