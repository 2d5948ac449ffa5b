"""How long a dispatch and a combine take when every rank sends as many tokens: `send_equal`."""

from __future__ import annotations

from itertools import chain
from math import inf, log2
from typing import Any, NamedTuple

import numpy as np

from archsim.base.errors import SpecError
from archsim.engine.cluster.between_nodes import between_law
from archsim.engine.cluster.laws import (
    KERNELS,
    around,
    measured_shapes,
    nearest_shape,
    node_law,
    prepare_ns,
    ranks_beyond,
    variant_of,
)
from archsim.engine.moves import Sizes, VectorBytes, expected_ranks
from archsim.laws.calibration_files import calibration_digest, calibration_named, siblings_of
from archsim.laws.laws import Laws
from archsim.laws.tables import CalibrationSpec, LawMissing, MachineCalibration
from archsim.laws.transfers import COMBINE, DISPATCH, LINK_BYTES_PER_S, NIC_BYTES_PER_S, domain_of, link_of, nodes_away


class TransferTimes(NamedTuple):
    """``dispatch``, ``combine``: float64[tokens of a rank] ns of one layer; ``carried``: whether they were measured on
    another number of ranks, GPU or shape; ``sources``: whose laws they are, and how far off they are where a measured
    number of ranks is left out.
    """

    dispatch: np.ndarray
    combine: np.ndarray
    carried: bool
    sources: str


def send_equal(
    calibration: CalibrationSpec,
    dispatch: str,
    sizes: Sizes,
    hidden: int,
    n_bytes: VectorBytes,
    ranks: int,
    tokens: np.ndarray,
) -> TransferTimes:
    """Of ``tokens`` of every rank, float64[size]. One NVLink domain has the law of its kernels between and beyond the
    measured numbers of ranks (`node_law`); more nodes have that of ports inside nodes and of NICs, whichever takes
    longer, as `archsim.engine.cluster.moves` composes flows. Kernels are the GPU's own or, where their numbers of ranks
    are nearer, those of the GPU most like it. Raises LawMissing where no GPU has any.
    """
    size = min(ranks, domain_of(calibration))
    nodes, kernel = -(-ranks // size), KERNELS[dispatch]
    shape = hidden, sizes.top_k, sizes.experts
    inner, outer = _nearest_kernels(calibration, dispatch, size, nodes)
    away = expected_ranks(sizes, ranks) if kernel.once else sizes.top_k
    machine = calibration if isinstance(calibration, MachineCalibration) else None
    hop_ns, nic_hop_ns = (machine.hop_ns, machine.nic_hop_ns) if machine else (0.0, 0.0)
    every, found = {}, []
    for op, each in ((DISPATCH, n_bytes.dispatch), (COMBINE, n_bytes.combine)):
        law = node_law(inner, calibration_digest(inner), op, dispatch, None, shape, size)
        every[law.named] = law
        here, there = link_of(calibration, size), LINK_BYTES_PER_S.get(law.gpu, 0.0)
        inside = (size - 1) / size if kernel.forwarded or nodes == 1 else (size - 1) / ranks
        law = law.scale(here / there) if here and there and here != there else law
        ns = max(law.fixed_ns + hop_ns, 0.0) + law.busy(tokens * away * inside * each)
        if nodes > 1:
            beyond = between_law(outer, calibration_digest(outer), op, dispatch, None, shape, nodes)
            every[beyond.named] = beyond
            if machine:
                beyond = beyond.scale(machine.nic_bytes_per_s / NIC_BYTES_PER_S)
            sent = nodes_away(nodes, sizes.top_k, sizes.experts) if kernel.once else away * (nodes - 1) / nodes
            ns = np.maximum(ns, max(beyond.fixed_ns + nic_hop_ns, 0.0) + beyond.busy(tokens * sent * each))
        found.append(np.where(tokens > 0, ns, 0.0))
    prepare = np.where(tokens > 0, prepare_ns(inner, DISPATCH, dispatch, None, size), 0.0)
    carried = any(law.carried or law.gpu != calibration.gpu for law in every.values())
    sources = f"dispatch and combine of {ranks} ranks: {'; '.join(every)}"
    if carried:
        sources += (
            f" (not measured on {ranks} ranks of {calibration.gpu}{_describe_error(inner, dispatch, shape, size)})"
        )
    return TransferTimes(found[0] + prepare, found[1], carried, sources)


def _nearest_kernels(calibration: CalibrationSpec, dispatch: str, size: int, nodes: int) -> tuple[str, str]:
    """Names of the calibrations whose kernels inside a node, and between nodes, are nearest. Raises LawMissing."""
    inner: tuple[float, str] | None = None
    outer = ""
    for each in chain([calibration], siblings_of(calibration)):  # read only if it is needed
        gpu = each.gpu
        try:
            laws = Laws(calibration_named(gpu))
            variant = variant_of(laws, dispatch, None, size)
        except SpecError:  # a calibration of a user's own, or one without kernels
            continue
        beyond = ranks_beyond(laws, variant, size)
        if beyond < inf and (inner is None or beyond < inner[0]):
            inner = beyond, gpu
        if not outer and any(each[4] > 1 for each in measured_shapes(laws, variant, DISPATCH)):
            outer = gpu
        if inner is not None and inner[0] == 0 and (nodes == 1 or outer):
            break
    if inner is None or (nodes > 1 and not outer):
        where = "between nodes" if inner else "of a node"
        raise LawMissing(f"calibration {calibration.gpu} has no kernels for dispatch: {dispatch} {where}, and no other")
    return inner[1], outer


JUDGED_TOKENS = 2.0 ** np.arange(0, 11, 2)  # of a rank, on which the law of ranks is judged


def _describe_error(name: str, dispatch: str, shape: tuple[int, int, int], size: int) -> str:
    """How far the law of ranks is off where the measured number nearest to ``size`` is left out; '' for too few."""
    laws = Laws(calibration_named(name))
    variant = variant_of(laws, dispatch, None, size)
    there = measured_shapes(laws, variant, DISPATCH, nodes=1)
    near = nearest_shape(there, shape)
    known = sorted({each[3] for each in there if each[:3] == near})
    inner = known[1:-1] if size < known[-1] else known[1:]
    if not inner:
        return ""
    left = min(inner, key=lambda each: abs(log2(each / size)))
    below, above, weight = around([each for each in known if each != left], left)
    asked: dict[str, Any] = {
        "kernel": variant, "nodes": 1, **dict(zip(("hidden", "top_k", "experts"), near, strict=True)),
    }  # fmt: skip
    off = []
    for op in (DISPATCH, COMBINE):
        ends = [laws.dispatch_combine(op, JUDGED_TOKENS, ranks=each, **asked).ns for each in (below, above)]
        ours = ends[0] ** (1 - weight) * ends[1] ** weight
        off.append(ours / laws.dispatch_combine(op, JUDGED_TOKENS, ranks=left, **asked).ns - 1)
    return f"; {left} ranks left out, {np.min(off):+.0%} to {np.max(off):+.0%} off"
