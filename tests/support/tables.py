"""Tables of cases in ``tables.yaml`` beside a test: what is given, and what must be said or come out."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.examples import sampled


def read_beside(file: str, name: str) -> Any:
    """A YAML file beside ``file``. In a list, ``{times: 3, of: [a, b]}`` is written for ``a, b, a, b, a, b``."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return _written_out(yaml.load(Path(file).with_name(name).read_text(encoding="utf-8"), loader))


def _written_out(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _written_out(each) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    found: list = []
    for each in map(_written_out, value):
        found += each["of"] * each["times"] if isinstance(each, dict) and set(each) == {"times", "of"} else [each]
    return found


def table_of(file: str, name: str, every: int = 1) -> pytest.MarkDecorator:
    """Decorator: run the test once per row of a table; the first row has the names of its arguments.

    ``file``: of the test (``__file__``). Where the first argument is ``case``, it is what the row is called, and no
    argument. At a commit, one of ``every`` rows is asked.
    """
    names, *rows = read_beside(file, "tables.yaml")[name]
    assert rows and all(len(row) == len(names) for row in rows), f"{file}: {name}"
    called = None
    if names[0] == "case":
        called = [row[0] for row in rows]
        assert len(set(called)) == len(called), f"{file}: {name}: two rows of one name"
        names, rows = names[1:], [row[1:] for row in rows]
    some = [tuple(row) for row in rows[::every]]
    return pytest.mark.parametrize(names, sampled(map(tuple, rows), some.__contains__), ids=called)
