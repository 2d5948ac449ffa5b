"""Figures of pages for print, laid out for columns of a paper as `archsim/show/templates/plots.js` does, and drawn by
Vega-Lite inside of ``vl-convert-python``, without browser or network.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Any

from archsim.base import errors
from archsim.base.files import refuse_unwritable
from archsim.show.plot_parts import colours, named_by

FORMATS = ("pdf", "png", "svg")
FONT_PT = 8  # of text
PAGE_FONT_PX = 11  # of text on pages, as `archsim.show.plot_parts.CONFIG` has it
# Width in pt of a figure over so many columns of a paper with two (IEEEtran: 252 pt and 516 pt).
COLUMNS_PT: Mapping[int, float] = MappingProxyType({1: 252.0, 2: 516.0})
PNG_DPI = 300
VEGA_LITE = "6.4"  # the version whose language `archsim.show.plots.Figure.vega` writes, as in archsim/show/vega
PADDING_PX = 10  # of Vega around a figure, both sides together
TITLE_CHARACTER_PX, HEADER_CHARACTER_EM = 5.6, 0.6  # mean width of a character, as plots.js has them
MOST_LAYOUTS = 5  # labels beside bars may need more room than is known before they are drawn
_SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)" viewBox="0 0 [\d. ]+"')  # as Vega writes it
_FIGURE = re.compile(r'<figure class="plot".*?<script type="application/json">(.*?)</script>', re.DOTALL)


def write_figure(folder: Path, name: str, out: Path, columns: int | None = None, font_pt: float = FONT_PT) -> Path:
    """Write a figure of the pages in ``folder``, as `draw`. Raises ArchsimError for a wrong name, with known ones."""
    known = _figures(folder)
    if name not in known:
        listed = "\n".join(f"  {each:<12} {about}" for each, about in names_of(folder).items())
        raise errors.ArchsimError(f"{folder}: no figure {name!r}{errors.did_you_mean(name, known)}; it has:\n{listed}")
    return draw(known[name], out, columns, font_pt)


def names_of(folder: Path) -> dict[str, str]:
    """Name → its question, of the figures of a folder's pages. Raises ArchsimError for a folder without any."""
    return {name: spec["description"].partition("?")[0] + "?" for name, spec in _figures(folder).items()}


def _figures(folder: Path) -> dict[str, dict[str, Any]]:
    """Name → specification, page by page; the page of the answer first. Of the same name, the second has a -2."""
    found: dict[str, dict[str, Any]] = {}
    for page in sorted(folder.glob("*.html"), key=lambda file: (file.name != "index.html", file.name)):
        for text in _FIGURE.findall(page.read_text(encoding="utf-8")):
            spec = json.loads(text)
            name = wanted = spec["usermeta"].get("name") or named_by(spec["description"])
            number = 1
            while name in found and found[name] != spec:
                number += 1
                name = f"{wanted}-{number}"
            found[name] = spec
    if not found:
        raise errors.ArchsimError(
            f"{folder}: no page with a figure. Figures come from the folder of a sweep, an exploration, a comparison "
            "or a serve run"
        )
    return found


def draw(spec: Mapping[str, Any], out: str | Path, columns: int | None = None, font_pt: float = FONT_PT) -> Path:
    """Draw a specification of `archsim.show.plots.Figure.vega` as .pdf, .png or .svg by its ending, with the values
    chosen at first; the same bytes each time. ``columns`` of a paper: exact width; None: one, or two for several
    panels. Raises ArchsimError for other endings, and where vl-convert-python is missing.
    """
    file = Path(out)
    if file.suffix[1:] not in FORMATS:
        raise errors.ArchsimError(f"{file}: figures are written as {', '.join(FORMATS)}, by the file's ending")
    refuse_unwritable(file)
    try:
        import vl_convert
    except ModuleNotFoundError:
        raise errors.ArchsimError("figures for print need vl-convert-python: pip install 'archsim[figures]'") from None
    wide_pt = COLUMNS_PT[columns or min(2, spec["usermeta"]["panels"])]
    room_px, less, wide_px, tall_px, svg = round(wide_pt * PAGE_FONT_PX / font_pt), 0.0, math.inf, 0.0, ""
    for _ in range(MOST_LAYOUTS):
        svg = vl_convert.vegalite_to_svg(laid_out(spec, room_px, less), vl_version=VEGA_LITE, allowed_base_urls=[])
        wide_px, tall_px = (float(each) for each in _SIZE.findall(svg)[0])
        if wide_px <= room_px:
            break
        less += wide_px - room_px + 1
    unit, tall_pt = "pt" if file.suffix == ".svg" else "", tall_px * wide_pt / room_px
    shown = (
        f'width="{wide_pt:g}{unit}" height="{tall_pt:.6g}{unit}" viewBox="0 0 {max(room_px, wide_px):g} {tall_px:g}"'
    )
    svg = _SIZE.sub(shown, svg, count=1)
    write: dict[str, Callable[[], bytes]] = {
        ".svg": svg.encode,
        ".pdf": lambda: vl_convert.svg_to_pdf(svg),
        ".png": lambda: vl_convert.svg_to_png(svg, ppi=PNG_DPI),
    }
    file.write_bytes(write[file.suffix]())
    return file


def laid_out(spec: Mapping[str, Any], room_px: float, less_px: float = 0.0) -> dict[str, Any]:
    """A specification for this page width, light colours, rows as records. ``less_px``: room lacked before."""
    named = colours()
    text = re.sub(r'"(--[a-z0-9-]+)"', lambda each: json.dumps(named[each[1]]), json.dumps(spec))
    found: dict[str, Any] = json.loads(text)
    found["background"] = named["--page"]
    plan, inner = found["usermeta"], found.get("spec", found)
    for name, rows in found["datasets"].items():
        if isinstance(rows, dict):  # as pages store them
            found["datasets"][name] = [dict(zip(rows["columns"], row, strict=True)) for row in rows["rows"]]
    panels = plan["panels"]
    most = max(1, min(panels, int(room_px // plan["least"])))
    across = math.ceil(panels / math.ceil(panels / most))
    inner["width"] = max(120, int((room_px - PADDING_PX - less_px) / across - plan["left"] - 24))
    if plan["ratio"]:
        inner["height"] = round(inner["width"] * plan["ratio"])
    for layer in inner["layer"]:  # a title that is longer than the axis stands in lines
        axis = layer.get("encoding", {}).get("x", {}).get("axis") or {}
        if axis.get("title"):
            axis["title"] = wrap(axis["title"], max(12, int((inner["width"] + plan["left"] / 2) / TITLE_CHARACTER_PX)))
    if "facet" in found:
        found["columns"] = across
        longest = max(len(str(name)) for name in found["facet"]["sort"])
        fits_px = (room_px / across - plan["left"]) / (HEADER_CHARACTER_EM * longest)
        found["facet"]["header"]["labelFontSize"] = max(8, min(12, fits_px))
    found["config"]["legend"]["columns"] = max(1, int((room_px - plan["left"]) // plan["entry"]))
    return found
