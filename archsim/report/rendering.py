"""Pages from Jinja templates: those of ``templates/``, and of rooms that have pages of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TEMPLATES = Path(__file__).parent / "templates"


def rendered(
    template: str, context: Mapping[str, Any], filters: Mapping[str, Callable] | None = None, folder: Path | None = None
) -> str:
    """The text of a page; what the template names and ``context`` lacks is an error (jinja2.UndefinedError).

    Every template has the filters ``svg`` (a drawing, as it is) and ``breakable`` (a label that may break behind each +),
    and ``filters``. ``folder``: where the template lies, if not with this package's.
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
    return environment.get_template(template).render(context)
