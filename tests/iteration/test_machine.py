"""Laws of machines: an iteration follows the rates of the machine file, each by exactly the share that it carries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.as_built import experiment_of
from support.examples import examples, sampled

from archsim.base.config_files import named_files
from archsim.engine.grouped_gemm import law_of_ranks
from archsim.iteration.machine import calibration_on, is_measured, rates_of
from archsim.iteration.run_iteration import rates_of as rates_of_dies
from archsim.iteration.times import Batches, iteration_laws, iteration_times
from archsim.laws.calibration_files import calibration_named
from archsim.laws.laws import Laws
from archsim.laws.scaling import at_rates
from archsim.laws.tables import CalibrationSpec
from archsim.laws.transfers import read_share
from archsim.machine.system import SystemSpec
from archsim.specs.deployment import Parallelism, Precision
from archsim.specs.library import load_experiment, load_model, load_system

MEASURED = (
    "a100_cluster", "b200_node", "b300_node", "gb200_nvl72", "gb300_nvl72", "h100_cluster", "h200_node", "h20_cluster",
    "h800_cluster",
)  # fmt: skip
RATES = ("compute", "memory", "link_bytes_per_s", "pair_bytes_per_s", "nic_bytes_per_s")
SHIPPED = sorted(named_files("systems"))
FACTORS = st.sampled_from([0.25, 0.5, 0.8, 1.0, 1.3, 2.0, 4.0])


def of_machine(name, **factors):
    """The calibration of a shipped machine whose rates are so many times its own."""
    system = load_system(name)
    own = calibration_named(system.compute.calibration)
    rates = rates_of(system, own)
    return at_rates(own, rates._replace(**{rate: getattr(rates, rate) * each for rate, each in factors.items()}))


@pytest.mark.parametrize("name", sampled(MEASURED, lambda name: "300" not in name))
def test_a_measured_machine_has_its_own_calibration_under_any_name(name):
    system = load_system(name)
    renamed = SystemSpec.model_validate(system.model_dump(mode="json", by_alias=True) | {"name": "mine"})
    own = calibration_named(system.compute.calibration)
    assert calibration_on(renamed) == calibration_on(system) and is_measured(system)
    # Copies between nodes of A100 are those of H100 at a longer latency.
    assert name == "a100_cluster" or (calibration_on(system) == own and type(calibration_on(system)) is CalibrationSpec)


@pytest.mark.parametrize(("name", "like", "compute", "memory"), [
    ("mi300x_node", "h100", 2615 / 1979, 5.3 / 3.35), ("mi355x_node", "h100", 5033 / 1979, 8 / 3.35),
    ("vr_nvl144", "b200", 16667 / 4500, 13 / 8), ("v100_node", "a100", 125 / 312, 900 / 2039),
])  # fmt: skip
def test_a_machine_of_another_gpu_has_its_own_rates(name, like, compute, memory):
    found, own = calibration_on(load_system(name)), calibration_named(like)
    for dtype, peak in own.reference.peak_flop_per_s.items():
        assert found.reference.peak_flop_per_s[dtype] == pytest.approx(peak * compute)
    assert found.reference.hbm_bytes_per_s == pytest.approx(own.reference.hbm_bytes_per_s * memory)
    assert not is_measured(load_system(name))


@given(factor=st.sampled_from([0.5, 2.0, 10.0]), size=st.floats(1e3, 1e9), ranks=st.sampled_from([2, 4, 8]))
@settings(max_examples=examples(20), deadline=None)
def test_bytes_of_a_link_take_its_rate_and_latency_stays(factor, size, ranks):
    """T(rate) - T(factor rate) = bytes term of T x (1 - 1 / factor), of which a link's 450 GB/s take the least."""
    before, after = of_machine("h200_node"), of_machine("h200_node", link_bytes_per_s=factor)
    one, other = (Laws(each).collective("all_reduce", size, ranks=ranks) for each in (before, after))
    at = np.searchsorted(one.table.from_bytes, max(size, one.table.first_bytes), side="right") - 1
    moved = max(size, one.table.first_bytes) * max(one.table.ns_per_byte[max(at, 0)], 1 / 450)
    assert one.ns - other.ns == pytest.approx(moved * (1 - 1 / factor), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ranks_that_are_linked_to_each_other_use_the_links_between_them(ranks):
    """MI355X: 76.8 GB/s to each of the others, where the measured node has 450 GB/s into a switch."""
    size, own, found = 2.0**28, calibration_named("h100"), calibration_on(load_system("mi355x_node"))
    one, other = (Laws(each).collective("all_reduce", size, ranks=ranks) for each in (own, found))
    moved = size * one.table.ns_per_byte[-1]
    assert other.ns - one.ns == pytest.approx(moved * (450 / (76.8 * (ranks - 1)) - 1), rel=1e-6)


BATCHES = Batches(
    *(np.array(each, float) for each in (
        [1, 64, 256, 0, 16, 0], [512, 2048, 900, 1, 4096, 1], [0, 0, 0, 1, 2, 4], [1, 1, 1, 300, 2048, 1024],
        [1, 1, 1, 300, 4096, 1024], [1, 64, 256, 1, 18, 4],
    ))
)  # fmt: skip


@pytest.mark.parametrize(("model", "machine", "parallel", "precision"), [
    ("llama-3.1-8b", "h200_node", Parallelism(tp=2), Precision("bf16", "bf16", "bf16")),
    ("qwen3-30b-a3b", "b200_node", Parallelism(dp=4, ep=4), Precision("fp8_block", "fp8_block", "bf16")),
])  # fmt: skip
@given(rate=st.sampled_from(RATES), factor=FACTORS)
@settings(max_examples=examples(12, 4), deadline=None)
def test_no_faster_rate_makes_an_iteration_slower_and_all_rates_make_it_as_much_faster(
    model, machine, parallel, precision, rate, factor
):
    def total(**factors):
        laws = iteration_laws(
            load_model(model), of_machine(machine, **factors), parallel, precision, most_tokens=4300, library="vllm"
        )
        return iteration_times(laws, BATCHES).total_ns

    one = total()
    faster = total(**{rate: 1.0 + factor})
    assert (faster <= one * (1 + 1e-9)).all()
    every = total(**dict.fromkeys(RATES, 2.0))
    assert (every >= one / 2 * (1 - 1e-9)).all() and (every <= one).all()


@pytest.mark.parametrize("like", ["h200_node", "rtx_pro_6000_pair", "mi355x_node", "dojo", "blackhole_ring8"])
def test_experts_of_a_run_take_the_hbm_that_reads_reach(like):
    """Half of what reads reach is half of the bandwidth, in experts, too, below the share of the measured GPU."""
    system, model = load_system(like), load_model("qwen3-235b-a22b")
    sizes = np.array([64.0]), np.array([8.0]), np.array([60.0])
    share = system.hbm.efficiency / 2 / (0.81 if like == "h200_node" else 0.9 if like == "rtx_pro_6000_pair" else 0.82)

    def of(**hbm):
        given = system.model_copy(update={"hbm": system.hbm.model_copy(update=hbm)})
        rates = given.kernel_rates.hbm_bytes_per_s
        return rates, law_of_ranks(given, model, 8, dispatched=True).times(*sizes).ns[0]

    rate = system.hbm.bandwidth_bytes_per_s
    assert of()[0] == rate and of(bandwidth_bytes_per_s=rate / 2)[0] == rate / 2
    less, same = of(efficiency=system.hbm.efficiency / 2), of(bandwidth_bytes_per_s=rate * share)
    assert less == pytest.approx(same, rel=1e-12) and less[1] > of()[1]


@pytest.mark.parametrize(
    "name", sampled(sorted(named_files("systems")), lambda name: not name.startswith(("b300", "gb")))
)
def test_kernels_read_at_the_share_of_the_file_or_at_that_which_was_measured(name):
    """The smaller one: all shipped machines but one have their bandwidth, to the bit. Kernels of a die's own
    (`kernel_latency`) read at the share of its file, as its experts do.
    """
    system = load_system(name)
    bandwidth, share = system.hbm.bandwidth_bytes_per_s, system.hbm.efficiency
    reached = system.kernel_rates.hbm_bytes_per_s * read_share(calibration_named(system.compute.calibration))
    assert name == "lpu576" or system.kernel_rates.hbm_bytes_per_s == bandwidth
    assert name != "lpu576" or reached == pytest.approx(bandwidth * share)
    if system.compute.kernel_latency_ns is not None:
        rates = rates_of_dies(system)
        assert (rates.hbm_bytes_per_s, rates.own.byte_share) == (bandwidth, share) and reached <= bandwidth * share


def test_collectives_wait_for_the_weakest_link():
    def rates(system, **keys):
        system = load_experiment({**experiment_of(), "systems": [{"like": system, "name": "own"} | keys]}).systems[0]
        return rates_of(system, calibration_named(system.compute.calibration))

    half = {"links_as_built": {"degraded": [{"link": [3, "switch"], "bandwidth": "50 %"}]}}
    assert rates("h100_node", **half).link_bytes_per_s == rates("h100_node").link_bytes_per_s / 2
    nic = {"links_as_built": {"degraded": [{"link": [9, "level 1"], "bandwidth": "50 %"}]}}
    whole, weak = rates("h100_cluster"), rates("h100_cluster", **nic)
    assert weak.nic_bytes_per_s == whole.nic_bytes_per_s / 2 and weak.link_bytes_per_s == whole.link_bytes_per_s
