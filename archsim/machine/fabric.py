"""How the dies of a system are linked: by a named topology, by levels, or by a user's own function. It also has the
classes of links.

In YAML a name (``topology: torus``), or a mapping::

    topology: {name: mesh, vertical: {bandwidth: 1 TB/s, hop_latency: 80 ns}}      # like rows and columns of a SoW
    topology: {name: edges, edges: [[0, 1], {dies: [1, 2], bandwidth: 4 TB/s}]}
    topology: {name: "package.module:function", dies: 12, params: {radix: 4}}

or levels, innermost first, whose counts multiply (here: 32 dies)::

    fabric:
      levels:
        - {switch: 8, bandwidth: 450 GB/s, hop_latency: 0.3 us, law: h100/intra_node}
        - {switch: 4, per: gpu, bandwidth: 50 GB/s, hop_latency: 2 us}

The meaning of each name, its routes and the order of its link classes: ``microarch.fabric.topology``,
``microarch.fabric.topology`` and, for functions, ``microarch.fabric.topology``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator, model_serializer, model_validator

from archsim.base import config_files
from archsim.base.errors import did_you_mean
from archsim.base.fields import KeyProblem, Spec, check_parameters
from archsim.base.own_code import import_function
from archsim.base.quantities import BANDWIDTH, TIME, count, describe, format_quantity, quantity

Bandwidth = Annotated[float, quantity(BANDWIDTH, "1 GB/s", "1 PB/s")]
Latency = Annotated[float, quantity(TIME, "1e-6 ns", "1 ms", zero=True)]
TOPOLOGIES = ("mesh", "torus", "torus_x", "torus_y", "ring", "fully_connected", "switch", "edges")
LEVEL_KINDS = ("mesh", "torus", "ring", "fully_connected", "switch")
_TORI = ("torus", "torus_x", "torus_y")
_GRIDS = ("mesh", *_TORI)
_MOST_DIES = 64 * 64


class MeshSpec(Spec):
    """Dies along x and y; die id = x + X·y unless the assumption ``numbering`` says otherwise."""

    x: Annotated[int, count(1, 64)]
    y: Annotated[int, count(1, 64)]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        """``5x8`` for ``{x: 5, y: 8}``."""
        sides = re.fullmatch(r"(\d+)\s*[x×]\s*(\d+)", given, re.ASCII) if isinstance(given, str) else None
        if isinstance(given, str) and not sides:
            raise ValueError(f"expected two sides such as 5x5, or {{x: 5, y: 5}}, not {describe(given)}")
        return {"x": int(sides[1]), "y": int(sides[2])} if sides else given


class SidesSpec(MeshSpec):
    """A mesh that may also be written as a list, ``[5, 8]``."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, given: Any) -> Any:
        if isinstance(given, list | tuple):
            if len(given) != 2:
                raise ValueError(f"expected two sides such as [5, 5], not {len(given)}")
            return {"x": given[0], "y": given[1]}
        return given


class LinkSpec(Spec):
    """What the links of a class have instead of the system's ``d2d``; null: the same.

    ``law``: ``calibration/kind``, such as ``h100/intra_node``: the law of measured transfers that an engine may
    evaluate for these links instead of bandwidth and latency.
    """

    bandwidth_bytes_per_s: Bandwidth | None = Field(None, alias="bandwidth")
    hop_latency_ns: Latency | None = Field(None, alias="hop_latency")
    law: str | None = None

    @field_validator("law")
    @classmethod
    def _known_law(cls, law: str | None) -> str | None:
        if law is not None:
            calibration, _, kind = law.rpartition("/")
            if not calibration or not kind.isidentifier():
                raise ValueError(f"expected a calibration and a kind of law, such as h100/intra_node, not {law!r}")
            config_files.known_calibration(calibration)
        return law

    @model_serializer
    def _given(self) -> Any:
        return _written(self)


class EdgeSpec(LinkSpec):
    """A link each way between two dies. In YAML ``[0, 1]``, or ``{dies: [0, 1], bandwidth: ..., hop_latency: ...}``."""

    dies: tuple[Annotated[int, count(0, _MOST_DIES - 1)], ...]

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
    def _given(self) -> Any:
        own = _written(self)
        return {"dies": list(self.dies)} | own if own else list(self.dies)


class LevelSpec(LinkSpec):
    """One level: one of LEVEL_KINDS with its count or sides, and its links. In YAML ``{switch: 8, bandwidth: ...}``.

    ``per``: ``gpu`` (one network for die r of every group, for each r), ``group`` (one network of shared ports, one per
    group), or ``edge`` (dies that face each other on the edges of neighbouring meshes). Default: ``edge`` for meshes
    and tori of meshes, else ``group``. ``library``: whose kernels of ``law`` move hidden vectors; null: DeepEP's, or
    those that were measured on more nearly as many ranks of a node. ``sms``: that DeepEP's normal kernels take, from 4
    to 24; null: 24.
    """

    library: Literal["deepep", "trtllm", "nccl"] | None = None  # whose kernels move hidden vectors
    sms: Annotated[int | None, count(1, 1000, none=True)] = None  # that DeepEP's normal kernels take; null: 24
    switch: Annotated[int, count(1, _MOST_DIES)] | None = None  # ports of a switch
    ring: Annotated[int, count(1, _MOST_DIES)] | None = None  # members of a ring
    fully_connected: Annotated[int, count(1, _MOST_DIES)] | None = None  # members, each linked to each
    mesh: SidesSpec | None = None  # sides
    torus: SidesSpec | None = None  # sides
    per: Literal["gpu", "group", "edge"] | None = None  # which members one network links

    @model_validator(mode="after")
    def _of_one_kind(self) -> LevelSpec:
        found = [kind for kind in LEVEL_KINDS if getattr(self, kind) is not None]
        if len(found) != 1:
            raise ValueError(
                f"a level has exactly one of {', '.join(LEVEL_KINDS)}, such as switch: 8 or mesh: [5, 5]; "
                f"this one has {' and '.join(found) or 'none'}"
            )
        return self

    @model_serializer
    def _given(self) -> dict[str, Any]:
        members = {"x": self.sides[0], "y": self.sides[1]} if self.kind in _GRIDS else self.size
        return (
            {self.kind: members}
            | {name: value for name in ("per", "library", "sms") if (value := getattr(self, name))}
            | _written(self)
        )

    @property
    def kind(self) -> str:
        """One of LEVEL_KINDS."""
        return next(kind for kind in LEVEL_KINDS if getattr(self, kind) is not None)

    @property
    def sides(self) -> tuple[int, int]:
        """(x, y) of a mesh or torus, (count, 1) of the others."""
        members = getattr(self, self.kind)
        return (members.x, members.y) if self.kind in _GRIDS else (members, 1)

    @property
    def size(self) -> int:
        """Dies or groups that the level connects."""
        return prod(self.sides)

    @property
    def text(self) -> str:
        """``5 × 5 mesh``, ``8 switch``."""
        return f"{' × '.join(map(str, self.sides)) if self.kind in _GRIDS else self.size} {self.kind}"


class FabricSpec(Spec):
    """Levels, innermost first; their counts multiply."""

    levels: tuple[LevelSpec, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> FabricSpec:
        if self.levels[0].per is not None:
            raise KeyProblem(
                ("levels", 0, "per"), "the first level connects dies; per says how later levels connect groups"
            )
        if self.dies > _MOST_DIES:
            raise KeyProblem(
                ("levels",),
                f"{self.dies} dies are more than {_MOST_DIES}; {' × '.join(str(each.size) for each in self.levels)}",
            )
        levels = list(self.levels)
        for number, level in enumerate(levels[1:], 1):
            of_meshes = level.kind in _GRIDS and all(
                each.kind == "mesh" and each.per in (None, "edge") for each in levels[:number]
            )
            if level.per == "edge" and not of_meshes:
                raise KeyProblem(
                    ("levels", number, "per"),
                    "only a mesh or torus of meshes has edges that face each other; expected gpu or group",
                )
            if level.per is None:
                levels[number] = level.model_copy(update={"per": "edge" if of_meshes else "group"})
        object.__setattr__(self, "levels", tuple(levels))
        return self

    @property
    def dies(self) -> int:
        return prod(level.size for level in self.levels)

    @property
    def shape(self) -> str:
        """``8 switch``, ``4 × 8 switch``; with different kinds of level ``4 switch of 5 × 5 mesh``, outermost first."""
        kinds = {level.kind for level in self.levels}
        if len(kinds) == 1 and not kinds & set(_GRIDS):
            return f"{' × '.join(str(level.size) for level in reversed(self.levels))} {kinds.pop()}"
        return " of ".join(level.text for level in reversed(self.levels))


class TopologySpec(Spec):
    """Which dies are linked, and the classes of links.

    ``horizontal``, ``vertical``: links along x, along y; ``wrap``: from last to first.

    ``name``: one of TOPOLOGIES, or a user's own ``package.module:function``, which may have ``params``, and ``dies``
    if the system has no mesh.
    """

    # Key that is no key → what to write.
    WAYS: ClassVar[Mapping[str, str]] = {
        "broken": "list the links that are left: {name: edges, edges: [[0, 1], ...]}, or write your own function"
    }
    name: str = "mesh"  # one of TOPOLOGIES, or package.module:function
    horizontal: LinkSpec | None = None  # links along x
    vertical: LinkSpec | None = None  # links along y
    wrap: LinkSpec | None = None  # links from last to first
    edges: tuple[EdgeSpec, ...] = ()  # of name: edges
    dies: Annotated[int, count(1, _MOST_DIES)] | None = None  # if the system has no mesh
    params: dict[str, Any] = Field(default_factory=dict)  # of a user's own function

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @field_validator("name")
    @classmethod
    def _known_name(cls, name: str, info: ValidationInfo) -> str:
        if ":" in name:
            if info.context:
                import_function(name)
        elif name not in TOPOLOGIES:
            raise ValueError(
                f"unknown value {name!r}{did_you_mean(name, TOPOLOGIES)} (valid: {', '.join(TOPOLOGIES)}; "
                "or your own function as package.module:function)"
            )
        return name

    @model_validator(mode="after")
    def _keys_belong(self, info: ValidationInfo) -> TopologySpec:
        if info.context and ":" in self.name:
            try:
                check_parameters(self.name, import_function(self.name), 1, self.params)
            except KeyProblem as problem:
                keys = problem.keys if problem.keys == ("name",) else ("params", *problem.keys)
                raise KeyProblem(keys, str(problem)) from None
        for key in ("horizontal", "vertical"):
            if getattr(self, key) is not None and self.name not in _GRIDS:
                raise KeyProblem(
                    (key,),
                    f"links of topology {self.name} have no direction; "
                    f"only {' and '.join(_GRIDS)} have rows and columns",
                )
        if self.wrap is not None and self.name not in _TORI:
            raise KeyProblem(("wrap",), f"only a torus has links that wrap around, not topology {self.name}")
        if self.edges and self.name != "edges":
            raise KeyProblem(("edges",), f"topology {self.name} lists no edges; expected name: edges")
        for key in ("dies", "params"):
            if getattr(self, key) and not self.is_function:
                size = "x: …, y: …" if self.name in _GRIDS else f"x: {self.dies}, y: 1"
                instead = f". Write mesh: {{{size}}} beside it" if key == "dies" else ""
                raise KeyProblem(
                    (key,), f"only your own package.module:function takes {key}, not topology {self.name}{instead}"
                )
        return self

    @model_serializer
    def _short(self) -> str | dict[str, Any]:
        given = {key: value for key in ("horizontal", "vertical", "wrap") if (value := getattr(self, key)) is not None}
        if self.edges:
            given["edges"] = list(self.edges)
        if self.dies is not None:
            given["dies"] = self.dies
        if self.params:
            given["params"] = self.params
        return {"name": self.name} | given if given else self.name

    def __hash__(self) -> int:
        links = self.horizontal, self.vertical, self.wrap, self.edges
        return hash((self.name, self.dies, links, json.dumps(self.params, sort_keys=True, default=str)))

    @property
    def is_function(self) -> bool:
        """Whether a user's own function builds the fabric."""
        return ":" in self.name

    @property
    def classes(self) -> tuple[LinkSpec, ...]:
        """The settings of each link class, in the order of ``Graph.link_class``."""
        if self.name in _GRIDS:
            along = self.horizontal or LinkSpec(), self.vertical or LinkSpec()
            return *along, self.wrap or along[0], self.wrap or along[1]
        return self.edges if self.name == "edges" else (LinkSpec(),)

    @property
    def class_names(self) -> tuple[str, ...]:
        if self.name in _GRIDS:
            return "horizontal", "vertical", "horizontal wrap", "vertical wrap"
        return (
            tuple(f"{a} – {b}" for a, b in (edge.dies for edge in self.edges)) if self.name == "edges" else (self.name,)
        )

    def refuse_unconnected(self, dies: int) -> None:
        """Raise KeyProblem for an edge that is impossible or listed twice, and for unreachable dies."""
        seen: dict[tuple[int, ...], int] = {}
        for index, edge in enumerate(self.edges):
            for end, die in enumerate(edge.dies):
                if die >= dies:
                    raise KeyProblem(
                        ("topology", "edges", index),
                        f"there is no die {die} (end {end + 1} of 2); expected 0 to {dies - 1}",
                    )
            pair = tuple(sorted(edge.dies))
            if pair[0] == pair[1]:
                raise KeyProblem(("topology", "edges", index), f"links die {pair[0]} to itself")
            if pair in seen:
                raise KeyProblem(
                    ("topology", "edges", index),
                    f"dies {pair[0]} and {pair[1]} are already linked, by item {seen[pair]}",
                )
            seen[pair] = index
        apart = _unreached_dies(dies, seen) if self.name == "edges" else []
        if apart:
            shown = ", ".join(map(str, apart[:8])) + (" …" if len(apart) > 8 else "")
            raise KeyProblem(
                ("topology", "edges"),
                f"no route from die 0 to {'die' if len(apart) == 1 else 'dies'} {shown}; "
                "list the links, such as edges: [[0, 1], [1, 2]]",
            )


def _unreached_dies(dies: int, pairs: Iterable[tuple[int, ...]]) -> list[int]:
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


def _written(spec: LinkSpec) -> dict[str, Any]:
    """The given bandwidth, latency and law, by alias, with units."""
    given = {
        type(spec).model_fields[field].alias or field: format_quantity(value, kind)
        for field, kind in (("bandwidth_bytes_per_s", BANDWIDTH), ("hop_latency_ns", TIME))
        if (value := getattr(spec, field)) is not None
    }
    return given | ({"law": spec.law} if spec.law is not None else {})
