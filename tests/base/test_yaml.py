"""Reads and writes strict YAML as a plain tree that remembers where every key was written."""

from pathlib import Path

import pytest

from archsim.base.errors import SpecError
from archsim.base.yaml import parse_yaml, resolve_scalar
from archsim.specs.library import load_experiment


def refused(tmp_path: Path, text: str | bytes, overrides: tuple[str, ...] = ()) -> str:
    """The message for an experiment file of this content, without the file's folder."""
    file = tmp_path / "bad.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError) as caught:
        load_experiment(file, overrides)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_aliases_that_unfold_without_end_are_refused_and_many_keys_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr("archsim.base.yaml._MOST_NODES", 1000)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "alias" in refused(tmp_path, "\n".join(lines))
    assert len(parse_yaml("\n".join(f"k{n}: {n}" for n in range(1500)), "x").data) == 1500


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.7e12", 1.7e12),
        ("200e-9", 200e-9),
        ("1e3", 1000.0),
        ("1.7E+12", 1.7e12),
        (".5", 0.5),
        ("5.", 5.0),
        ("-3", -3),
        ("0", 0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        *((text, text) for text in ("on", "off", "yes", "no", "y", "1:30", "017", "0x1F", "0o17", "1_000", ".nan", ".inf", "nan", "inf", "e3", ".", "+", "-", "1e", ".e3", "2024-01-01", "3 TB/s", "tRUE")),  # noqa: E501
    ],
)  # fmt: skip
def test_plain_scalar(text, value):
    found = resolve_scalar(text)
    assert (found, type(found)) == (value, type(value))
