"""Reference vectors of balancing policies (``shared/reference/policies``); tests skip where they are missing."""

import json

import pytest

from support.shared import shared_path

FOLDER = shared_path() / "reference" / "policies"


def vectors(
    name: str,
    part: str | None = None,
    kinds: tuple[str, ...] = ("exact", "exact_with_ties", "exact_with_tie_rule", "objective", "property"),
):
    """Decorator: run the test once per case of ``name``.json with the given part and one of the given kinds."""
    file = FOLDER / f"{name}.json"
    if not file.is_file():
        reason = f"needs reference vectors: {file} not found; set ARCHSIM_SHARED to where the shared folder lies"
        return pytest.mark.parametrize("case", [pytest.param(None, marks=pytest.mark.skip(reason=reason))])
    cases = [
        case for case in json.loads(file.read_text())["cases"] if case.get("part") == part and case["kind"] in kinds
    ]
    assert cases, f"{file} has no case of part {part}, kinds {kinds}"
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["id"])
