"""Calibrations of a fabric: the file of a measured machine, ``configs/fabrics/NAME.yaml``, as laws and back.

Laws: `archsim.laws.mesh`. ``archsim calibrate`` writes these files (`calibration.fit.mesh`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import Field, model_validator

from archsim.base import errors, fields, quantities, validation
from archsim.base.config_files import named_files
from archsim.base.yaml import read_yaml

if TYPE_CHECKING:
    from archsim.laws.mesh import EndpointLaw, HopLatency, LawResiduals, LinkRate

FABRIC_KIND = "fabrics"
ROUNDED = 1e-4  # of numbers with five digits
_Ns = Annotated[float, quantities.number(0, 1e12)]
_Share = Annotated[float, quantities.number(0, 1e6)]


class ResidualsSpec(fields.Spec):
    points: Annotated[int, quantities.count(1, 1_000_000)]  # measured values of the fit
    cases: Annotated[int, quantities.count(1, 1_000_000)]  # distinct cases among them
    mean: _Share  # relative error of the fit
    most: _Share  # its largest relative error
    held_out_mean: _Share | None = None  # error of cases left out of the fit
    held_out_most: _Share | None = None  # largest error of cases left out of the fit


class NsPerVectorSpec(fields.Spec):
    """ns of a vector on the busiest chip, by term."""

    tokens: _Ns | None = None
    sender: _Ns | None = None
    experts: _Ns | None = None


class EndpointSpec(fields.Spec):
    kernel: Literal["dispatch", "combine"]  # of an exchange of tokens
    version: fields.Name  # of the kernel
    topologies: tuple[Literal["linear", "ring", "mesh", "full"], ...] = Field(min_length=1)  # that it was measured on
    links: Annotated[int, quantities.count(1, 64)]  # of a direction between neighbours
    link_bytes_per_s: Annotated[float, quantities.number(1e6, 1e15)]  # nominal rate of each link
    vector_bytes: Annotated[float, quantities.number(1, 1e9)]  # of a token
    fixed_ns: _Ns = 0.0  # of a call
    ns_per_vector: NsPerVectorSpec = NsPerVectorSpec()  # by term, on the busiest chip
    link_ns_per_byte: _Ns = 0.0  # of all links of a direction
    # Constant of each null model, fitted to the same cases.
    nulls: dict[Literal["links only", "endpoint only", "constant"], _Ns] = Field(default_factory=dict)
    residuals: ResidualsSpec | None = None  # errors of the fit
    note: str = ""  # what to know of it

    @model_validator(mode="after")
    def _no_faster_than_its_links(self) -> EndpointSpec:
        nominal = self.links * self.link_bytes_per_s
        if self.link_ns_per_byte * nominal * (1 + ROUNDED) < 1e9 and self.link_ns_per_byte:
            raise fields.KeyProblem(
                ("link_ns_per_byte",),
                f"{1e9 / self.link_ns_per_byte / 1e9:.1f} GB/s, but {self.links} links of "
                f"{self.link_bytes_per_s / 1e9:g} GB/s pass {nominal / 1e9:g}. Give {1e9 / nominal:.5g} or more, or 0 "
                "for a kernel whose links do not count",
            )
        return self


class LinkRateSpec(fields.Spec):
    machine: str  # that was measured
    pattern: str  # of traffic
    packet_ns: Annotated[float, quantities.number(1e-3, 1e9)]  # of a packet
    bytes_per_s: Annotated[float, quantities.number(1e3, 1e15)]  # of a link
    residuals: ResidualsSpec | None = None  # errors of the fit


class HopLatencySpec(fields.Spec):
    machine: str  # that was measured
    ns: _Ns  # of a hop
    ns_per_byte: _Ns = 0.0  # of a hop
    atomic_ns: _Ns = 0.0  # of an atomic operation
    residuals: ResidualsSpec | None = None  # errors of the fit


class MeasuredBlockSpec(fields.Spec):
    """ns of a whole block of a transformer on one fabric of the machine's mesh, as measured."""

    mesh: str
    fabric: str
    ns: _Ns


class FabricFile(fields.Spec):
    machine: fields.Name  # its name
    source: str = Field(min_length=1)  # of the measurements
    endpoint: tuple[EndpointSpec, ...] = ()  # laws of kernels
    link_rate: tuple[LinkRateSpec, ...] = ()  # laws of links
    hop_latency: tuple[HopLatencySpec, ...] = ()  # laws of hops
    blocks: tuple[MeasuredBlockSpec, ...] = ()  # measured whole blocks


class FabricCalibration(NamedTuple):
    """The laws of one machine."""

    machine: str  # its name
    source: str  # of the measurements
    endpoint: tuple[EndpointLaw, ...]  # laws of kernels
    link_rate: tuple[LinkRate, ...] = ()  # laws of links
    hop_latency: tuple[HopLatency, ...] = ()  # laws of hops
    blocks: tuple[tuple[str, str, float], ...] = ()  # (mesh, fabric, ns) of a measured block of a transformer

    def law(self, kernel: str, version: str) -> EndpointLaw | None:
        """The endpoint law of a kernel; None if there is none."""
        return next((each for each in self.endpoint if (each.kernel, each.version) == (kernel, version)), None)


def fabric_calibration(name: str | Path) -> FabricCalibration:
    """A calibration by shipped name or by path of a YAML file. Raises SpecError."""
    path = fabric_file(name)
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise errors.SpecError(f"{path}: not readable ({error.strerror})") from None


def fabric_file(name: str | Path) -> Path:
    """The file of a calibration. Raises SpecError for a name that is not known."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    known = named_files(FABRIC_KIND)
    if str(name) not in known:
        raise errors.SpecError(
            f"unknown calibration of a fabric {str(name)!r}{errors.did_you_mean(str(name), known)} (known: "
            f"{', '.join(known)}; or the path of a YAML file)"
        )
    return known[str(name)]


def shipped_fabrics() -> list[FabricCalibration]:
    """Every calibration of a fabric that is found by name."""
    return [fabric_calibration(path) for path in named_files(FABRIC_KIND).values()]


@lru_cache(maxsize=16)
def _read(path: Path, changed_ns: int) -> FabricCalibration:
    from archsim.laws.mesh import EndpointLaw, HopLatency, LinkRate

    given = validation.validate(FabricFile, read_yaml(path))
    laws = tuple(
        EndpointLaw(
            machine=given.machine, kernel=each.kernel, version=each.version, topologies=each.topologies,
            links=each.links, link_bytes_per_s=each.link_bytes_per_s, vector_bytes=each.vector_bytes,
            fixed_ns=each.fixed_ns,
            ns_per_vector={term: ns for term, ns in each.ns_per_vector.model_dump().items() if ns is not None},
            link_ns_per_byte=each.link_ns_per_byte,
            nulls={str(name): error for name, error in each.nulls.items()},
            residuals=_residuals(each.residuals), note=each.note,
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
        "endpoint": _law_rows(found.endpoint, {"machine"}),
        "link_rate": _law_rows(found.link_rate, set()),
        "hop_latency": _law_rows(found.hop_latency, set()),
        "blocks": [dict(zip(("mesh", "fabric", "ns"), each, strict=True)) for each in found.blocks],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({key: value for key, value in content.items() if value}, sort_keys=False, width=110)
    path.write_text(f"# Written by: archsim calibrate. Laws: archsim/laws/mesh.py\n{text}", encoding="utf-8")


def _law_rows(laws: Sequence[Any], without: Iterable[str]) -> list[dict[str, Any]]:
    return [{k: v for k, v in _plain(law).items() if k not in without and v not in ("", None, {})} for law in laws]


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {key: _plain(each) for key, each in value._asdict().items() if each is not None}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float):
        return float(f"{value:.5g}")
    return list(value) if isinstance(value, tuple) else value
