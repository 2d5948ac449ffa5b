"""What is left of a machine as it is built: living, dead and idle dies, their factors, and what cannot be built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

from archsim.base.fields import KeyProblem

if TYPE_CHECKING:
    import numpy as np

    from archsim.machine.as_built import DiesAsBuiltSpec, LinksAsBuiltSpec
    from archsim.machine.fabric import FabricSpec, MeshSpec, TopologySpec
from archsim.machine.as_built import GRIDS, LISTED
from archsim.machine.drawn_dies import DrawnSpec, SparesSpec


class AsBuilt(NamedTuple):
    """The machine of a system as it is built. Sites are numbers of dies as made; dies those of the machine."""

    sites: int  # dies that were made
    living: tuple[int, ...]  # site of every die
    dead: tuple[int, ...]  # sites
    idle: tuple[int, ...]  # sites of spare dies that live
    array: tuple[float, ...]  # factor of the speed of the array of every die
    hbm: tuple[float, ...]  # factor of the bandwidth of the HBM of every die
    sides: tuple[int, int] | None = None  # of the mesh that spare lines leave; None: as made, with holes
    unusable: str = ""  # why a drawn machine does not work; '' if it does


class Made(Protocol):
    """What is read of a system (`archsim.machine.system.SystemSpec`): the machine that was made."""

    @property
    def mesh(self) -> MeshSpec | None: ...
    @property
    def topology(self) -> TopologySpec: ...
    @property
    def fabric(self) -> FabricSpec | None: ...
    @property
    def dies_as_built(self) -> DiesAsBuiltSpec | None: ...
    @property
    def links_as_built(self) -> LinksAsBuiltSpec | None: ...
    @property
    def spares(self) -> SparesSpec | None: ...
    @property
    def drawn(self) -> DrawnSpec | None: ...
    @property
    def sites(self) -> int: ...
    @property
    def built(self) -> AsBuilt | None: ...
    @property
    def kind_of_fabric(self) -> str: ...
    @property
    def shape_as_made(self) -> str: ...


@lru_cache(maxsize=1024)
def as_built(system: Made) -> AsBuilt:
    """The dies of a system; without sampled defects as long as the area that they need is not known."""
    import numpy as np

    sites, dies = system.sites, system.dies_as_built
    good, array, hbm = _drawn(system)
    alive = good > 0
    alive[list(dies.dead if dies else ())] = False
    array = array * np.where(alive, good, 1.0)
    living, sides, unusable = _in_use(system, alive, array)
    used = set(living)
    dead = tuple(np.flatnonzero(~alive).tolist())
    idle = tuple(site for site in np.flatnonzero(alive).tolist() if site not in used)
    at = list(living)
    return AsBuilt(
        sites=sites, living=living, dead=dead, idle=idle, array=tuple(array[at].tolist()), hbm=tuple(hbm[at].tolist()),
        sides=sides, unusable=unusable,
    )  # fmt: skip


def _drawn(system: Made) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Share of good cores, and factors of arrays and HBM, of every site: float64[site] each."""
    import numpy as np

    from archsim.laws.wafer import Defects, Draw, good_cores, speeds, unbonded

    sites, dies, drawn = system.sites, system.dies_as_built, system.drawn or DrawnSpec()
    draw, good, factors = Draw(drawn.seed, drawn.wafer), np.ones(sites), np.ones((2, sites))
    if drawn.defects_per_cm2 and not drawn.needs_area:
        assert drawn.die_area_mm2 is not None and drawn.core_area_mm2 is not None
        cores = (dies.harvest.cores, dies.harvest.needed) if dies and dies.harvest else (1, 1)
        cores_mm2 = drawn.core_area_mm2 if dies and dies.harvest else 0.0
        of_process = drawn.defects_per_cm2, drawn.cluster
        good = good_cores(
            draw, sites, Defects(*of_process, drawn.die_area_mm2, cores_mm2, *cores), _clusters(system, drawn)
        )
    if drawn.bond_failure and drawn.bonds is not None:
        good = np.where(unbonded(draw, sites, drawn.bonds, drawn.bond_failure), 0.0, good)
    speed = dies.speed if dies else None
    if speed is not None and speed.table is not None:
        factors[:, : len(speed.table)] = np.array(speed.table).T
    elif speed is not None:
        place = places_of(system)
        far = np.zeros(sites) if place is None else _from_centre(*place)
        for row, what, law in ((0, "speed", speed), (1, "hbm", speed.hbm)):
            if law is not None:
                factors[row] = speeds(draw, what, law.sigma, law.radial, far)
    return good, factors[0], factors[1]


def _clusters(system: Made, drawn: DrawnSpec) -> np.ndarray | None:
    """int64[site]: the first site of the square of dies, of ``cluster_side``, that a site is in; None: its own."""
    import numpy as np

    place, sides = places_of(system), _wafer_sides(system)
    if drawn.cluster_side == 1 or place is None or sides is None:
        return None
    column, row = (each.astype(np.int64) // drawn.cluster_side * drawn.cluster_side for each in place)
    on_wafer = np.arange(system.sites) // (sides[0] * sides[1]) * (sides[0] * sides[1])
    return on_wafer + row * sides[0] + column


def _from_centre(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Distance of dies from the centre of their wafer, 1 at its corners."""
    across, up = x - x.max() / 2, y - y.max() / 2
    most = float(((across**2 + up**2) ** 0.5).max())
    return (across**2 + up**2) ** 0.5 / (most or 1.0)


def _in_use(system: Made, alive: np.ndarray, array: np.ndarray) -> tuple[tuple[int, ...], tuple[int, int] | None, str]:
    """Sites in use, in the order of their dies; sides of the mesh that is left; why there is no machine, or ''."""
    import numpy as np

    living, spares = np.flatnonzero(alive).tolist(), system.spares or SparesSpec()
    if not living:
        return (0,), None, "every die is dead"
    if spares.rows or spares.columns:
        assert system.mesh is not None
        across, up = system.mesh.x, system.mesh.y
        x, y = across - spares.columns, up - spares.rows
        grid = alive.reshape(up, across)  # [row, column]
        lines = grid.T if spares.rows else grid
        needed, what = (y, "column") if spares.rows else (x, "row")
        short = [index for index, line in enumerate(lines) if line.sum() < needed]
        if short:
            lost = int((~lines[short[0]]).sum())
            kept, kind = (spares.rows, "row") if spares.rows else (spares.columns, "column")
            why = f"{what} {short[0]} has {lost} dead dies, more than the {kept} spare {kind}{'s' * (kept > 1)}"
            return tuple(living), None, why
        moved = np.array([np.flatnonzero(line)[:needed] for line in lines])  # [line, place in it]
        if spares.rows:
            order = [int(moved[column, row]) * across + column for row in range(y) for column in range(x)]
        else:
            order = [row * across + int(moved[row, column]) for row in range(y) for column in range(x)]
        return tuple(order), (x, y), ""
    surplus = len(living) - (system.sites - spares.dies) if spares.dies else 0
    if surplus < 0:
        lost = system.sites - len(living)
        return tuple(living), None, f"{lost} dies are dead, more than the {spares.dies} spare"
    if surplus:
        off = sorted(living, key=lambda site: (array[site], -site))[:surplus]
        living = [site for site in living if site not in off]
    return tuple(living), None, ""


def places_of(system: Made) -> tuple[np.ndarray, np.ndarray] | None:
    """Column and row of every site on its wafer, float64[site]; None where dies have no places."""
    import numpy as np

    sides = _wafer_sides(system)
    if sides is None:
        return None
    site = np.arange(system.sites) % (sides[0] * sides[1])
    return (site % sides[0]).astype(float), (site // sides[0]).astype(float)


def _wafer_sides(system: Made) -> tuple[int, int] | None:
    if system.mesh is not None:
        return system.mesh.x, system.mesh.y
    if system.fabric is not None and system.fabric.levels[0].kind in GRIDS:
        return system.fabric.levels[0].sides
    return None


def pairs_of(system: Made) -> set[tuple[int, int]] | None:
    """Linked sites, lower first; None where only the fabric knows them, or dies are linked through a switch."""
    name, sites = system.topology.name, system.sites
    if system.fabric is not None or system.mesh is None or system.topology.is_function:
        return None
    if name == "edges":
        return {(min(edge.dies), max(edge.dies)) for edge in system.topology.edges}
    if name == "fully_connected":
        return {(a, b) for a in range(sites) for b in range(a + 1, sites)}
    if name == "ring":
        found = {tuple(sorted((site, (site + 1) % sites))) for site in range(sites)}
    elif name in GRIDS:
        x, y = system.mesh.x, system.mesh.y
        around = name in ("torus", "torus_x"), name in ("torus", "torus_y")
        found = set()
        for site in range(sites):
            column, row = site % x, site // x
            if column + 1 < x or around[0]:
                found.add(tuple(sorted((site, row * x + (column + 1) % x))))
            if row + 1 < y or around[1]:
                found.add(tuple(sorted((site, (row + 1) % y * x + column))))
    else:
        return None
    return {(a, b) for a, b in found if a != b}


def refuse_impossible(system: Made) -> None:
    """Raise KeyProblem for unknown dies and links, spares that leave nothing, and a given machine that is in parts."""
    if not (system.dies_as_built or system.spares or system.links_as_built or system.drawn):
        return
    _refuse_unknown_dies(system)
    _refuse_unknown_links(system)
    _refuse_spares(system)
    speed = system.dies_as_built.speed if system.dies_as_built else None
    if system.drawn is not None and system.drawn.cluster_side > 1 and places_of(system) is None:
        raise KeyProblem(("drawn", "cluster_side"), f"dies of {system.kind_of_fabric} have no places. Leave it out")
    for keys, law in ((("speed",), speed), (("speed", "hbm"), speed and speed.hbm)):
        if law is not None and law.radial and places_of(system) is None:
            raise KeyProblem(
                ("dies_as_built", *keys, "radial"), f"dies of {system.kind_of_fabric} have no coordinates. Give a table"
            )
    if (built := system.built) is not None and built.unusable and not _at_random(system):
        key = "spares" if system.spares and built.unusable != "every die is dead" else "dies_as_built"
        raise KeyProblem((key,), f"{built.unusable}. Give more spares, or fewer dead dies")
    apart = cut_off(system)
    if apart and not _at_random(system):
        of_dies = system.dies_as_built is not None and system.dies_as_built.dead
        raise KeyProblem(("dies_as_built" if of_dies else "links_as_built", "dead"), apart)


def _at_random(system: Made) -> bool:
    drawn = system.drawn
    return drawn is not None and bool(drawn.defects_per_cm2 or drawn.link_failure or drawn.bond_failure)


def named_dies(sites: Sequence[int]) -> str:
    """``die 3``, ``dies 3, 4 and 5``, ``dies 0, 1, … (40 in all)``."""
    if len(sites) > LISTED:
        return f"dies {', '.join(map(str, sites[:LISTED]))}, … ({len(sites)} in all)"
    *first, last = map(str, sites)
    return f"dies {', '.join(first)} and {last}" if first else f"die {last}"


def cut_off(system: Made) -> str:
    """A sentence on dies that no route reaches by given dead dies and links; '' if none, or only the fabric knows."""
    pairs, built = pairs_of(system), system.built
    if pairs is None or (built is not None and built.sides is not None):
        return ""
    links = system.links_as_built
    gone = {(min(a, b), max(a, b)) for a, b in links.dead if isinstance(b, int)} if links else set()
    routers = set(range(system.sites))
    if built is not None and (system.dies_as_built is None or system.dies_as_built.router == "dead"):
        routers -= set(built.dead)
    living = list(range(system.sites)) if built is None else list(built.living)
    return in_parts(living, [(a, b) for a, b in pairs - gone if a in routers and b in routers])


def in_parts(living: Sequence[int], pairs: Iterable[tuple[int, int]]) -> str:
    """A sentence on the ``living`` dies outside the largest part; '' for none. Other nodes pass messages on."""
    around: dict[int, list[int]] = {}
    for a, b in pairs:
        around.setdefault(a, []).append(b)
        around.setdefault(b, []).append(a)
    parts: list[list[int]] = []
    left = set(living)
    while left:
        reached, waiting = set(), [min(left)]
        while waiting:
            node = waiting.pop()
            if node not in reached:
                reached.add(node)
                waiting += around.get(node, ())
        parts.append(sorted(reached & left))
        left -= reached
    parts.sort(key=lambda part: (-len(part), part))
    lost = sorted(site for part in parts[1:] for site in part)
    if not lost:
        return ""
    return (
        f"no route reaches {named_dies(lost)} from the other {len(parts[0])}; list "
        f"{'it' if len(lost) == 1 else 'them'} as dead too, or keep a link to {'it' if len(lost) == 1 else 'them'}"
    )


def _refuse_unknown_dies(system: Made) -> None:
    if system.dies_as_built is None:
        return
    for index, site in enumerate(system.dies_as_built.dead):
        if site >= system.sites:
            raise KeyProblem(
                ("dies_as_built", "dead", index),
                f"there is no die {site} in {system.shape_as_made}; expected 0 to {system.sites - 1}, the nearest is "
                f"{system.sites - 1}",
            )
    speed = system.dies_as_built.speed
    if speed is not None and len(speed.table or ()) > system.sites:
        raise KeyProblem(
            ("dies_as_built", "speed", "table"),
            f"has die {len(speed.table or ()) - 1}, but {system.shape_as_made} has dies 0 to {system.sites - 1}",
        )


def _refuse_unknown_links(system: Made) -> None:
    if system.links_as_built is None:
        return
    pairs, seen = pairs_of(system), dict[tuple[int, int | str], str]()
    for keys, (a, b) in system.links_as_built.with_keys:
        at = ("links_as_built", *keys)
        if isinstance(b, str):
            _refuse_unknown_port(system, at, a, b)
        pair = (a, b) if isinstance(b, str) else (min(a, b), max(a, b))
        written = ".".join(map(str, at))
        missing = [site for site in (a, b) if isinstance(site, int) and site >= system.sites]
        linked = sorted({other for each in pairs or () for other in each if a in each and other != a})
        near = min(linked, key=lambda other: (abs(other - b), other)) if linked and isinstance(b, int) else None
        if missing or a == b:
            problem = f"there is no die {missing[0]}" if missing else "links a die to itself"
            raise KeyProblem(
                at,
                f"[{a}, {b}]: {problem}; {system.shape_as_made} has dies 0 to {system.sites - 1}"
                + (f"; the nearest link is [{a}, {near}]" if linked else ""),
            )
        if isinstance(b, int) and (switched := _through_switches(system)):
            raise KeyProblem(at, f"[{a}, {b}]: dies of {system.shape_as_made} are linked through switches alone; "
                             f"expected the port of a die, [{a}, {switched[0]}]")  # fmt: skip
        if pairs is not None and isinstance(b, int) and pair not in pairs:
            raise KeyProblem(
                at,
                f"no link between dies {a} and {b} of {system.shape_as_made}; die {a} is linked to "
                f"{named_dies(linked) if linked else 'none'}" + (f"; the nearest is [{a}, {near}]" if linked else ""),
            )
        if pair in seen:
            raise KeyProblem(at, f"the link of {named_link(pair)} is listed already, under {seen[pair]}")
        seen[pair] = written


def named_link(pair: tuple[int, int | str]) -> str:
    """``dies 3 and 4``, ``die 3 to level 1``."""
    return f"die {pair[0]} to {pair[1]}" if isinstance(pair[1], str) else f"dies {pair[0]} and {pair[1]}"


def switches_of(system: Made) -> list[str]:
    """The levels whose networks are switches, as ends of links: ``level 0``."""
    if system.fabric is None:
        return ["level 0"] if system.topology.name == "switch" else []
    return [f"level {number}" for number, level in enumerate(system.fabric.levels) if level.kind == "switch"]


def _through_switches(system: Made) -> list[str]:
    """`switches_of` a machine in which no die is linked to another; else none."""
    switches, levels = switches_of(system), system.fabric.levels if system.fabric is not None else ()
    direct = [
        each for number, each in enumerate(levels) if each.kind != "switch" and (not number or each.per != "group")
    ]
    return [] if direct else switches


def _refuse_unknown_port(system: Made, at: tuple[str | int, ...], die: int, level: str) -> None:
    switches = switches_of(system)
    if level in switches and die < system.sites:
        last = level == "level 0" and (system.fabric is None or len(system.fabric.levels) == 1)
        if last and at[1] == "dead":
            raise KeyProblem(at, f"[{die}, {level}]: die {die} has no other link. List it under dies_as_built.dead")
        return
    if die >= system.sites:
        raise KeyProblem(at, f"there is no die {die}; {system.shape_as_made} has dies 0 to {system.sites - 1}")
    other = die + 1 if die + 1 < system.sites else die - 1
    there = f"its switches are {', '.join(switches)}" if switches else f"no switch; expected two dies, [{die}, {other}]"
    raise KeyProblem(at, f"[{die}, {level}]: {system.shape_as_made}: {there}")


def _refuse_spares(system: Made) -> None:
    spares = system.spares
    if spares is None:
        return
    for key, side in (("rows", "y"), ("columns", "x")):
        kept = getattr(spares, key)
        if not kept:
            continue
        if system.mesh is None or system.topology.name not in GRIDS:
            raise KeyProblem(("spares", key), f"{system.shape_as_made} has no {key}; expected spares: {{dies: {kept}}}")
        most = getattr(system.mesh, side) - 1
        if kept > most:
            raise KeyProblem(
                ("spares", key),
                f"{kept} of the {most + 1} {key} of {system.shape_as_made}: a spare {key[:-1]} is one of them; "
                f"expected at most {most}",
            )
    if spares.dies >= system.sites:
        raise KeyProblem(
            ("spares", "dies"),
            f"{spares.dies} of the {system.sites} dies of {system.shape_as_made}: a spare die is one of them; "
            f"expected at most {system.sites - 1}",
        )
