"""How the dies of a system are linked: the name of a topology, and links that differ from the system's ``d2d``.

In YAML a name (``topology: torus``), or a mapping::

    topology: {name: mesh, vertical: {bandwidth: 1 TB/s, hop_latency: 80 ns}}      # as rows and columns of a SoW
    topology: {name: edges, edges: [[0, 1], {dies: [1, 2], bandwidth: 4 TB/s}]}

What each name means, its routes and the order of its classes of links: ``microarch.fabric.topology``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, field_validator, model_serializer, model_validator

from archsim.specs.text.fields import KeyProblem, Spec, count
from archsim.specs.text.quantities import BANDWIDTH, TIME, format_quantity, quantity

Bandwidth = quantity(BANDWIDTH, "1 GB/s", "1 PB/s")
Latency = quantity(TIME, "1e-6 ns", "1 ms", zero=True)
_GRIDS = ("mesh", "torus")
_MOST_DIES = 64 * 64


class LinkSpec(Spec):
    """What links of a class have instead of the system's ``d2d``; null: the same."""

    bandwidth_bytes_per_s: Bandwidth | None = Field(None, alias="bandwidth")
    hop_latency_ns: Latency | None = Field(None, alias="hop_latency")

    @model_serializer
    def _given(self) -> dict[str, Any]:
        return _written(self, ("bandwidth_bytes_per_s", "hop_latency_ns"))


class EdgeSpec(LinkSpec):
    """A link each way between two dies. In YAML ``[0, 1]``, or ``{dies: [0, 1], bandwidth: ..., hop_latency: ...}``."""

    dies: tuple[count(0, _MOST_DIES - 1), ...]

    @model_validator(mode="before")
    @classmethod
    def _from_pair(cls, given: Any) -> Any:
        return {"dies": given} if isinstance(given, list | tuple) else given

    @field_validator("dies")
    @classmethod
    def _two(cls, dies: tuple[int, ...]) -> tuple[int, ...]:
        if len(dies) != 2:
            raise ValueError(f"an edge has two dies, not {len(dies)}")
        return dies

    @model_serializer
    def _given(self) -> list[int] | dict[str, Any]:
        own = _written(self, ("bandwidth_bytes_per_s", "hop_latency_ns"))
        return {"dies": list(self.dies)} | own if own else list(self.dies)


class TopologySpec(Spec):
    """Which dies are linked, and classes of links. ``horizontal``, ``vertical``: along x, along y; ``wrap``: from last to first."""

    name: Literal["mesh", "torus", "ring", "fully_connected", "switch", "edges"] = "mesh"
    horizontal: LinkSpec | None = None
    vertical: LinkSpec | None = None
    wrap: LinkSpec | None = None
    edges: tuple[EdgeSpec, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _parts_belong(self) -> TopologySpec:
        for key in ("horizontal", "vertical"):
            if getattr(self, key) is not None and self.name not in _GRIDS:
                raise KeyProblem((key,), f"links of topology {self.name} have no direction; only {' and '.join(_GRIDS)} have rows and columns")
        if self.wrap is not None and self.name != "torus":
            raise KeyProblem(("wrap",), f"only a torus has links that wrap around, not topology {self.name}")
        if self.edges and self.name != "edges":
            raise KeyProblem(("edges",), f"topology {self.name} lists no edges; expected name: edges")
        return self

    @model_serializer
    def _short(self) -> str | dict[str, Any]:
        parts = {key: value for key in ("horizontal", "vertical", "wrap") if (value := getattr(self, key)) is not None}
        if self.edges:
            parts["edges"] = list(self.edges)
        return {"name": self.name} | parts if parts else self.name

    @property
    def classes(self) -> tuple[LinkSpec, ...]:
        """What links of each class have of their own, in the order of ``Mesh.link_class``."""
        if self.name in _GRIDS:
            along = self.horizontal or LinkSpec(), self.vertical or LinkSpec()
            return *along, self.wrap or along[0], self.wrap or along[1]
        return self.edges if self.name == "edges" else (LinkSpec(),)

    def refuse_unconnected(self, dies: int) -> None:
        """Raises KeyProblem, below the system, for an edge that there cannot be, is listed twice, or dies without a route."""
        seen: dict[tuple[int, ...], int] = {}
        for index, edge in enumerate(self.edges):
            for end, die in enumerate(edge.dies):
                if die >= dies:
                    raise KeyProblem(("topology", "edges", index), f"there is no die {die} (end {end + 1} of 2); expected 0 to {dies - 1}")
            pair = tuple(sorted(edge.dies))
            if pair[0] == pair[1]:
                raise KeyProblem(("topology", "edges", index), f"links die {pair[0]} to itself")
            if pair in seen:
                raise KeyProblem(("topology", "edges", index), f"dies {pair[0]} and {pair[1]} are linked already, by item {seen[pair]}")
            seen[pair] = index
        apart = _unreached(dies, seen) if self.name == "edges" else []
        if apart:
            shown = ", ".join(map(str, apart[:8])) + (" …" if len(apart) > 8 else "")
            raise KeyProblem(
                ("topology", "edges"),
                f"no route from die 0 to {'die' if len(apart) == 1 else 'dies'} {shown}; list the links, such as edges: [[0, 1], [1, 2]]",
            )


def _unreached(dies: int, pairs: Iterable[tuple[int, ...]]) -> list[int]:
    around: dict[int, list[int]] = {}
    for a, b in pairs:
        around.setdefault(a, []).append(b)
        around.setdefault(b, []).append(a)
    reached, waiting = {0}, [0]
    while waiting:
        for other in around.get(waiting.pop(), ()):
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return [die for die in range(dies) if die not in reached]


def _written(spec: LinkSpec, fields: tuple[str, ...]) -> dict[str, Any]:
    """The fields that are given, by alias, with units."""
    kinds = dict(zip(fields, (BANDWIDTH, TIME), strict=True))
    return {
        type(spec).model_fields[field].alias: format_quantity(value, kinds[field])
        for field in fields
        if (value := getattr(spec, field)) is not None
    }
