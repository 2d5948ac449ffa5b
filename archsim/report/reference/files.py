"""The generated files: ``docs/reference.md``, ``docs/results.md`` and ``docs/schemas/*.schema.json``."""

import json
from pathlib import Path

from archsim.base.files import write_text
from archsim.report.reference.markdown import reference
from archsim.report.reference.results import results_page
from archsim.report.reference.schema import FILES, schema_of, traffic_schema


def generated() -> dict[str, str]:
    """Path below ``docs`` → text."""
    schemas = {kind: schema_of(spec, kind) for kind, spec in FILES.items()} | {"traffic": traffic_schema()}
    files = {
        f"schemas/{kind}.schema.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        for kind, schema in schemas.items()
    }
    return {"reference.md": reference(schemas), "results.md": results_page(), **files}


def write_reference(docs: Path) -> None:
    """Write all files below ``docs``."""
    for name, text in generated().items():
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(docs / name, text)
