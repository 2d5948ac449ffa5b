"""Laws of a measured mesh of chips: the rate of a link by packet size, the latency of a hop, and the endpoint law.

The endpoint law says how long a kernel takes to dispatch hidden vectors over a mesh, or to combine their results, where
every chip has a limited number of cores that send and receive, apart from its links:

    time = fixed + sum over terms of (vectors of the term, on the busiest chip or link) * (time of a vector)

A vector is an assignment of a token to an expert of another chip. An endpoint handles vectors, whatever their size; a
link passes bytes:

============  =========================================================================================================
term          vectors that it counts
============  =========================================================================================================
``tokens``    that the chip with most of them sends in a dispatch, and gets back in a combine
``sender``    the same, where each link has a core of its own to send them: with fewer links it takes longer
``experts``   that the chip with most of them receives in a dispatch, and returns in a combine
``link``      that cross the busiest direction between two neighbours; its time is one by bytes, never below that of
              the nominal rate of the links
============  =========================================================================================================

A law belongs to a kernel, its version and the harness that timed it, and holds for the topologies that it was measured
on. DeepEP's ports are the same law, with one term whose time is a table instead of a rate
(`archsim.engine.cluster.laws.PortLaw`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from archsim.base.sums import sum
from archsim.base.units import NS_PER_S

ENDPOINT_TERMS = ("tokens", "sender", "experts")
LINK = "link"
TERMS = (*ENDPOINT_TERMS, LINK)
DISPATCH, COMBINE = KERNELS = ("dispatch", "combine")
NULLS = ("links only", "endpoint only", "constant")
LINEAR, RING, MESH, FULL = TOPOLOGIES = ("linear", "ring", "mesh", "full")


class LawResiduals(NamedTuple):
    """Relative errors of a law: of the points of its fit, and of cases left out of the fit, one after the other."""

    points: int  # of the fit
    cases: int  # that were left out, one after the other
    mean: float  # of the fit
    most: float  # of the fit
    held_out_mean: float | None = None  # of cases left out
    held_out_most: float | None = None  # of cases left out


class EndpointLaw(NamedTuple):
    """See the module."""

    machine: str  # its name
    kernel: str  # DISPATCH or COMBINE
    version: str  # of the kernels
    topologies: tuple[str, ...]  # of the measured cases
    links: int  # of a direction between neighbours, as measured
    link_bytes_per_s: float  # nominal rate of each, as measured
    vector_bytes: float  # of a vector, as measured
    fixed_ns: float  # of every call
    ns_per_vector: Mapping[str, float]  # of `ENDPOINT_TERMS`
    link_ns_per_byte: float = 0.0  # of all links of a direction
    # the constant of each null model (`null_ns`), fitted to the same cases
    nulls: Mapping[str, float] = MappingProxyType({})
    residuals: LawResiduals | None = None  # of the cases; None: not kept
    note: str = ""  # what was decided in the fit

    def time_ns(
        self, vectors: Mapping[str, float], vector_bytes: float, links: int | None = None, rate: float | None = None
    ) -> float:
        """ns of a kernel. ``vectors``: by term (`quantities`); ``links`` and ``rate`` (bytes/s one way to a neighbour):
        None: as measured. No kernel beats the busiest link at ``rate``.
        """
        passed_ns, busiest_ns = self.link_ns(vectors, vector_bytes, links), 0.0
        if rate is not None:
            passed_ns *= (links or self.links) * self.link_bytes_per_s / rate
            busiest_ns = vectors[LINK] * vector_bytes / rate * NS_PER_S
        return max(self.fixed_ns + self.endpoint_ns(vectors, links) + passed_ns, busiest_ns)

    def endpoint_ns(self, vectors: Mapping[str, float], links: int | None = None) -> float:
        """What the busiest chip is busy."""
        fewer = self.links / (links or self.links)
        return sum(vectors[term] * ns * (fewer if term == "sender" else 1) for term, ns in self.ns_per_vector.items())

    def link_ns(self, vectors: Mapping[str, float], vector_bytes: float, links: int | None = None) -> float:
        """What the busiest links add."""
        fitted = self.link_ns_per_byte
        if fitted and links is not None:
            fitted = max(fitted, 1e9 / self.link_bytes_per_s / links)
        return vectors[LINK] * vector_bytes * fitted

    def null_ns(self, name: str, vectors: Mapping[str, float], vector_bytes: float, links: int | None = None) -> float:
        """What a model of one constant says, one of `NULLS`; nan where none was fitted."""
        end = "tokens" if self.kernel == DISPATCH else "experts"
        fewer = self.links / (links or self.links)
        of = {"links only": vectors[LINK] * vector_bytes * fewer, "endpoint only": vectors[end], "constant": 1.0}
        return self.nulls.get(name, float("nan")) * of[name]

    @property
    def bytes_per_s(self) -> float:
        """The rate at which a chip sends or returns vectors, by its slowest term; infinite without one."""
        slowest = max(self.ns_per_vector.values(), default=0.0)
        return self.vector_bytes * 1e9 / slowest if slowest else float("inf")


class LinkRate(NamedTuple):
    """The rate that one link reaches with packets of a size: a router needs at least ``packet_ns`` for a packet.

    ``pattern``: of the traffic. The rate is the size over ``packet_ns``, and at most ``bytes_per_s``.
    """

    machine: str
    pattern: str
    packet_ns: float
    bytes_per_s: float
    residuals: LawResiduals | None = None

    def rate(self, packet_bytes: float) -> float:
        """Bytes/s. Raises ValueError for a packet without bytes."""
        if not packet_bytes > 0:
            raise ValueError(f"a packet of {packet_bytes:g} bytes; expected more than 0")
        return min(packet_bytes * 1e9 / self.packet_ns, self.bytes_per_s)


class HopLatency(NamedTuple):
    """ns of a hop: ``ns`` plus the bytes of the payload times ``ns_per_byte``, plus ``atomic_ns`` with an atomic."""

    machine: str
    ns: float
    ns_per_byte: float
    atomic_ns: float
    residuals: LawResiduals | None = None

    def of(self, payload_bytes: float, atomic: bool = False) -> float:
        return self.ns + self.ns_per_byte * payload_bytes + self.atomic_ns * atomic


def quantities(sent: np.ndarray, sides: Sequence[int], wrapped: Sequence[bool], kernel: str) -> dict[str, float]:
    """Vectors of every term.

    ``sent``: float64[source, destination], assignments of the tokens of a chip to the experts of another, in a combine,
    too; the diagonal stays on its chip and counts for nothing. ``sides``: chips along each axis, chip = x + X * y, ...;
    empty: every chip has a link to every other. ``wrapped``: whether an axis is a ring. ``kernel``: of `KERNELS`.

    Raises ValueError for a matrix of another size than the mesh.
    """
    sent = np.ascontiguousarray(sent, float)
    chips = int(np.prod(sides)) if sides else len(sent)
    if sent.shape != (chips, chips):
        shape = " x ".join(map(str, sent.shape))
        raise ValueError(f"a matrix of {shape}; expected a row and a column for each of {chips} chips")
    return dict(_quantities(sent.tobytes(), chips, tuple(sides), tuple(wrapped), kernel))


@lru_cache(maxsize=1024)
def _quantities(content: bytes, chips: int, sides: tuple[int, ...], wrapped: tuple[bool, ...], kernel: str):
    """`quantities`, once for a matrix: fits ask for the same ones many times."""
    sent = np.frombuffer(content).reshape(chips, chips).copy()
    np.fill_diagonal(sent, 0.0)
    over = sent if kernel == DISPATCH else sent.T
    tokens = float(sent.sum(axis=1).max())
    busiest = link_loads(over, sides, wrapped) if sides else over
    return {
        "tokens": tokens, "sender": tokens, "experts": float(sent.sum(axis=0).max()),
        LINK: float(busiest.max(initial=0.0)),
    }  # fmt: skip


def link_loads(sent: np.ndarray, sides: Sequence[int], wrapped: Sequence[bool]) -> np.ndarray:
    """float64[axis, way, chip]: vectors that leave a chip along an axis, up (0) or down (1).

    Routes go the shorter way round each axis, one axis after the other; of two equal ways each takes half.
    """
    chips = len(sent)
    shape = tuple(reversed(sides))
    place = np.array(np.unravel_index(np.arange(chips), shape))[::-1]  # [axis, chip]
    loads = np.zeros((len(sides), 2, chips))
    for source, target in np.argwhere(sent > 0):
        at = place[:, source].copy()
        for axis, side in enumerate(sides):
            for way, steps, share in _ways(int(at[axis]), int(place[axis, target]), side, wrapped[axis]):
                here = at.copy()
                for _ in range(steps):
                    loads[axis, way, np.ravel_multi_index(here[::-1], shape)] += share * sent[source, target]
                    here[axis] = (here[axis] + (1, -1)[way]) % side
            at[axis] = place[axis, target]
    return loads


def _ways(here: int, there: int, side: int, ring: bool) -> list[tuple[int, int, float]]:
    """(way, steps, share of the traffic) from one place of an axis to another."""
    up, down = (there - here) % side, (here - there) % side
    if here == there:
        return []
    if not ring:
        return [(0, there - here, 1.0)] if there > here else [(1, here - there, 1.0)]
    if up == down:
        return [(0, up, 0.5), (1, down, 0.5)]
    return [(0, up, 1.0)] if up < down else [(1, down, 1.0)]
