"""The report page: one self-contained HTML file, built from the files of a report folder."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsim.base.errors import sentence
from archsim.base.files import write_text
from archsim.report import decision_cost, figures, plots, sections, tables
from archsim.report.decision_cost import deciders
from archsim.report.sections import beyond_memory, copied
from archsim.report.units import BYTE_UNITS, TIME_UNITS, carried, factor, percent, plain_factor, scaled
from archsim.runs import notes, results
from archsim.specs import config_files, fabric, policies, unread
from archsim.specs.system import SystemSpec

if TYPE_CHECKING:
    from jinja2 import BytecodeCache
    from jinja2.bccache import Bucket

# ---- glossary
# The glossary as a page beside a report, and links from the words of a page to it.

FILE = "glossary.html"
_ROW = re.compile(r"^(?:- (?P<item>\*\*.+?\*\*): (?P<meaning>.*)|\| (?P<words>\*\*.+?\*\*[^|]*?) \|(?P<rest>.*)\|)$")
_BOLD, _CODE = re.compile(r"\*\*(.+?)\*\*"), re.compile(r"`([^`]+)`")
_EMPHASIS = re.compile(r"\*([^*]+)\*")
# Elements in which nothing is linked, and those whose text is.
_SKIPPED = ("a", "svg", "script", "style", "code", "pre", "button", "title", "h1", "h2", "h3", "h4", "summary", "nav")
_TOKEN = re.compile(r"<[^>]*>|[^<]+")
_TAG = re.compile(r"<(/?)([a-zA-Z0-9]+)")
_COMMON = (
    "run", "step", "point", "device", "request", "record", "link", "piece", "law", "study", "floor", "flow", "copy",
    "node", "move", "block", "message", "axis", "scenario", "variant", "system", "HBM",
)  # fmt: skip


@lru_cache(maxsize=1)
def glossary_sections() -> tuple[tuple[str, tuple[tuple[tuple[str, ...], str], ...]], ...]:
    """(heading, ((words, meaning as HTML), …)) of docs/glossary.md."""
    found: list[tuple[str, list]] = []
    for line in (config_files.shipped_docs() / "glossary.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            found.append((line[3:], []))
        elif (row := _ROW.match(line)) and found:
            bold = _BOLD.findall(row["item"] or row["words"])
            words = tuple(word.strip("` ") for part in bold for word in part.split(", "))
            found[-1][1].append((words, _html((row["meaning"] or row["rest"]).strip())))
    return tuple((heading, tuple(rows)) for heading, rows in found if rows)


def anchor(word: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")


@lru_cache(maxsize=1)
def _words() -> tuple[re.Pattern[str], dict[str, str]]:
    """(Pattern of all words and their plurals, lower-case word → anchor)."""
    anchors = {word.lower(): anchor(words[0]) for _, rows in glossary_sections() for words, _ in rows for word in words}
    anchors = {word: name for word, name in anchors.items() if len(word) > 2 and word not in _COMMON}
    longest = sorted(anchors, key=len, reverse=True)
    return re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, longest))})(s?)(?![\w-])", re.IGNORECASE), anchors


def linked(page: str) -> str:
    """The page, with the first use of every word of the glossary in each section a link to its meaning."""
    pattern, anchors = _words()
    out: list[str] = []
    seen: set[str] = set()
    stack: list[str] = []
    depth = 0
    for token in _TOKEN.findall(page):
        tag = _TAG.match(token)
        if tag is None:
            out.append(token if depth or not stack else pattern.sub(lambda found: _link(found, anchors, seen), token))
            continue
        name = tag[2].lower()
        if name == "section" and not tag[1]:
            seen.clear()
        if name in _SKIPPED and not token.endswith("/>"):
            depth += -1 if tag[1] else 1
        if name in ("p", "th", "dt", "li"):
            stack = stack[:-1] if tag[1] else [*stack, name]
        out.append(token)
    return "".join(out)


def _link(found: re.Match[str], anchors: dict[str, str], seen: set[str]) -> str:
    to = anchors.get(found[1].lower())
    if to is None or to in seen:
        return found[0]
    seen.add(to)
    return f'<a class="term" href="{FILE}#{to}">{found[0]}</a>'


def _html(text: str) -> str:
    cells = " · ".join(part.strip() for part in text.split("|"))
    return _EMPHASIS.sub(r"<em>\1</em>", _CODE.sub(r"<code>\1</code>", escape(cells, quote=False)))


# ---- rendering
# Pages from Jinja templates: those in ``templates/``, and those of packages with their own pages.

TEMPLATES = Path(__file__).parent / "templates"
_MICRO = re.compile(r"(?<=\d[ \u00a0])us\b")  # as manifests write microseconds, in ASCII


def rendered(
    template: str,
    context: Mapping[str, Any],
    filters: Mapping[str, Callable] | None = None,
    folder: Path | None = None,
    finish: Callable[[str], str] = str,
) -> str:
    """The text of a page; one with figures has at its end what draws them. Raises jinja2.UndefinedError for a name
    that ``context`` lacks.

    Every template has the filters ``plot`` (a figure), ``svg`` (a drawing, unescaped), ``breakable`` (a label that may
    break after each +) and ``sentence`` (a text that ends in a full stop), and ``filters``. ``folder``: the folder of
    the template, if not this package's. ``finish``: changes the text of the page before the scripts are added.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES] if folder else TEMPLATES),
        bytecode_cache=_templates_compiled(),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["sentence"] = sentence
    environment.filters["svg"] = Markup
    environment.filters["carried"] = carried
    environment.filters["plot"] = lambda figure: Markup(figure.html())
    environment.filters["breakable"] = lambda label: escape(label).replace("+", Markup("+<wbr>"))
    environment.filters.update(filters or {})
    text = finish(_MICRO.sub("µs", environment.get_template(template).render(context)))
    if 'class="plot"' not in text:
        return text
    before, end, after = text.rpartition("</body>")
    return f"{before}{plots.scripts()}\n{end}{after}"


@lru_cache(maxsize=1)
def _templates_compiled() -> "BytecodeCache":
    """Code of templates that pages of this process were made from: a command writes several pages, whose templates
    take longer to compile than to fill in. It is made anew for a template that has changed.
    """
    from jinja2 import BytecodeCache

    class Compiled(BytecodeCache):
        def __init__(self) -> None:
            self._codes: dict[tuple[str, str], Any] = {}

        def load_bytecode(self, bucket: "Bucket") -> None:
            bucket.code = self._codes.get((bucket.key, bucket.checksum))

        def dump_bytecode(self, bucket: "Bucket") -> None:
            self._codes[bucket.key, bucket.checksum] = bucket.code

    return Compiled()


# ---- page

PAGES = ("index.html", "results.html", "assumptions.html", "files.html", FILE)  # beside the results


def write_report(folder: Path) -> Path:
    """Write the pages of a report's folder beside its results, and return the path of ``index.html``.

    The write is atomic, and equal inputs give equal bytes. Raises as `archsim.report.tables.Report`.
    """
    folder = Path(folder)
    for name, text in render_all(tables.Report(folder)).items():
        write_text(folder / name, text)
    return folder / PAGES[0]


def render_all(report: tables.Report) -> dict[str, str]:
    """File → page: the answers, then all results, the assumptions, files and machines, and the glossary."""
    filters: dict[str, Callable[..., Any]] = {
        "written": _written, "factor": factor, "plain_factor": plain_factor, "percent": percent, "shape": shape_of,
        "bytes": lambda value: scaled(value, BYTE_UNITS), "time": lambda value: scaled(value, TIME_UNITS),
        "anchor": anchor, "given": lambda spec, key: spec.model_dump(mode="json", by_alias=True)[key],
    }  # fmt: skip
    context = _context(report)
    templates = {name: "page.html.j2" if name == PAGES[0] else f"{name}.j2" for name in PAGES}
    return {
        name: rendered(template, context, filters, finish=str if name == FILE else linked)
        for name, template in templates.items()
    }


def _context(report: tables.Report) -> dict[str, Any]:
    headers, rows = tables.results(report)
    runs, layers = report.shown(), report.layers()
    faster = figures.iterations(runs), figures.gains(runs), figures.speedups(runs), figures.throughput(runs)
    pictures = [each for each in faster if each is not None]
    systems = report.systems.values()
    return {
        "report": report,
        "layers": results.layers_told(layers),
        "parts": results.in_part(layers),
        "planned": report.experiment.runs,
        "overview": tables.overview(report),
        "notes": notes.result_notes(report.runs, [(system.name, notes.die_of(system)) for system in systems])
        + notes.traffic_notes(report.experiment.workload)
        + notes.system_notes(systems)
        + list(unread.recorded_unread(report.made)),
        "assumptions": tables.assumptions(report),
        "origins": tables.origins(report),
        "close": tables.CLOSE,
        "ties": tables.ties(report),
        "decisions": decision_cost.section(report),
        "engines": sections.engines_section(report.folder),
        "sure": sections.sure_section(report.folder),
        "hidden_percent": decision_cost.HIDDEN_PERCENT,
        "deciders": deciders(report),
        "policies": [
            (name, policies.PRESET_MEANINGS.get(name, "a policy of the experiment")) for name in report.policies
        ],
        "sentences": sections.sentences(report),
        "glossary": glossary_sections(),
        "picture": next(iter(pictures), None),
        "compared": pictures[1:],
        "hops": figures.hops(runs),
        "traffic": figures.traffic(runs),
        "bounds": figures.limits(runs),
        "path": figures.critical_path(runs),
        "imbalance": figures.imbalance(runs),
        "replicas": figures.replicas(runs),
        "copied": copied(report),
        "beyond_memory": list(beyond_memory(report)),
        "maps": figures.maps(report),
        "busiest": figures.busiest(report, sections.headline(report)),
        "roofline": figures.roofline(report),
        "steps": figures.steps(report),
        "pairs": figures.pairs(report),
        "balancers": sections.balancers_section(runs),
        "slower": sections.slower_section(runs, report.experiment.policies, report.assumptions),
        "has_pairs": bool(report.pairs),
        "has_steps": bool(report.steps),
        "headers": headers,
        "rows": rows,
    }


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_written(each)}" for key, each in value.items())
    return ", ".join(map(_written, value)) if isinstance(value, list) else str(value)


def shape_of(system: SystemSpec) -> str:
    """Dies and links: ``5 × 5``, ``5 × 5, torus``, ``4 × 8 switch``."""
    if system.fabric is not None:
        return system.fabric.shape
    size = f"{system.mesh.x} × {system.mesh.y}" if system.mesh is not None else f"{system.topology.dies}"
    return size if system.topology == fabric.TopologySpec() else f"{size}, {system.topology.name}"
