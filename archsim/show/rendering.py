"""Pages from Jinja templates: those in ``templates/``, and those of packages with their own pages."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsim.base.errors import sentence, spaced
from archsim.show import plot_parts
from archsim.show.units import carried_digits, percent, significant

if TYPE_CHECKING:
    from jinja2 import BytecodeCache
    from jinja2.bccache import Bucket


TEMPLATES = Path(__file__).parent / "templates"
# Tags, and elements that are no text for readers: a path in an attribute and a command stay as they are.
_TAGS = re.compile(r"(<(?:(code|pre|script|style)\b.*?</\2>|[^<>]*>))", re.DOTALL)
_MICRO = re.compile(r"(?<=\d[ \u00a0])us\b")  # as manifests write microseconds, in ASCII


def render(
    template: str,
    context: Mapping[str, Any],
    filters: Mapping[str, Callable] | None = None,
    folder: Path | None = None,
    finish: Callable[[str], str] = str,
) -> str:
    """The text of a page; one with figures has at its end what draws them. Templates have ``filters`` and ``plot`` (a
    figure), ``svg`` (a drawing, unescaped), ``breakable`` (a label that may break after each +) and ``sentence`` (ends
    in a full stop). ``folder``: of the template, if not this package's; ``finish``: changes the text before scripts are
    added. Raises jinja2.UndefinedError for a name that ``context`` lacks.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES] if folder else TEMPLATES), bytecode_cache=_templates_compiled(),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["sentence"] = sentence
    environment.filters["svg"] = Markup
    environment.filters.update(carried=carried_digits, percent=percent, significant=significant)
    environment.filters["plot"] = lambda figure: Markup(figure.html())
    environment.filters["breakable"] = lambda label: escape(label).replace("+", Markup("+<wbr>"))
    environment.filters.update(filters or {})
    text = finish(_spaced_text(_MICRO.sub("µs", environment.get_template(template).render(context))))
    if 'class="plot"' not in text:
        return text
    before, end, after = text.rpartition("</body>")
    return f"{before}{plot_parts.scripts()}\n{end}{after}"


def _spaced_text(page: str) -> str:
    parts = _TAGS.split(page)  # text, a tag, the name of its element, text, ...
    parts[::3], parts[2::3] = map(spaced, parts[::3]), [""] * len(parts[2::3])
    return "".join(parts)


@lru_cache(maxsize=1)
def _templates_compiled() -> "BytecodeCache":
    """Compiled templates of pages of this process, made anew for a template that has changed."""
    from jinja2 import BytecodeCache

    class Compiled(BytecodeCache):
        def __init__(self) -> None:
            self._codes: dict[tuple[str, str], Any] = {}

        def load_bytecode(self, bucket: "Bucket") -> None:
            bucket.code = self._codes.get((bucket.key, bucket.checksum))

        def dump_bytecode(self, bucket: "Bucket") -> None:
            self._codes[bucket.key, bucket.checksum] = bucket.code

    return Compiled()
