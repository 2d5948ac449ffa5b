"""Calibrations by name or path: found, read once until the file changes, and identified by a digest of
their content.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from functools import lru_cache
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import Field

from archsim.base.errors import SpecError, did_you_mean
from archsim.base.fields import Name, Spec, count, number
from archsim.base.yaml import Keys, Place, Tree, read_yaml, validate
from archsim.laws.tables import SECTIONS, CalibrationSpec, ReferenceRates
from archsim.specs.config_files import display, named_files, search_folders, searched, shipped_configs

if TYPE_CHECKING:
    from archsim.laws.mesh import EndpointLaw, HopLatency, LawResiduals, LinkRate


# ---- calibration_sections
# Sections of a calibration in files of their own, which its file names: ``gemm: h100/gemm.yaml``.
#
# Such a file has ``tables`` (laws, sources, errors), and names the numbers beside it with their digest: ``numbers:
# {file:
# gemm.npz, sha256: ...}`` (``archsim.laws.stored``). Paths are relative to the file that has them.

TABLES, NUMBERS, STORED = "tables", "numbers", "stored"
HINT = "fit the section again with `archsim calibrate`, or copy it with its files"


class _Numbers(Spec):
    file: str
    sha256: str


class _Section(Spec):
    numbers: _Numbers | None = None
    tables: tuple[dict[str, Any], ...]


def files_of(data: Any, folder: Path) -> list[Path]:
    """The files of sections that a calibration names."""
    return [folder / data[name] for name in SECTIONS if isinstance(data, dict) and isinstance(data.get(name), str)]


def with_sections(tree: Tree, folder: Path, *, numbers: bool = True) -> Tree:
    """The tree of a calibration with its sections' tables in place of the names of their files.

    numbers: with those that are stored beside them. Raises SpecError for a file that is missing, damaged or another.
    """
    for name in SECTIONS:
        if isinstance(tree.data.get(name), str):
            tree.graft((name,), _tables(tree, name, folder, numbers))
    return tree


def _tables(tree: Tree, name: str, folder: Path, numbers: bool) -> Tree:
    file = folder / tree.data[name]
    if not file.is_file():
        raise tree.error((name,), f"no such file: {display(file)}; {HINT}")
    section = read_yaml(file, display(file))
    head = validate(_Section, section)
    stored = _stored(section, head, file) if numbers else None
    for at, table in enumerate(section.data[TABLES]):
        entries = table.pop(STORED, {})
        if stored is None or not isinstance(entries, dict):
            continue
        for field, entry in entries.items():
            if not isinstance(entry, int) or not 0 <= entry < len(stored):
                raise section.error((TABLES, at, STORED, field), f"{entry!r} is no entry of the section's numbers")
            table[field] = stored[entry]
    places = {keys[1:]: place for keys, place in section.places.items() if keys[:1] == (TABLES,)}
    return Tree(section.data[TABLES], places)


def _stored(section: Tree, head: _Section, file: Path) -> list[Any]:
    from archsim.laws.stored import DamagedNumbers, load  # here, as it imports numpy

    if head.numbers is None:
        return []
    beside = file.parent / head.numbers.file
    try:
        return load(beside, head.numbers.sha256)
    except FileNotFoundError:
        raise section.error((NUMBERS, "file"), f"no such file: {display(beside)}; {HINT}") from None
    except (DamagedNumbers, OSError) as error:
        raise SpecError(f"{section.place((NUMBERS, 'sha256'))}: {display(beside)} {error}; {HINT}") from None


# ---- calibrations

KIND = "calibrations"
# For a die that names none: the GPU whose measured GEMMs cover most shapes and dtypes, and on which Yu et al., ISCA
# 2026 (arXiv 2510.05497v4) validate.
DEFAULT_CALIBRATION = "h100"


def siblings_of(calibration: CalibrationSpec) -> Iterator[CalibrationSpec]:
    """Shipped calibrations whose tables may stand in for what this one lacks, each with its own tables alone, the
    nearest first: the GPU that its file names under ``scaled``, then by octaves between the peaks of BF16 and between
    the bandwidths of HBM.
    """
    away = {}
    for path in sorted((shipped_configs() / KIND).glob("*.yaml")):
        gpu, reference = _rates_once(path, path.stat().st_mtime_ns)
        if gpu != calibration.gpu:
            away[path] = _octaves(reference, calibration.reference) if gpu != _named_sibling(calibration) else -1.0
    for path in sorted(away, key=away.__getitem__):
        yield _own_once(*_version(str(path)))


def _named_sibling(calibration: CalibrationSpec) -> str | None:
    return calibration.scaled.gpu if calibration.scaled else None


def _octaves(one: ReferenceRates, other: ReferenceRates) -> float:
    peaks = one.peak_flop_per_s["bf16"] / other.peak_flop_per_s["bf16"]
    return abs(log2(peaks)) + abs(log2(one.hbm_bytes_per_s / other.hbm_bytes_per_s))


@lru_cache(maxsize=32)
def _rates_once(path: Path, changed_ns: int) -> tuple[str, ReferenceRates]:
    """GPU and reference of a file, without its sections."""
    data = read_yaml(path, display(path)).data
    return data["gpu"], ReferenceRates.model_validate(data["reference"])


def find_calibration(name: str | Path) -> Path:
    """The file of a calibration by name ('h100') or path. Raises SpecError for an unknown name."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    for folder in search_folders(KIND, None) if path.name == str(name) else ():
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = named_files(KIND)
    listed = f" (known: {', '.join(known)}; or the path of a YAML file)"
    raise SpecError(f"unknown calibration {str(name)!r}{did_you_mean(str(name), known)}{listed}")


def calibration_named(name: str | None) -> CalibrationSpec:
    """Like ``load_calibration``, but read once until the file changes; the default if ``name`` is None."""
    return _read_once(*_version(name))


def calibration_digest(name: str | None) -> str:
    """sha256 of the file and its sections; of the default if ``name`` is None. Raises SpecError for an unknown one."""
    return _digest_once(*_version(name))


def _version(name: str | None) -> tuple[Path, tuple[int, ...]]:
    """(file, modification times of it and of the files of its sections)"""
    path = find_calibration(name or DEFAULT_CALIBRATION).absolute()
    try:
        changed_ns = path.stat().st_mtime_ns
        return path, (changed_ns, *(file.stat().st_mtime_ns for file in _sections_once(path, changed_ns)))
    except OSError as error:
        raise SpecError(f"{display(Path(error.filename))}: no such file") from None


@lru_cache(maxsize=32)
def _sections_once(path: Path, changed_ns: int) -> tuple[Path, ...]:
    return tuple(files_of(read_yaml(path, display(path)).data, path.parent))


@lru_cache(maxsize=8)
def _read_once(path: Path, changed_ns: tuple[int, ...]) -> CalibrationSpec:
    return load_calibration(path)


@lru_cache(maxsize=16)  # all that ship, which a search for siblings reads in turn
def _own_once(path: Path, changed_ns: tuple[int, ...]) -> CalibrationSpec:
    """For siblings that take tables of each other."""
    return read_calibration(path)


@lru_cache(maxsize=8)
def _digest_once(path: Path, changed_ns: tuple[int, ...]) -> str:
    scaled = calibration_named(str(path)).scaled
    content = _content(path) + (_content(find_calibration(scaled.gpu)) if scaled else b"")
    return hashlib.sha256(content).hexdigest()


def _content(path: Path) -> bytes:
    """Of the file and of its sections, which have the digests of the numbers beside them."""
    files = [path, *files_of(read_yaml(path, display(path)).data, path.parent)]
    return b"".join(file.read_bytes() for file in files)


def read_calibration(path: Path) -> CalibrationSpec:
    """What a file has itself, without tables of other calibrations. Raises SpecError."""
    return validate(CalibrationSpec, with_sections(read_yaml(path, display(path)), path.parent))


def load_calibration(name: str | Path) -> CalibrationSpec:
    """A calibration by name ('h100') or path, with the tables that it takes scaled from another one. Raises
    SpecError.
    """
    found = read_calibration(find_calibration(name))
    if not found.scaled:
        return found
    from archsim.laws.scaling import with_scaled  # here, as it imports numpy

    return with_scaled(found, _own_once(*_version(found.scaled.gpu)))


# ---- calibration_paths
# Paths of calibration files in systems: relative to the current directory, else to the file that names them.

KEYS = (("compute", "calibration"), ("hbm", "calibration"), ("d2d", "calibration"), ("decision", "host", "calibration"))
TABLE = ("dies_as_built", "speed", "table")  # of speeds of dies, a file that is found in the same way
_SUFFIXES = (".yaml", ".yml")


def find_calibrations(tree: Tree, keys: Keys, folders: list[Path], *, all_found: bool = True) -> None:
    """Replace every path of a calibration, or of a table of speeds, in the system at ``keys`` by one relative to the
    current directory.

    Raises SpecError for a missing file; with ``all_found=False``, its path is left as it is.
    """
    for path in (*KEYS, TABLE):
        inner = _mapping(tree, (*keys, *path[:-1]))
        name = inner.get(path[-1])
        if not isinstance(name, str) or not (path == TABLE or name.endswith(_SUFFIXES)) or os.path.exists(name):
            continue
        found = next((folder / name for folder in folders if os.path.exists(folder / name)), None)
        if found is not None:
            inner[path[-1]] = os.path.relpath(found)
        elif all_found:
            raise tree.error((*keys, *path), f"no such file: {name!r} (searched {searched(folders)})")


def with_calibrations_found(value: Any, path: tuple[str, ...], place: Place, folders: list[Path]) -> Any:
    """The value of a system's axis ``path``, with calibration paths relative to the current directory. Raises
    SpecError.
    """
    if not any(key[: len(path)] == path for key in (*KEYS, TABLE)):
        return value
    data: Any = deepcopy(value)
    for key in reversed(path):
        data = {key: data}
    tree = Tree(data, {(): place, path: place})
    find_calibrations(tree, (), folders)
    return tree.get(path)


def _mapping(tree: Tree, keys: Keys) -> dict[str, Any]:
    """The mapping at ``keys``, or an empty one."""
    value = tree.data
    for key in keys:
        if isinstance(value, list) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


# ---- fabric_calibrations
# Calibrations of a fabric: the file of a measured machine, ``configs/fabrics/NAME.yaml``, as laws and back.
#
# Laws: `archsim.laws.mesh`. ``archsim calibrate`` writes these files (`calibration.fit.mesh`).

FABRIC_KIND = "fabrics"
_Ns = Annotated[float, number(0, 1e12)]
_Share = Annotated[float, number(0, 1e6)]


class ResidualsSpec(Spec):
    points: Annotated[int, count(1, 1_000_000)]
    cases: Annotated[int, count(1, 1_000_000)]
    mean: _Share
    most: _Share
    held_out_mean: _Share | None = None
    held_out_most: _Share | None = None


class NsPerVectorSpec(Spec):
    """ns of a vector on the busiest chip, by term."""

    tokens: _Ns | None = None
    sender: _Ns | None = None
    experts: _Ns | None = None


class EndpointSpec(Spec):
    kernel: Literal["dispatch", "combine"]
    version: Name
    topologies: tuple[Literal["linear", "ring", "mesh", "full"], ...] = Field(min_length=1)
    links: Annotated[int, count(1, 64)]
    link_bytes_per_s: Annotated[float, number(1e6, 1e15)]
    vector_bytes: Annotated[float, number(1, 1e9)]
    fixed_ns: _Ns = 0.0
    ns_per_vector: NsPerVectorSpec = NsPerVectorSpec()
    link_ns_per_byte: _Ns = 0.0
    nulls: dict[Literal["links only", "endpoint only", "constant"], _Ns] = Field(default_factory=dict)
    residuals: ResidualsSpec | None = None
    note: str = ""


class LinkRateSpec(Spec):
    machine: str
    pattern: str
    packet_ns: Annotated[float, number(1e-3, 1e9)]
    bytes_per_s: Annotated[float, number(1e3, 1e15)]
    residuals: ResidualsSpec | None = None


class HopLatencySpec(Spec):
    machine: str
    ns: _Ns
    ns_per_byte: _Ns = 0.0
    atomic_ns: _Ns = 0.0
    residuals: ResidualsSpec | None = None


class MeasuredBlockSpec(Spec):
    """ns of a whole block of a transformer on one fabric of the machine's mesh, as measured."""

    mesh: str
    fabric: str
    ns: _Ns


class FabricFile(Spec):
    machine: Name
    source: str = Field(min_length=1)
    endpoint: tuple[EndpointSpec, ...] = ()
    link_rate: tuple[LinkRateSpec, ...] = ()
    hop_latency: tuple[HopLatencySpec, ...] = ()
    blocks: tuple[MeasuredBlockSpec, ...] = ()


class FabricCalibration(NamedTuple):
    """The laws of one machine. ``blocks``: (mesh, fabric) → ns of a measured block of a transformer."""

    machine: str
    source: str
    endpoint: tuple[EndpointLaw, ...]
    link_rate: tuple[LinkRate, ...] = ()
    hop_latency: tuple[HopLatency, ...] = ()
    blocks: tuple[tuple[str, str, float], ...] = ()

    def law(self, kernel: str, version: str) -> EndpointLaw | None:
        """The endpoint law of a kernel; None if there is none."""
        return next((each for each in self.endpoint if (each.kernel, each.version) == (kernel, version)), None)


def fabric_calibration(name: str | Path) -> FabricCalibration:
    """A calibration by the name of a shipped one, or by the path of a YAML file.

    Raises SpecError for a name that is not known, and for a file that is not as expected.
    """
    path = fabric_file(name)
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise SpecError(f"{path}: not readable ({error.strerror})") from None


def fabric_file(name: str | Path) -> Path:
    """The file of a calibration. Raises SpecError for a name that is not known."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    known = named_files(FABRIC_KIND)
    if str(name) not in known:
        raise SpecError(
            f"unknown calibration of a fabric {str(name)!r}{did_you_mean(str(name), known)} (known: "
            f"{', '.join(known)}; or the path of a YAML file)"
        )
    return known[str(name)]


def shipped_fabrics() -> list[FabricCalibration]:
    """Every calibration of a fabric that is found by name."""
    return [fabric_calibration(path) for path in named_files(FABRIC_KIND).values()]


@lru_cache(maxsize=16)
def _read(path: Path, changed_ns: int) -> FabricCalibration:
    from archsim.laws.mesh import EndpointLaw, HopLatency, LinkRate

    given = validate(FabricFile, read_yaml(path))
    laws = tuple(
        EndpointLaw(
            given.machine, each.kernel, each.version, each.topologies, each.links, each.link_bytes_per_s,
            each.vector_bytes, each.fixed_ns,
            {term: ns for term, ns in each.ns_per_vector.model_dump().items() if ns is not None},
            each.link_ns_per_byte, {str(name): error for name, error in each.nulls.items()},
            _residuals(each.residuals), each.note,
        )
        for each in given.endpoint
    )  # fmt: skip
    rates = (
        LinkRate(e.machine, e.pattern, e.packet_ns, e.bytes_per_s, _residuals(e.residuals)) for e in given.link_rate
    )
    hops = (HopLatency(e.machine, e.ns, e.ns_per_byte, e.atomic_ns, _residuals(e.residuals)) for e in given.hop_latency)
    blocks = tuple((each.mesh, each.fabric, each.ns) for each in given.blocks)
    return FabricCalibration(given.machine, given.source, laws, tuple(rates), tuple(hops), blocks)


def _residuals(given: ResidualsSpec | None) -> LawResiduals | None:
    from archsim.laws.mesh import LawResiduals

    return None if given is None else LawResiduals(**given.model_dump())


def write_fabric_calibration(found: FabricCalibration, path: Path) -> None:
    """Write the file. Numbers have five digits: more are not measured."""
    content = {
        "machine": found.machine,
        "source": found.source,
        "endpoint": _listed(found.endpoint, {"machine"}),
        "link_rate": _listed(found.link_rate, set()),
        "hop_latency": _listed(found.hop_latency, set()),
        "blocks": [dict(zip(("mesh", "fabric", "ns"), each, strict=True)) for each in found.blocks],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({key: value for key, value in content.items() if value}, sort_keys=False, width=110)
    path.write_text(f"# Written by: archsim calibrate. Laws: archsim/laws/mesh.py\n{text}", encoding="utf-8")


def _listed(laws: Sequence[Any], without: Iterable[str]) -> list[dict[str, Any]]:
    return [{k: v for k, v in _plain(law).items() if k not in without and v not in ("", None, {})} for law in laws]


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {key: _plain(each) for key, each in value._asdict().items() if each is not None}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return list(value) if isinstance(value, tuple) else value
