"""Laws of serving, asked as an outcome becomes a record: causality, tokens, KV room, Little's law, rates, shares."""

from collections.abc import Iterator

import numpy as np

from archsim.base.units import NS_PER_S, WEIGHT_BYTES
from archsim.iteration.layers import (
    ALL_REDUCE,
    CAUSES,
    SAMPLED,
    TOKENS,
    Collective,
    LayerProduct,
    count_operators,
    dtype_of,
    program,
)
from archsim.iteration.machine import measured_peak
from archsim.iteration.times import IterationLaws
from archsim.laws.tables import CalibrationSpec, MachineCalibration
from archsim.runs.physical_laws import ROUNDING
from archsim.serving.measures import Measures, times_ns
from archsim.serving.simulate import Served
from archsim.specs.deployment import Precision


def broken_laws(served: Served, measures: Measures, devices: int, drawn: bool = False) -> Iterator[str]:
    """What cannot be, one clause each. ``drawn``: times of requests are off by the residual of a measured engine, which
    is drawn when they have ended and moves no later arrival: Little's law does not hold for them.
    """
    requests, totals = served.requests, served.totals
    order = ("arrival_ns", "scheduled_ns", "first_ns", "last_ns")
    for before, after in zip(order, order[1:], strict=False):
        early = int((requests[after] < requests[before] - 1.0).sum())  # ns
        if early and (served.ttft or after == "last_ns"):
            yield f"{after} is before {before} for {early:,} requests"
    if (requests["made"] != requests["output"]).any():
        yield f"{requests['made'].sum():,} of {requests['output'].sum():,} tokens are made"
    if (requests["hit"] > requests["input"]).any():
        yield "the prefix cache holds more of a prompt than it has"
    computed = int(totals["prefill_tokens"] + totals["decode_tokens"] + totals["loaded_tokens"])
    least = int((requests["input"] - requests["hit"]).sum() + (requests["output"] - 1).sum() * served.ttft)
    if served.ttft and not (totals["drafted"] or len(served.failed)) and computed < least:
        yield f"{computed:,} tokens are computed, and requests have {least:,}"
    inside = float(times_ns(served)["e2e"].sum()) / max(measures.duration_s * 1e9, 1.0)
    if served.concurrency and not drawn and inside > served.concurrency * (1 + ROUNDING):
        yield f"{inside:,.2f} requests of {served.concurrency:,} clients are under way on average"
    most = 1 + ROUNDING
    shares = {
        "KV": measures.kv_peak,
        "KV on average over its peak": measures.kv_mean / max(measures.kv_peak, 1e-300),
        "prompts found": measures.prefix_hits,
        "requests within the limits": measures.within_slo,
        "goodput": measures.goodput_per_s / measures.requests_per_s if measures.requests_per_s else 0.0,
        "balance": measures.balancedness,
        "tokens of devices": measures.output_tokens_per_s_device * devices / max(measures.output_tokens_per_s, 1e-300),
        "drafts accepted": totals["accepted"] / max(totals["drafted"], 1),
    }
    for name, share in shares.items():
        if not 0 <= share <= most:
            yield f"the share of {name} is {share:.1%}"
    for name in ("ttft", "tpot", "itl", "e2e"):
        percentiles = np.array(getattr(measures, name).percentiles)
        if (np.diff(percentiles) < 0).any() or (percentiles < 0).any():
            yield f"the percentiles of {name} are {', '.join(f'{each:,.3f}' for each in percentiles)}"


def below_roofline(laws: IterationLaws, calibration: CalibrationSpec, precision: Precision) -> Iterator[str]:
    """Where the GEMMs, or the all-reduces inside a node, of an iteration take less time than the rates of the machine
    allow, one clause each. An all-reduce passes its bytes at least once over a port, however switches add them up.
    """
    reference = calibration.reference
    operators = count_operators(program(laws.model, laws.parallel))
    dtypes = {dtype_of(each, precision) for each in operators if isinstance(each, LayerProduct)}
    peaks = {dtype: max(measured_peak(reference, dtype), reference.peak_flop_per_s.get(dtype, 0.0)) for dtype in dtypes}
    for rows in (TOKENS, SAMPLED):
        flop_s = weight_bytes = passed_s = 0.0
        for each, number in operators.items():
            if isinstance(each, LayerProduct) and each.rows == rows and each.cause in laws.by.get(rows, {}):
                dtype = dtype_of(each, precision)
                flop_s += 2.0 * each.n * each.k * number / each.sharing / peaks[dtype]
                weight_bytes += each.n * each.k * number * WEIGHT_BYTES[dtype]
            if isinstance(calibration, MachineCalibration) and isinstance(each, Collective) and each.rows == rows:
                if each.op == ALL_REDUCE and each.cause == ALL_REDUCE and each.ranks <= calibration.domain:
                    passed_s += number * each.row_bytes / calibration.link_bytes_per_s
        at = np.array([size for size in (1, 64, 4096) if size < laws.sizes])
        linked_ns = laws.ns(ALL_REDUCE, rows=rows)[at]
        kernels_ns = laws.ns(*CAUSES, rows=rows)[at] - linked_ns
        for name, ns, least_s in (
            ("FLOP of GEMMs at peak", kernels_ns, flop_s * at),
            ("weights from HBM", kernels_ns, np.full(len(at), weight_bytes / reference.hbm_bytes_per_s)),
            ("all-reduces over the links", linked_ns, passed_s * at),
        ):
            for size in np.flatnonzero(ns < least_s * NS_PER_S * (1 - ROUNDING))[:1]:
                yield (
                    f"an iteration of {at[size]:,} {rows} takes {ns[size] / 1e6:,.3f} ms, less than its {name} "
                    f"({least_s[size] * 1e3:,.3f} ms)"
                )
