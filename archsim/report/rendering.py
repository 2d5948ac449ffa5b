"""Pages from Jinja templates: those in ``templates/``, and those of packages with their own pages."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"
_MICRO = re.compile(r"(?<=\d[ \u00a0])us\b")  # as manifests write microseconds, in ASCII


def rendered(
    template: str, context: Mapping[str, Any], filters: Mapping[str, Callable] | None = None, folder: Path | None = None
) -> str:
    """The text of a page. Raises jinja2.UndefinedError for a name that ``context`` lacks.

    Every template has the filters ``svg`` (a drawing, unescaped) and ``breakable`` (a label that may break after each
    +), and ``filters``. ``folder``: the folder of the template, if not this package's.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES] if folder else TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = Markup
    environment.filters["breakable"] = lambda label: escape(label).replace("+", Markup("+<wbr>"))
    environment.filters.update(filters or {})
    return _MICRO.sub("µs", environment.get_template(template).render(context))
