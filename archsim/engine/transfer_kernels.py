"""Software of the transfers of hidden vectors: the assumption ``transfer_software``.

On a GPU (``launch: gpu``) kernels of a library dispatch and combine: ``dispatch: per_rank`` as DeepEP's ``normal``,
``per_token_expert`` as its ``low_latency``. Each costs a fixed time, and a rank's port then passes bytes at the rate
that the kernel achieves: t = fixed + bytes / rate. Both are fitted, with least relative errors, to the law of the
calibration (``Laws.dispatch_combine``) over 1 to 4,096 tokens a rank of 8 ranks in a node, of the model's shape or
the nearest that was measured; bytes are those that leave a rank when all experts are equally popular. The measured
time includes reading HBM and crossing one switch, which the engine simulates: these latencies are subtracted. Neither
is scaled with the machine's links, which may be slower; the port never passes more than they do.

Under ``launch: local_cp`` the command processor of a die starts a bundle a cycle of its logic; nothing caps the rate.
"""

from functools import lru_cache, partial
from math import log2
from typing import NamedTuple

import numpy as np

from archsim.base import sums, units
from archsim.engine import mesh_laws
from archsim.engine.moves import Sizes, expected_ranks
from archsim.laws.calibration_files import DEFAULT_CALIBRATION, calibration_digest, calibration_named
from archsim.laws.laws import Laws
from archsim.laws.mesh import KERNELS as MESH_KERNELS
from archsim.laws.tables import CalibrationSpec, LawMissing, TransferTable
from archsim.laws.transfers import COMBINE, DISPATCH, dispatches, law_of, payload_of, sent_bytes
from archsim.machine.system import SystemSpec
from archsim.specs.scenario import Scenario

KERNELS = {"per_rank": "normal", "per_token_expert": "low_latency"}
RANKS = 8  # of the node in which the kernels were measured
MOST_TOKENS = 4096  # a rank
INSTEAD = " instead of "  # in words, before the calibration that lacks the kernels


class Software(NamedTuple):
    """Of DISPATCH and COMBINE each: ``ns`` before a bundle moves, and the most bytes per ns of a die's port."""

    ns: np.ndarray  # float64[2]
    bytes_per_ns: np.ndarray  # float64[2]


def software(scenario: Scenario, hidden_latency_ns: float | np.ndarray) -> Software:
    """Software of a scenario's transfers. ``hidden_latency_ns``: of HBM and the shortest route. Raises LawMissing."""
    system, model, assumptions = scenario.system, scenario.model, scenario.assumptions
    no_cap = np.full(2, np.inf)
    if system.endpoint is not None and assumptions.activations == "dispatched":
        return _of_mesh(scenario)
    if assumptions.transfer_software == "free" or assumptions.activations != "dispatched":
        return Software(np.zeros(2), no_cap)
    if system.launch == "local_cp":
        return Software(np.full(2, system.dies * units.NS_PER_S / system.decision.local_clock_hz), no_cap)
    if assumptions.execution == "expert_parallel":
        return Software(np.zeros(2), no_cap)  # it takes the time of whole kernels: archsim.engine.cluster.laws
    kernel, shape = KERNELS[assumptions.dispatch], (model.hidden, model.top_k, model.experts)
    name = kernels_from(system, kernel)
    fitted = [fixed_and_rate(name, calibration_digest(name), op, kernel, *shape) for op in (DISPATCH, COMBINE)]
    fixed_ns, rates = np.ascontiguousarray(np.array(fitted).T)  # kernels are compiled for contiguous arrays alone
    if system.d2d.measured_factor != 1:
        fixed_ns, rates = fixed_ns * system.d2d.measured_factor, rates / system.d2d.measured_factor
    return Software(np.maximum(fixed_ns - hidden_latency_ns, 0.0), rates)


def _of_mesh(scenario: Scenario) -> Software:
    """By the laws of kernels measured on the system's mesh, which send a vector for every token and expert; under
    ``dispatch: per_rank`` the rate of a port is that of fewer vectors. ``execution: expert_parallel`` takes the time of
    whole kernels.
    """
    system, model = scenario.system, scenario.model
    if scenario.assumptions.execution == "expert_parallel":
        return Software(np.zeros(2), np.full(2, np.inf))
    once = KERNELS[scenario.assumptions.dispatch] == KERNELS["per_rank"]
    share = expected_ranks(Sizes(model.experts, model.top_k), system.dies) / model.top_k if once else 1.0
    laws = [mesh_laws.measured_law(str(system.endpoint), kernel, system) for kernel in MESH_KERNELS]
    factor = system.d2d.measured_factor
    rates = np.array([law.bytes_per_s * share / units.NS_PER_S for law in laws])
    return Software(np.array([law.fixed_ns for law in laws]) * factor, rates / factor)


def charges_kernels(scenario: Scenario) -> bool:
    """Whether hidden vectors wait for kernels of a GPU."""
    assumptions = scenario.assumptions
    charged = assumptions.transfer_software == "charged" and assumptions.activations == "dispatched"
    return charged and scenario.system.launch == "gpu" and assumptions.dispatch in KERNELS


def kernels_from(system: SystemSpec, kernel: str) -> str | None:
    """The calibration with the kernel's times: of the innermost level's law, the compute array, or None (default)."""
    if system.transfer_law is not None:
        return system.transfer_law
    name = system.compute.calibration
    return _nearest_with(name, calibration_digest(name), kernel)


def has_kernels(system: SystemSpec, kernel: str) -> bool:
    """Whether the calibration of `kernels_from` has the kernel's times."""
    return bool(_shapes(calibration_named(kernels_from(system, kernel)), kernel))


def own_calibration(system: SystemSpec) -> str:
    """The calibration of the system's transfers: of the law that its innermost level names, else of its dies."""
    return system.transfer_law or system.compute.calibration or DEFAULT_CALIBRATION


def name_kernels(scenario: Scenario) -> str | None:
    """The kernels that a scenario is charged for, in words; None where it is not."""
    if scenario.system.endpoint is not None and scenario.assumptions.activations == "dispatched":
        return mesh_laws.name_endpoint(scenario.system)
    if not charges_kernels(scenario):
        return None
    system, kernel = scenario.system, KERNELS[scenario.assumptions.dispatch]
    own = own_calibration(system)
    name = kernels_from(system, kernel) or DEFAULT_CALIBRATION
    return f"DeepEP {kernel} of {name}" + (f"{INSTEAD}{own}" if name != own else "")


def kernels_stand_in(scenario: Scenario) -> bool:
    """Whether the kernels of `name_kernels` were measured on another GPU, shape, or number of ranks."""
    if scenario.system.endpoint is not None:
        return mesh_laws.endpoint_carried(scenario.system, scenario.model)
    system, model, kernel = scenario.system, scenario.model, KERNELS[scenario.assumptions.dispatch]
    calibration = calibration_named(kernels_from(system, kernel))
    own = calibration_named(system.compute.calibration).gpu
    same_shape = (model.hidden, model.top_k, model.experts) in _shapes(calibration, kernel)
    return not same_shape or calibration.gpu != own or system.dies != RANKS


@lru_cache(maxsize=64)
def _nearest_with(name: str | None, digest: str, kernel: str) -> str | None:
    calibration = calibration_named(name)
    if _shapes(calibration, kernel):
        return name
    base = calibration.scaled and calibration.scaled.gpu
    return base if base and _shapes(calibration_named(base), kernel) else None


@lru_cache(maxsize=64)
def fixed_and_rate(
    name: str | None, digest: str, op: str, kernel: str, hidden: int, top_k: int, experts: int
) -> tuple[float, float]:
    """(ns, bytes per ns) of the nearest shape. ``digest``: of the calibration's file. Raises LawMissing."""
    laws = Laws(calibration_named(name))
    near = _nearest_shape(laws, kernel, (hidden, top_k, experts))
    ask = partial(
        laws.dispatch_combine, op, kernel=kernel, ranks=RANKS, nodes=1, hidden=near[0], top_k=near[1], experts=near[2]
    )
    table = ask(1).table
    assert isinstance(table, TransferTable)
    vector_bytes = near[0] * units.VECTOR_BYTES[payload_of(table)]
    vectors = expected_ranks(Sizes(near[2], near[1]), RANKS) if kernel == KERNELS["per_rank"] else near[1]
    token_bytes = vector_bytes * vectors * (RANKS - 1) / RANKS
    tokens = 2.0 ** np.arange(int(log2(MOST_TOKENS)) + 1)
    times = ask(tokens)
    # Of a table scaled from another GPU's, every time counts as extrapolated; its sizes are those measured there.
    sizes = sent_bytes(payload_of(table), tokens, near[1], near[0])
    measured = ~law_of(table).extrapolates(sizes)
    tokens, ns = tokens[measured], times.ns[measured]
    terms = np.stack([1.0 / ns, tokens * token_bytes / ns], axis=1)
    fixed_ns, ns_per_byte = np.linalg.lstsq(terms, np.ones(len(ns)), rcond=None)[0]
    return float(fixed_ns), float(1.0 / ns_per_byte)


def _nearest_shape(laws: Laws, kernel: str, wanted: tuple[int, int, int]) -> tuple[int, int, int]:
    """(hidden, top_k, experts) of the measured layer nearest by the sum of the ratios' logarithms."""
    there = _shapes(laws.calibration, kernel)
    if not there:
        raise LawMissing(
            f"calibration {laws.calibration.gpu} has no dispatch and combine of kernel {kernel!r} on {RANKS} ranks of "
            f"a node, which transfer_software: charged needs on a system of launch: gpu. Name another GPU in the law "
            f"of its innermost fabric level (law: h100/intra_node) or none, or take transfer_software: free or "
            f"launch: local_cp"
        )
    return min(there, key=lambda shape: (sums.sum(abs(log2(a / b)) for a, b in zip(shape, wanted, strict=True)), shape))


def _shapes(calibration: CalibrationSpec, kernel: str) -> set[tuple[int, int, int]]:
    """(hidden, top_k, experts) with which the kernel was measured."""
    return {
        (int(table.of["hidden"]), int(table.of["top_k"]), int(table.of["experts"]))
        for table in dispatches(calibration)
        if (table.of.get("variant"), table.of.get("num_gpus"), table.of.get("nodes")) == (kernel, str(RANKS), "1")
    }
