"""Fit the laws of a measured mesh (`archsim.laws.mesh`), and choose their terms by cross-validation.

A law has at most `MOST_CONSTANTS` constants, none negative, and no links that are faster than their nominal rate. They
are found by least squares of relative errors (Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23).
Which terms it has is chosen for a whole family of kernels at once: cases are left out one at a time, with all their
measurements, and the terms with the least mean error win; of terms within `EQUALLY_GOOD` of it, those with the fewest
constants. Where a kernel has fewer than `LEAST_CASES` cases, nothing can be left out: the terms are then those of
`GIVEN`, and the law's note says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from types import MappingProxyType

import numpy as np
from scipy.optimize import nnls

from archsim.base.sums import sum
from archsim.laws.mesh import COMBINE, DISPATCH, EndpointLaw, HopLatency, LawResiduals, LinkRate, quantities
from archsim.machine.fabric_calibrations import FabricCalibration
from calibration.measurements.mesh import BLACKHOLE, EVEN, MI300X, TPU7X, Case, Latency, Meshes, Rate

FIXED, LINK = "fixed", "link"
MOST_CONSTANTS = 2
EQUALLY_GOOD = 1.2
LEAST_CASES = 4
NEAR_ZERO = 1e-9  # a constant of less than this share of the times is none
SOURCES = MappingProxyType({
    BLACKHOLE: "tenstorrent/tt-metal (Apache-2.0): profiling reports, tests of dispatch, combine and fabric, 2026",
    TPU7X: "lm-sys/lm-sys.github.io, blog of 2026-06-17 on Ling 2.6 on TPU (MIT)",
    MI300X: "ROCm/mori README, table of EP8",
})  # fmt: skip
# Family and kernel → terms where too few cases were measured to choose, and why these.
GIVEN = MappingProxyType({
    ("replay", DISPATCH): (("tokens",), "every case gives the same time a vector within 0.2 %"),
    ("replay", COMBINE): ((FIXED, "experts"), "what a chip returns explains that shuffling the sources is faster, too"),
    ("uniform", DISPATCH): (("tokens", "sender", LINK), "as many constants as settings: it says nothing of itself"),
    ("uniform", COMBINE): (("experts", LINK), "as of the captured columns"),
    ("stage", DISPATCH): (("tokens",), "as of the replay"),
    ("stage", COMBINE): (("experts",), "as of the model's layers"),
    ("mori", DISPATCH): ((FIXED, LINK), "two numbers of tokens: it says nothing of itself"),
    ("mori", COMBINE): ((FIXED, LINK), "as of dispatch"),
    ("tpu in-kernel", DISPATCH): (("tokens", LINK), "links at their nominal rate; what is left is a time a row"),
    ("tpu flat", DISPATCH): ((FIXED, LINK), "fixed as of all-reduces of 4 and 8 MB on the same 32 devices"),
})  # fmt: skip
TPU_FIXED_NS = 117_700.0  # all-reduce of 3.932 MB 0.1238 ms and 7.864 MB 0.1299 ms: what is left at 0 bytes


def fit_meshes(measured: Meshes) -> list[FabricCalibration]:
    """A calibration for every machine with cases."""
    machines = dict.fromkeys(case.machine for case in measured.cases)
    laws = endpoint_laws(measured.cases)
    found = []
    for machine in machines:
        own = machine == BLACKHOLE
        found.append(
            FabricCalibration(
                machine, SOURCES.get(machine, "given by the user"),
                tuple(law for law in laws if law.machine == machine),
                link_rates(measured.rates) if own else (), hop_latencies(measured.latencies) if own else (),
                tuple((b.mesh, b.fabric, b.ns) for b in measured.blocks if b.kind == "moe" and b.gate == "device")
                if own else (),
            )
        )  # fmt: skip
    return found


def endpoint_laws(cases: Sequence[Case]) -> list[EndpointLaw]:
    """A law for every kernel and version of every machine."""
    families: dict[tuple[str, str, str], list[Case]] = {}
    for case in cases:
        families.setdefault((case.machine, case.family, case.kernel), []).append(case)
    found = []
    for (_, family, kernel), own in families.items():
        versions: dict[str, list[Case]] = {}
        for case in own:
            versions.setdefault(case.version, []).append(case)
        terms, why = _choose_terms(family, kernel, list(versions.values()))
        found += [fit_law(group, terms, why) for group in versions.values()]
    return found


def _choose_terms(family: str, kernel: str, groups: Sequence[Sequence[Case]]) -> tuple[tuple[str, ...], str]:
    """(terms of a family's laws, why)."""
    judged = [group for group in groups if len({case.whole for case in group}) >= LEAST_CASES]
    pooled = len({case.whole for group in groups for case in group}) >= LEAST_CASES and len(groups) > 1
    if (family, kernel) in GIVEN and not judged:
        return GIVEN[family, kernel]
    if not judged and not pooled:
        return ((FIXED,), "a single case") if len(groups[0]) == 1 else (("experts",), "too few cases to choose")
    end = "tokens" if kernel == DISPATCH else "experts"
    even = all(case.spread == EVEN for group in groups for case in group)  # then all chips have as many
    known = tuple(dict.fromkeys((FIXED, end) if even else (FIXED, end, "experts"))) + (LINK,)
    every = [each for n in range(1, MOST_CONSTANTS + 1) for each in combinations(known, n)]
    scores = {terms: _left_out_mean(groups, terms) for terms in every}
    best = min(scores.values())
    near = [terms for terms, score in scores.items() if score <= best * EQUALLY_GOOD]
    terms = min(near, key=lambda each: (len(each), scores[each]))
    ranked = sorted(scores, key=lambda each: scores[each])[:4]
    listed = "; ".join(f"{' + '.join(each)} {100 * scores[each]:.1f} %" for each in ranked)
    return terms, f"terms by mean error of cases left out: {listed}"


def _left_out_mean(groups: Sequence[Sequence[Case]], terms: tuple[str, ...]) -> float:
    errors = [error for group in groups for error in left_out(group, terms)]
    return float(np.mean(np.abs(errors))) if errors else np.inf


def left_out(cases: Sequence[Case], terms: tuple[str, ...]) -> list[float]:
    """Relative errors of every case by the law of the others; none where too few are left."""
    found = []
    for whole in dict.fromkeys(case.whole for case in cases):
        others = [case for case in cases if case.whole != whole]
        if len({case.whole for case in others}) < len(terms):
            return []
        constants = _constants(others, terms)
        own = [case for case in cases if case.whole == whole]
        found += list(_columns_of(own, terms) @ constants / _times(own) - 1)
    return found


def fit_law(cases: Sequence[Case], terms: tuple[str, ...], why: str) -> EndpointLaw:
    """The law of one kernel and version, with its residuals."""
    first = cases[0]
    if first.family == "tpu in-kernel":
        nominal = 1e9 / (cases[0].links * cases[0].link_bytes_per_s)
        rows, crossing = _columns_of(cases, ("tokens", LINK)).T
        constants = np.array([float(np.mean((_times(cases) - crossing * nominal) / rows)), nominal])
    elif first.family == "tpu flat":
        constants = np.array(
            [TPU_FIXED_NS, float(np.mean((_times(cases) - TPU_FIXED_NS) / _columns_of(cases, (LINK,))[:, 0]))]
        )
    else:
        constants = _constants(cases, terms)
    errors = _columns_of(cases, terms) @ constants / _times(cases) - 1
    out = np.abs(left_out(cases, terms))
    of = dict(zip(terms, constants.tolist(), strict=True))
    residuals = LawResiduals(
        points=len(cases), cases=len({case.whole for case in cases}), mean=float(np.abs(errors).mean()),
        most=float(np.abs(errors).max()), held_out_mean=float(out.mean()) if len(out) else None,
        held_out_most=float(out.max()) if len(out) else None,
    )  # fmt: skip
    most = max(case.links for case in cases)
    return EndpointLaw(
        machine=first.machine, kernel=first.kernel, version=first.version,
        topologies=tuple(dict.fromkeys(case.topology for case in cases)), links=most,
        link_bytes_per_s=first.link_bytes_per_s, vector_bytes=first.vector_bytes, fixed_ns=of.pop(FIXED, 0.0),
        ns_per_vector={term: ns for term, ns in of.items() if term != LINK and ns}, link_ns_per_byte=of.get(LINK, 0.0),
        nulls=_nulls(cases), residuals=residuals, note=why,
    )  # fmt: skip


def _nulls(cases: Sequence[Case]) -> dict[str, float]:
    """The one constant of each null model (`archsim.laws.mesh.NULLS`), on the same cases."""
    end = "tokens" if cases[0].kernel == DISPATCH else "experts"
    terms = {"links only": LINK, "endpoint only": end, "constant": FIXED}
    return {name: float(_constants(cases, (term,))[0]) for name, term in terms.items()}


def _constants(cases: Sequence[Case], terms: tuple[str, ...]) -> np.ndarray:
    """float64[term], with least squares of relative errors."""
    times, first = _times(cases), cases[0]
    weighted = _columns_of(cases, terms) / times[:, None]
    links = np.array([term == LINK for term in terms])
    if links.all():
        return _least_squares(weighted, np.zeros(1))[1]
    nominal = 1e9 / (max(case.links for case in cases) * first.link_bytes_per_s)
    ways = [_least_squares(weighted * ~links, np.zeros(len(terms)))]
    if links.any():
        ways.append(_least_squares(weighted, nominal * links))
    return min(ways, key=lambda way: round(way[0], 9))[1]


def _least_squares(weighted: np.ndarray, least: np.ndarray) -> tuple[float, np.ndarray]:
    """(error, constants float64[term] of at least ``least``). ``weighted``: float64[case, term], over the times."""
    scale = np.maximum(weighted.max(axis=0), np.finfo(float).tiny)
    found, error = nnls(weighted / scale, 1.0 - weighted @ least)
    return float(error), least + np.where(found < NEAR_ZERO, 0.0, found / scale)


def _columns_of(cases: Sequence[Case], terms: Sequence[str]) -> np.ndarray:
    """float64[case, term]: what a constant of each term is multiplied by."""
    most = max(case.links for case in cases) if cases else 1
    rows = []
    for case in cases:
        of = quantities(case.sent, case.sides, case.wrapped, case.kernel)
        fewer = most / case.links
        known = {FIXED: 1.0, **of, "sender": of["sender"] * fewer, LINK: of[LINK] * case.vector_bytes * fewer}
        rows.append([known[term] for term in terms])
    return np.array(rows, float).reshape(len(cases), len(terms))


def _times(cases: Sequence[Case]) -> np.ndarray:
    return np.array([case.measured_ns for case in cases])


def link_rates(rates: Sequence[Rate]) -> tuple[LinkRate, ...]:
    """A law for every machine and pattern of traffic; relative errors are least."""
    found = []
    for machine, pattern in dict.fromkeys((rate.machine, rate.pattern) for rate in rates):
        own = [rate for rate in rates if (rate.machine, rate.pattern) == (machine, pattern)]
        law = _rate_law(machine, pattern, own)
        errors = np.abs([law.rate(each.packet_bytes) / each.bytes_per_s - 1 for each in own])
        sizes = len({each.packet_bytes for each in own})
        found.append(law._replace(residuals=LawResiduals(len(own), sizes, float(errors.mean()), float(errors.max()))))
    return tuple(found)


def _rate_law(machine: str, pattern: str, own: Sequence[Rate]) -> LinkRate:
    """Each measurement is limited by its packets, or by the link: try every size as the first of the latter."""
    sizes = sorted({each.packet_bytes for each in own})
    best = None
    for split in range(len(sizes) + 1):
        small = [each for each in own if each.packet_bytes in sizes[:split]]
        large = [each for each in own if each.packet_bytes in sizes[split:]]
        peak = _mean([each.bytes_per_s for each in large]) if large else max(each.bytes_per_s for each in own)
        first = sizes[split] if large else 0.0
        packet_ns = (
            1e9 * _mean([each.packet_bytes / each.bytes_per_s for each in small]) if small else 1e9 * first / peak
        )
        law = LinkRate(machine, pattern, packet_ns, peak)
        error = sum((law.rate(each.packet_bytes) / each.bytes_per_s - 1) ** 2 for each in own)
        if best is None or error < best[0]:
            best = error, law
    assert best is not None, "at least one split"
    return best[1]


def _mean(values: Iterable[float]) -> float:
    return float(np.exp(np.mean(np.log(list(values)))))


def hop_latencies(latencies: Sequence[Latency]) -> tuple[HopLatency, ...]:
    """A law for every machine."""
    found = []
    for machine in dict.fromkeys(each.machine for each in latencies):
        own = [each for each in latencies if each.machine == machine]
        terms = np.array([[1.0, each.payload_bytes, float(each.atomic)] for each in own])
        times = np.array([each.ns for each in own])
        used = terms.any(axis=0)
        scale = np.where(used, (terms / times[:, None]).max(axis=0), 1.0)
        constants = np.where(used, nnls(terms / times[:, None] / scale, np.ones(len(own)))[0] / scale, 0.0)
        errors = np.abs(terms @ constants / times - 1)
        cases = len({each.payload_bytes for each in own})
        residuals = LawResiduals(len(own), cases, float(errors.mean()), float(errors.max()))
        ns, ns_per_byte, atomic_ns = constants.tolist()
        found.append(HopLatency(machine, ns, ns_per_byte, atomic_ns, residuals))
    return tuple(found)
