"""What a calibration covers: its tables by name, their versions, and the sizes of each; and what another one lacks."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from archsim.laws import tables
from calibration.measurements.sweeps import release

# Fields that tell tables of a section apart, besides the version and ``of``; those at their defaults are not named.
_NAMES = (
    *("model", "library", "kernel", "phase", "kind", "dtype", "kv_dtype", "products", "quantisation", "groups"),
    *("distribution", "eplb_slots", "head_dim", "window", "unit"),
)
_MOST_NAMED = 3  # of what is missing


@dataclass
class _Covered:
    """Of all versions of a table: ``rows``: names of shapes, or of EP and TP sizes; ``sizes``: axis → its values."""

    versions: set[str] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)
    sizes: dict[str, set[float]] = field(default_factory=dict)


def name_of(section: str, table: tables.TableOrigin) -> str:
    """Section and configuration of a table, without its version: 'gemm torch bf16 apart'."""
    fields = type(table).model_fields
    words = [
        str(getattr(table, name)) for name in _NAMES if name in fields and getattr(table, name) != fields[name].default
    ]
    return " ".join([section, *words, *(f"{key} {value}" for key, value in getattr(table, "of", {}).items())])


def notes_of(calibration: tables.CalibrationSpec) -> Iterator[str]:
    """The notes of the tables: what was decided where sweeps disagree."""
    for section in tables.SECTIONS:
        for table in getattr(calibration, section):
            if table.note:
                yield f"{name_of(section, table)}, version {table.version}: {table.note}"


def losses(before: tables.CalibrationSpec, now: tables.CalibrationSpec) -> Iterator[str]:
    """A line for each table of ``before`` (all of a name and version) of which ``now`` covers less."""
    there = _coverage(now)
    for name, had in _coverage(before).items():
        has = there.get(name)
        less = ["no table"] if has is None else [*_less(had, has)]
        if less:
            yield f"{name}: {', '.join(less)}"


def _less(had: _Covered, has: _Covered) -> Iterator[str]:
    if len(has.versions) < len(had.versions):
        yield f"without version {_list_names(had.versions - has.versions)}"
    if had.rows - has.rows:
        yield f"without {_list_names(had.rows - has.rows)}"
    for axis, sizes in had.sizes.items():
        mine = has.sizes.get(axis, set())
        if not mine or min(mine) > min(sizes) or max(mine) < max(sizes):
            ends = f"{min(mine):g} to {max(mine):g}" if mine else "none"
            yield f"{axis} {ends} instead of {min(sizes):g} to {max(sizes):g}"
        elif len(mine) < len(sizes):
            yield f"{len(mine)} sizes of {axis} instead of {len(sizes)}"


def _list_names(names: set[str]) -> str:
    more = [f"{len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
    return ", ".join([*sorted(names)[:_MOST_NAMED], *more])


def _coverage(calibration: tables.CalibrationSpec) -> dict[str, _Covered]:
    found: dict[str, _Covered] = {}
    for section in tables.SECTIONS:
        for table in getattr(calibration, section):
            mine = found.setdefault(name_of(section, table), _Covered())
            mine.versions.add(release(table.version))
            rows, sizes = _points(table)
            mine.rows |= rows
            for axis, values in sizes.items():
                mine.sizes.setdefault(axis, set()).update(values)
    return found


def _points(table: tables.TableOrigin) -> tuple[set[str], dict[str, set[float]]]:
    if isinstance(table, tables.GemmTable):
        return set(table.shapes), {"m": set(table.m)}
    if isinstance(table, tables.MoeTable):
        return set(table.ranks), {"tokens": set(table.tokens)}
    if isinstance(table, tables.AttentionTable):
        return set(table.shapes), {"batch": set(table.batch), "tokens": set(table.tokens)}
    if isinstance(table, tables.TransferTable):
        return set(), {"bytes": {table.first_bytes, table.last_bytes}}
    return set(), {}
