"""Measured meshes of chips: kernels that dispatch and combine, links and latencies, read from CSV files.

The files of a folder, all optional; ``docs/meshes.md`` lists their columns, and ``python -m calibration.measure mesh``
prints which points to measure. Every fault is refused with the file, the line, the column and what was expected.

A *case* is one measured time of a kernel, with the assignments that chips sent each other. Where a file does not say
how assignments spread over chips, they are taken to be even, and ``spread`` says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from archsim.base.csv_lines import CsvLine, csv_rows
from archsim.laws.mesh import COMBINE, DISPATCH, FULL, LINEAR, MESH, RING
from archsim.traffic.formats.source_destination import COLUMNS as MATRICES
from archsim.traffic.formats.source_destination import matrices_of
from calibration.measurements.reading import CalibrationError

BLACKHOLE, TPU7X, MI300X = "blackhole", "tpu7x", "mi300x"
MEASURED, EVEN = "measured", "taken to be even"
GALAXY_LINK, LOUDBOX_LINK = 25e9, 50e9  # bytes/s of a Blackhole Ethernet link: 200 Gb/s, 400 Gb/s (hardware.csv)
# Mistral Small 4: hidden 4,096, 128 experts, top 4; a vector of BF16. Chunks of 5,120 tokens, 640 a chip.
MISTRAL = {"hidden": 4096, "top_k": 4, "tokens": 640}
BF16 = 2


class Case(NamedTuple):
    """A measured time of one kernel."""

    name: str  # in tables and messages
    whole: str  # what is left out together, so that no case is judged by another measurement of itself
    file: str  # that it was read from
    line: int  # in the file, from 1
    machine: str  # BLACKHOLE, TPU7X, MI300X
    kernel: str  # DISPATCH or COMBINE
    version: str  # of the kernel
    family: str  # laws of one family have the same terms
    topology: str  # LINEAR, RING, MESH, FULL
    sent: np.ndarray  # assignments, float64[source, destination]
    sides: tuple[int, ...]  # chips along each axis; () of a fully connected machine
    wrapped: tuple[bool, ...]  # whether each axis is a ring
    links: int  # of a direction between neighbours
    link_bytes_per_s: float  # one link, one way, nominal
    vector_bytes: float  # of one hidden vector
    measured_ns: float  # of the kernel, the slowest chip
    spread: str  # how its assignments are known: MEASURED, EVEN, or in words
    hot: float = 0.0  # percent of the picks in a column of a larger mesh; 0: the whole mesh


class Rate(NamedTuple):
    """A link of a machine under a pattern of traffic, with packets of one size."""

    name: str  # in tables and messages
    machine: str  # its name in the file
    pattern: str  # the test
    packet_bytes: float  # of one packet
    bytes_per_s: float  # of the link, measured


class Latency(NamedTuple):
    """One hop with a payload."""

    name: str  # in tables and messages
    machine: str  # its name in the file
    topology: str  # of the test
    payload_bytes: float  # of the message
    atomic: bool  # whether it increments a counter, too
    ns: float  # of one hop


class TransformerBlock(NamedTuple):
    """A whole transformer block."""

    name: str  # in tables and messages
    mesh: str  # chips, such as 8x4
    fabric: str  # of the links
    wrapped: str  # axes that are rings, in words
    kind: str  # dense or moe
    gate: str  # where the router runs
    tokens: int  # of a chip
    ns: float  # sum over operations of each one's maximum over chips


class Meshes(NamedTuple):
    """What a folder holds."""

    cases: list[Case]  # measured kernels
    rates: list[Rate]  # of links
    latencies: list[Latency]  # of hops
    blocks: list[TransformerBlock]  # whole transformer blocks
    ratios: list[tuple[str, str, str, float]]  # changes of a case against another: (case, kernel, other, percent)
    # all tokens to one chip, over recorded routing: (name, chips, ratio of whole layers)
    zero_routing: list[tuple[str, int, float]]
    unread: list[str]  # what no law reads, and why


def is_mesh_folder(path: str | Path) -> bool:
    return Path(path).is_dir() and any((Path(path) / f"{name}.csv").is_file() for name in COLUMNS)


def read_meshes(*folders: str | Path) -> Meshes:
    """Read folders as one. Raises CalibrationError for an unexpected file, or a folder with none."""

    def rows_of(name: str, columns: tuple[str, ...]) -> list[CsvLine]:
        return [row for folder in folders for row in csv_rows(Path(folder) / f"{name}.csv", columns, CalibrationError)]

    for folder in folders:
        if not is_mesh_folder(folder):
            raise CalibrationError(
                f"{folder}: no measured mesh; expected a folder with one or more of the files "
                f"{', '.join(f'{name}.csv' for name in COLUMNS)} (docs/meshes.md)"
            )
    tables = {name: rows_of(name, columns) for name, columns in COLUMNS.items()}
    cases = [case for read in READERS for case in read(tables)]
    unread = [
        f"{name}.csv: {len(rows)} {'row' if len(rows) == 1 else 'rows'}: {why}"
        for name, why in UNREAD.items()
        if (rows := rows_of(name, ()))
    ]
    return Meshes(
        cases=cases, rates=list(_rates(tables["fabric_bandwidth"])),
        latencies=list(_latencies(tables["fabric_latency"])), blocks=list(_blocks(tables["block_by_topology"])),
        ratios=list(_relative(tables["replay_relative"])), zero_routing=list(_zero_routing(rows_of("ladders", ()))),
        unread=unread,
    )  # fmt: skip


COLUMNS: dict[str, tuple[str, ...]] = {
    "replay_timings": ("case", "op", "mean_device_max_ms"),
    **{f"replay_{name}": columns for name, columns in MATRICES.items()},
    "replay_relative": ("case", "op", "relative_to", "change_percent"),
    "model_layers_paired": ("case", "layer", "load_chip_0", "combine_ms", "dispatch_ms"),
    "captured_columns_5k": (
        "model", "generation", "topology", "links_per_direction", "layer", "galaxy_column", "in_column_share_percent",
        "tokens_per_chip", "hidden", "top_k", "dispatch_ns", "combine_ns",
    ),
    "captured_columns_25k": (
        "model", "generation", "topology", "links_per_direction", "layer", "galaxy_column", "in_column_share_percent",
        "tokens_per_chip", "hidden", "top_k", "dispatch_ns", "combine_ns",
    ),
    "uniform_random_8chip": (
        "tokens_per_chip", "hidden", "top_k", "chips", "topology", "links_per_direction", "op", "ns", "note",
    ),
    "stage_means": ("configuration", "chips", "combine_ms", "dispatch_ms"),
    "other_meshes": ("machine", "topology", "item", "value", "unit", "setting"),
    "fabric_bandwidth": ("machine", "test", "links", "packet_bytes", "op", "gigabytes_per_s"),
    "fabric_latency": ("machine", "test", "topology", "payload_bytes", "op", "hops", "net_avg_ns"),
    "block_by_topology": ("mesh", "fabric", "wrapped_axes", "kind", "gate", "tokens_per_chip", "sum_of_device_max_ns"),
}  # fmt: skip
# Files of the public set whose rows have no simulated twin.
UNREAD = {
    "model_layers_unpaired": "times without the routing of the same run",
    "routing_statistics_mistral4": "imbalance of another run than the times",
    "stage_ramps": "the routing of these chunks is not known; stage_means.csv has their mean",
    "link_choice_200g": "which expert took which link is not known",
    "block_46464": "one value for each kernel, whose routing is not known",
    "ladders": "single facts of kernels that are not described further (but for all tokens to one chip)",
}

Tables = Mapping[str, list[CsvLine]]


def _replay(tables: Tables) -> Iterator[Case]:
    matrices = matrices_of(
        tables["replay_source_destination"],
        tables["replay_case_summary"],
        tables["replay_expert_counts"],
        MISTRAL["top_k"],
    )
    runs: dict[tuple[str, str], list[CsvLine]] = {}
    for row in tables["replay_timings"]:
        runs.setdefault((row.text("case"), row.text("op", (DISPATCH, COMBINE))), []).append(row)
    for (case, kernel), rows in runs.items():
        if case not in matrices:
            raise rows[0].fault("case", "no matrix of this case in replay_source_destination.csv")
        sent = matrices[case].sent
        ms = [row.number("mean_device_max_ms") for row in rows]
        yield Case(
            name=case, whole=case, file=str(rows[0].file), line=rows[0].line, machine=BLACKHOLE, kernel=kernel,
            version="replay-2026-09-11", family="replay", topology=RING, sent=sent, sides=(len(sent),), wrapped=(True,),
            links=2, link_bytes_per_s=GALAXY_LINK, vector_bytes=MISTRAL["hidden"] * BF16,
            measured_ns=1e6 * float(np.mean(ms)), spread=MEASURED,
        )  # fmt: skip


def _model_layers(tables: Tables) -> Iterator[Case]:
    for row in tables["model_layers_paired"]:
        names = [name for name in row.cells if re.fullmatch(r"load_chip_\d+", name)]
        loads = np.array([row.count(name, zero=True) for name in names], float)
        if not loads.any():
            raise row.refusal("no assignments; expected loads above 0")
        sent = np.tile(loads / len(loads), (len(loads), 1))  # as many from each chip
        for kernel in (DISPATCH, COMBINE):
            yield Case(
                name=row.text("case"), whole=row.text("case"), file=str(row.file), line=row.line, machine=BLACKHOLE,
                kernel=kernel, version="model-2026-09-17", family="model", topology=RING, sent=sent,
                sides=(len(loads),), wrapped=(True,), links=2, link_bytes_per_s=GALAXY_LINK,
                vector_bytes=MISTRAL["hidden"] * BF16, measured_ns=1e6 * row.number(f"{kernel}_ms"),
                spread="of loads measured, of sources taken to be even",
            )  # fmt: skip


def _columns(tables: Tables) -> Iterator[Case]:
    for name in ("captured_columns_5k", "captured_columns_25k"):
        for row in tables[name]:
            share = row.number("in_column_share_percent")
            if share > 100:
                raise row.fault("in_column_share_percent", "expected at most 100")
            topology, chips = row.text("topology", (LINEAR, RING)), 8
            sent = even(row.count("tokens_per_chip") * row.count("top_k") * share / 100, chips)
            whole = f"{row.text('model')} layer {row.text('layer')} column {row.text('galaxy_column')}"
            generation = row.text("generation")
            for kernel in (DISPATCH, COMBINE):
                yield Case(
                    name=f"{whole} {generation.partition('_')[0]} {topology}", whole=whole, file=str(row.file),
                    line=row.line, machine=BLACKHOLE, kernel=kernel, version=f"column-{generation.replace('_', '-')}",
                    family="column", topology=topology, sent=sent, sides=(chips,), wrapped=(topology == RING,),
                    links=row.count("links_per_direction"), link_bytes_per_s=LOUDBOX_LINK,
                    vector_bytes=row.count("hidden") * BF16, measured_ns=row.number(f"{kernel}_ns"), spread=EVEN,
                    hot=share,
                )  # fmt: skip


def _uniform(tables: Tables) -> Iterator[Case]:
    for row in tables["uniform_random_8chip"]:
        chips, topology = row.count("chips"), row.text("topology", (LINEAR, RING))
        links, kernel = row.count("links_per_direction"), row.text("op", (DISPATCH, COMBINE))
        later = "-later" if "later kernel" in row.text("note") else ""
        gate = " gate" if "gate" in row.text("note") else ""
        name = f"uniform {topology} {links} {'link' if links == 1 else 'links'}"
        sent = even(row.count("tokens_per_chip") * row.count("top_k"), chips)
        yield Case(
            name=name + gate, whole=name, file=str(row.file), line=row.line, machine=BLACKHOLE, kernel=kernel,
            version=f"uniform-2026-06{later}", family="uniform", topology=topology, sent=sent, sides=(chips,),
            wrapped=(topology == RING,), links=links, link_bytes_per_s=LOUDBOX_LINK,
            vector_bytes=row.count("hidden") * BF16, measured_ns=row.number("ns"), spread=MEASURED,
        )  # fmt: skip


def _stages(tables: Tables) -> Iterator[Case]:
    """Columns of 8 chips: of 8 x 4 chips each takes a quarter of the assignments."""
    for row in tables["stage_means"]:
        chips = row.count("chips")
        if chips % 8:
            raise row.fault("chips", "expected a multiple of 8: a column is a ring of 8 chips")
        sent = even(MISTRAL["tokens"] * MISTRAL["top_k"] * 8 / chips, 8)
        for kernel in (DISPATCH, COMBINE):
            yield Case(
                name=f"mean of a stage, {chips} chips", whole=f"{chips} chips", file=str(row.file), line=row.line,
                machine=BLACKHOLE, kernel=kernel, version="stage-2026-08-31", family="stage", topology=RING, sent=sent,
                sides=(8,), wrapped=(True,), links=2, link_bytes_per_s=GALAXY_LINK,
                vector_bytes=MISTRAL["hidden"] * BF16, measured_ns=1e6 * row.number(f"{kernel}_ms"), spread=EVEN,
            )  # fmt: skip


TPU_LINK = 100e9  # bytes/s one way (lm-sys blog of 2026-06-17)
UNITS_NS = {"us": 1e3, "ms": 1e6, "s": 1e9}
XGMI_LINK = 64e9  # bytes/s one way, AMD Instinct MI300X datasheet: 128 GB/s both ways
_EXCHANGE = {"in-kernel": r"scatter inside", "hierarchical": r"hierarchical", "flat": r"flat all-to-all"}
_DTYPE = re.compile(r"\b(bf16|fp8)\b", re.IGNORECASE)
_MORI = re.compile(r"EP8 (dispatch|combine),? (fp8|bf16)", re.IGNORECASE)


def _others(tables: Tables) -> Iterator[Case]:
    for row in tables["other_meshes"]:
        item, machine = row.text("item"), row.text("machine")
        unit = row.text("unit").partition(" ")[0]
        version = next((name for name, words in _EXCHANGE.items() if re.search(words, item)), None)
        dtype = _DTYPE.search(item)
        if "TPU v7x" in machine and version and dtype and unit in UNITS_NS:
            # 16,384 tokens x top 8 on 16 chips; a row of 8,192 values
            name = f"{version} {dtype[1].lower()}"
            yield Case(
                name=f"TPU v7x {name}", whole=name, file=str(row.file), line=row.line, machine=TPU7X, kernel=DISPATCH,
                version=f"{version}-2026-06", family=f"tpu {version}", topology=MESH, sent=even(8192.0, 16),
                sides=(2, 2, 4), wrapped=(False, False, True), links=1, link_bytes_per_s=TPU_LINK,
                vector_bytes=8192 * (BF16 if dtype[1].lower() == "bf16" else 1),
                measured_ns=UNITS_NS[unit] * row.number("value"), spread=EVEN,
            )  # fmt: skip
        elif (mori := _MORI.match(item)) and (tokens := re.match(r"([\d,]+) tokens", row.text("setting"))):
            kernel, kind, count = mori[1].lower(), mori[2].lower(), int(tokens[1].replace(",", ""))
            vector = 7168 * (BF16 if kind == "bf16" else 1)
            sent = np.full((8, 8), count * (1 - (7 / 8) ** 8))  # once for each token and GPU
            value = row.number("value")
            # the authors' rate counts what a GPU sends to all eight, itself included
            ns = value * UNITS_NS[unit] if unit in UNITS_NS else 1e9 * sent[0].sum() * vector / (value * 1e9)
            name = f"MI300X {kernel} {kind} {count} tokens"
            yield Case(
                name=name, whole=name, file=str(row.file), line=row.line, machine=MI300X, kernel=kernel, version="mori",
                family="mori", topology=FULL, sent=sent, sides=(), wrapped=(), links=1, link_bytes_per_s=XGMI_LINK,
                vector_bytes=vector, measured_ns=ns, spread=EVEN,
            )  # fmt: skip


READERS: tuple[Callable[[Tables], Iterator[Case]], ...] = (_replay, _model_layers, _columns, _uniform, _stages, _others)


def even(assignments: float, chips: int) -> np.ndarray:
    """Each chip sends ``assignments``, as many to each."""
    return np.full((chips, chips), assignments / chips)


def _rates(rows: list[CsvLine]) -> Iterator[Rate]:
    for row in rows:
        machine, test, packet = row.text("machine"), row.text("test"), row.number("packet_bytes", whole=True)
        name = f"{test}, {row.count('links')} links, {packet:g} B, {row.text('op')}"
        yield Rate(name, machine, test, packet, 1e9 * row.number("gigabytes_per_s"))


def _latencies(rows: list[CsvLine]) -> Iterator[Latency]:
    for row in rows:
        name = f"{row.text('test')}, {row.text('payload_bytes')} B, {row.text('op')}"
        yield Latency(
            name=name, machine=row.text("machine"), topology=row.text("topology"),
            payload_bytes=row.number("payload_bytes"), atomic="atomic" in row.text("op"),
            ns=row.number("net_avg_ns") / row.count("hops"),
        )  # fmt: skip


def _blocks(rows: list[CsvLine]) -> Iterator[TransformerBlock]:
    for row in rows:
        mesh, fabric, kind = row.text("mesh"), row.text("fabric"), row.text("kind", ("dense", "moe"))
        if not re.fullmatch(r"\d+x\d+", mesh):
            raise row.fault("mesh", "expected two sides, such as 8x4")
        yield TransformerBlock(
            name=f"{kind} block, {mesh}, {fabric}", mesh=mesh, fabric=fabric, wrapped=row.text("wrapped_axes"),
            kind=kind, gate=row.text("gate"), tokens=row.count("tokens_per_chip"),
            ns=row.number("sum_of_device_max_ns"),
        )  # fmt: skip


def _relative(rows: list[CsvLine]) -> Iterator[tuple[str, str, str, float]]:
    for row in rows:
        kernel = row.text("op", (DISPATCH, COMBINE))
        yield row.text("case"), kernel, row.text("relative_to"), row.number("change_percent", -100)


def _zero_routing(rows: list[CsvLine]) -> Iterator[tuple[str, int, float]]:
    for row in rows:
        mesh = re.search(r"\b8 ?x ?(\d+)", row.text("item"))
        if row.text("item").startswith("zero routing") and mesh and row.cells["before"] and row.cells["after"]:
            yield row.text("item"), 8 * int(mesh[1]), row.number("after") / row.number("before")
