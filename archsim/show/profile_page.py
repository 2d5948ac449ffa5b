"""The profile page of a trace, with pictures, numbers, definitions and insights, as one self-contained HTML file."""

import base64
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from archsim.base import files, tables
from archsim.show import figures, plots, rendering
from archsim.traffic.profile import BATCHES, DEFINITIONS, POINTS, Profile, insights

SCALE_STEPS = 64  # of the colours below a heatmap
MOST_NUMBERED = 32  # experts whose numbers stand below their column: it is 13 px wide, and a number of two digits 12
_NAMES = {"cross_layer": "across layers", "cross_token": "across tokens", "coactivation": "chosen together"}


def write_profile(found: Profile, folder: Path) -> Path:
    """Write ``index.html`` and ``profile.csv`` into a folder; returns the path of the page."""
    files.own_folder(folder)
    files.write_text(folder / "profile.csv", csv_of(found))
    files.write_text(folder / "index.html", render(found))
    return folder / "index.html"


def csv_of(found: Profile) -> str:
    """statistic, layer (of the model; empty for the mean, half 1 and half 2), value."""
    rows: list[list[str | int]] = [["statistic", "of", "layer", "value"]]
    for name, values in found.layers.items():
        rows.append([name, "mean of layers", "", f"{found.mean(name):.6g}"])
        for half, value in enumerate(found.halves.get(name, ()), 1):
            rows.append([name, f"half {half}", "", f"{value:.6g}"])
        for layer, value in zip(found.trace.layer_ids, values, strict=False):
            rows.append([name, "layer", int(layer), f"{value:.6g}"])
    for name, values in found.coverage.items():
        for point, value in zip(POINTS, values, strict=True):
            rows.append([f"{name} coverage", f"top {point:.0%}", "", f"{value:.6g}"])
    for batch, values in zip(BATCHES, found.working_set, strict=True):
        if not np.isnan(values).any():
            rows.append(["working set", f"batch {batch}", "", f"{values.mean():.6g}"])
    for distance, count in enumerate(found.reuse):
        rows.append(["reuse", f"distance {distance}" if distance else "first use", "", int(count)])
    return tables.csv_text(rows)


def render(found: Profile) -> str:
    names = [name for name in DEFINITIONS if name in found.layers]
    coverage = {_NAMES[name]: list(zip(POINTS, values, strict=True)) for name, values in found.coverage.items()}
    of_batch = zip(BATCHES, found.working_set, strict=True)
    working_set = [(np.log2(batch), float(v.mean())) for batch, v in of_batch if not np.isnan(v).any()]
    context = {
        "trace": found.trace,
        "tokens": len(found.trace.experts),
        "middle": int(found.trace.layer_ids[len(found.trace.layer_ids) // 2]),
        "insights": insights(found),
        "numbers": [(name, found.mean(name), found.halves.get(name), DEFINITIONS[name]) for name in names],
        "heat": [(_NAMES[name], heatmap(table)) for name, table in found.heat.items()],
        "loads": heatmap(found.loads / found.loads.sum(axis=1, keepdims=True), found.trace.layer_ids),
        "coverage": figures.lines_of(
            "How many pairs of experts cover how much?", [figures.Line(*each) for each in coverage.items()],
            "share of pairs, most frequent first", "share of selections",
        ),
        "by_layer": curves_by_layer({name: _by_layer(found, name) for name in names}),
        "reuse": figures.lines_of(
            "After how many tokens is an expert used again?", [figures.Line("reused", _reuse_curve(found.reuse))],
            "tokens since last use", "share of selections",
        ),
        "working_set": figures.lines_of(
            "How many experts does a step need?", [figures.Line("experts", working_set)],
            "log2 of requests per step", "distinct experts, mean over layers",
        ),
        "subjects": [
            (name, heatmap(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), found.trace.layer_ids))
            for name, counts in list(zip(found.trace.subject_names, found.subject_loads, strict=True))[:8]
        ],
    }  # fmt: skip
    return rendering.render("profile.html.j2", context)


def _by_layer(found: Profile, name: str) -> list[tuple[float, float]]:
    """(layer of the model, value); for statistics of two layers, the first of them."""
    return [(int(layer), float(value)) for layer, value in zip(found.trace.layer_ids, found.layers[name], strict=False)]


def curves_by_layer(statistics: dict[str, list[tuple[float, float]]]) -> plots.Points:
    rows = [
        {"statistic": name, "layer": float(at), "value": float(value)}
        for name, line in statistics.items() for at, value in line if np.isfinite(value)
    ]  # fmt: skip
    return plots.Points(
        question="How do layers differ?", rows=rows,
        x=plots.PlotAxis("layer", "layer of the model"), y=plots.PlotAxis("value", "value"),
        lines=True,
        panel="statistic", own_scales=True, tips=(("statistic", "statistic"), ("layer", "layer"), ("value", "value")),
    )  # fmt: skip


def heatmap(shares: np.ndarray, layers: Iterable[int] = ()) -> str:
    """An ``<img>`` of a table, one pixel per entry, dark for small ones: the square root of each over the largest.
    Scale below. Columns are experts, and rows are ``layers`` or experts, too; both are named where
    one points (``archsim/show/templates/heat.js``).
    """
    largest = float(shares.max())
    scale = np.linspace(0.0, 1.0, SCALE_STEPS)[None, :] ** 2  # even steps of colour
    half = f"{largest / 4:.2g}"  # the middle of a square-root scale
    ends = f'<small class="ends"><span>0</span><span>{half}</span><span>{largest:.2g}</span></small>'
    alt = f"heatmap of {shares.shape[0]} by {shares.shape[1]}"
    every = shares.shape[1]
    numbers = range(every) if every <= MOST_NUMBERED else np.unique(np.linspace(0, every - 1, 5).astype(int))
    experts = "".join(f"<span>{each}</span>" for each in numbers)
    below = f'<small class="ends{" each" if every <= MOST_NUMBERED else ""}">{experts}</small>'
    named = f' data-largest="{largest:.4g}" data-layers="{",".join(map(str, layers))}"'
    told = '<small class="pointed">Columns are experts. Point at a cell for its numbers.</small>'
    bar = _image(scale, "scalebar", f"colours, from 0 to {largest:.2g}")
    return f"{_image(shares, 'heat', alt, named)}{below}{told}{bar}{ends}"


def _image(shares: np.ndarray, kind: str, alt: str, more: str = "") -> str:
    level = np.sqrt(shares / max(float(shares.max()), 1e-12))
    colour = np.stack([level, level**1.6 * 0.9, 0.25 + level * 0.35], axis=-1)
    png = base64.b64encode(_png((np.clip(colour, 0, 1) * 255).astype(np.uint8))).decode()
    return f'<img class="{kind}" alt="{alt}"{more} src="data:image/png;base64,{png}">'


def _reuse_curve(reuse: np.ndarray) -> list[tuple[float, float]]:
    """Share of selections whose expert was last used at most this many tokens earlier."""
    return [(distance, value) for distance, value in enumerate(np.cumsum(reuse[1:-1]) / reuse.sum(), 1)]


def _png(pixels: np.ndarray) -> bytes:
    """A PNG file of uint8[row, column, 3] (RFC 2083)."""
    rows, columns, _ = pixels.shape

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
