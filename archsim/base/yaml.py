"""Reads and writes strict YAML as a plain tree that remembers where every key was written.

PyYAML's own constructors follow YAML 1.1, in which ``1e3`` is text, ``on`` is true, ``1:30`` is 90, ``017`` is 15 and
the second of two equal keys wins silently. Only its parser is used here. Plain scalars are resolved only by these
rules: ``null``/``~``/nothing, ``true``/``false``, decimal integers without leading zeros, decimal floats with or
without exponent; everything else is text. Duplicate keys, tags, keys that are not text, and several documents in a
file are errors.
"""

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from archsim.base.errors import SpecError, nearest
from archsim.base.fields import without_range
from archsim.base.files import regular

Key = str | int
Keys = tuple[Key, ...]

_INTEGER = re.compile(r"[-+]?(?:0|[1-9]\d*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:0|[1-9]\d*)?(?:\.\d*)?(?:[eE][-+]?\d+)?", re.ASCII)
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}
_QUOTED = r"""(?:(?<=[\[{])|(?<=, )|(?<=: ))'[^][{}"'#]*'"""
_INNERMOST = re.compile(rf"""[\[{{](?:[^][{{}}"'#]|{_QUOTED})*[]}}]""")
_SAFE_DEPTH = 500  # libyaml's composer recurses at every level; an 8 MB stack holds about ten thousand
_MOST_NODES, _MOST_TIMES = 50_000, 2  # aliases of aliases can expand a small file indefinitely
_MOST_WRITTEN = 2_000_000  # values without aliases; such a file takes a minute and 2 GB


class Place(NamedTuple):
    """Where a value was given: ``head`` is ``file:line`` or ``--set key=value``, ``keys`` the path within it."""

    head: str
    keys: Keys = ()

    def __str__(self) -> str:
        return f"{self.head}: {'.'.join(map(str, self.keys))}" if self.keys else self.head


class Tree:
    """Mappings, lists and scalars, and the place of every key path."""

    def __init__(self, data: Any, places: dict[Keys, Place] | None = None) -> None:
        self.data, self.places = data, {} if places is None else places

    def get(self, keys: Keys) -> Any:
        value = self.data
        for key in keys:
            value = value[key]
        return value

    def find(self, keys: Keys) -> Any:
        """What is at ``keys`` below mappings, or None."""
        value = self.data
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def place(self, keys: Keys) -> Place:
        """Where ``keys`` is written. For a missing key, it is the place of its nearest ancestor."""
        for length in range(len(keys), -1, -1):
            if keys[:length] in self.places:
                ancestor = self.places[keys[:length]]
                return Place(ancestor.head, ancestor.keys + keys[length:])
        raise KeyError(keys)

    def error(self, keys: Keys, problem: str) -> SpecError:
        return SpecError(f"{self.place(keys)}: {problem}")

    def graft(self, keys: Keys, other: "Tree") -> None:
        """Replace what is at ``keys`` by another tree with its own places (else those of the ancestors)."""
        parent = self.get(keys[:-1])
        parent[keys[-1]] = other.data
        kept = {at: place for at, place in self.places.items() if at[: len(keys)] != keys or at == keys}
        self.places = kept | {keys + at: place for at, place in other.places.items()}

    def underlay(self, keys: Keys, other: "Tree") -> None:
        """Add to the mapping at ``keys`` what it lacks from another tree, recursively; what it has keeps its place."""
        mine = self.get(keys)
        added = {keys + at: place for at, place in other.places.items() if not _is_given(mine, at)}
        merged = _merge(other.data, mine)
        if keys:
            self.get(keys[:-1])[keys[-1]] = merged
        else:
            self.data = merged
        self.places = added | self.places

    def wrap(self, keys: Keys) -> None:
        """Turn the value at ``keys`` into a list of that one value; places are still shown as written."""
        self.get(keys[:-1])[keys[-1]] = [self.get(keys)]
        depth = len(keys)
        moved = {keys + (0,) + at[depth:]: place for at, place in self.places.items() if at[:depth] == keys}
        self.places = {at: place for at, place in self.places.items() if at[:depth] != keys or at == keys} | moved


def _is_given(value: Any, keys: Keys) -> bool:
    """Whether a tree has a value at ``keys``, or one above it that is no mapping of keys and replaces all below it."""
    for key in keys:
        if not _has_keys(value):
            return True
        if key not in value:
            return False
        value = value[key]
    return True


def _has_keys(value: Any) -> bool:
    """Whether it is a mapping, and not that of a number with its range, which is one value."""
    return isinstance(value, dict) and without_range(value) is value


def _merge(below: Any, above: Any) -> Any:
    if not _has_keys(below) or not _has_keys(above):
        return above
    return below | {key: _merge(below.get(key), value) for key, value in above.items()}


# First bytes of files that are given in place of a YAML file, and what takes them.
_ARRAYS = "these are arrays, such as loads of experts or routing: `archsim place` and `archsim trace import` take them"
_BINARY = {b"\x93NUM": _ARRAYS, b"PK\x03\x04": _ARRAYS}


def read_yaml(path: str | Path, label: str | None = None, instead: tuple[str, str] = ("", "")) -> Tree:
    """The mapping in a YAML file. ``label``: the file's name in messages (default: the path); ``instead``: what to give
    where there is no such file nor one of a near name, and what else may be in place of a file. Raises SpecError for a
    file that cannot be read, is not UTF-8 or YAML, or does not hold a mapping.
    """
    label = str(path) if label is None else label
    try:
        text = regular(Path(path)).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise SpecError(f"{label}: no such file{_file_meant(Path(path)) or instead[0]}") from None
    except IsADirectoryError:
        raise SpecError(f"{label}: is a directory; expected a YAML file{instead[1]}") from None
    except UnicodeDecodeError as error:
        raise SpecError(
            f"{label}: not UTF-8 text (byte 0x{error.object[error.start]:02x} at offset {error.start}); "
            f"{_BINARY.get(error.object[:4], 'expected a YAML file')}"
        ) from None
    except (OSError, ValueError) as error:
        raise SpecError(f"{label}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    tree = parse_yaml(text, label)
    if tree.data is None:
        raise SpecError(f"{label}: is empty; expected a mapping")
    if not isinstance(tree.data, dict):
        missing = NO_COLON.fullmatch(text.strip().splitlines()[0]) if isinstance(tree.data, str) else None
        hint = f"; {_no_colon_message(missing)}" if missing else ""
        raise SpecError(f"{tree.place(())}: expected a mapping of keys at the top level{hint}")
    return tree


def _file_meant(path: Path) -> str:
    """A hint at the YAML file, or report, with the name nearest to a missing file, or an empty string."""
    beside = {file.stem: file for file in path.parent.glob("*.yaml")}
    if not path.suffix:
        beside |= {file.parent.name: file.parent for file in path.parent.glob("*/manifest.yaml")}
    match = nearest(path.stem, beside)
    return f"; did you mean {str(beside[match])!r}?" if match else ""


def parse_yaml(text: str, label: str) -> Tree:
    """The tree of one YAML document; places read ``label:line``."""
    try:
        root = _compose(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(f"{label}:{line}: invalid YAML: character U+{error.character:04X} is not allowed") from None
    except yaml.MarkedYAMLError as error:
        line, problem = _slip(text, error)
        raise SpecError(f"{label}:{line}: invalid YAML: {problem}") from None
    except RecursionError:
        raise SpecError(f"{label}: invalid YAML: nested too deeply") from None
    builder = _Builder(label)
    if root is None:
        return Tree(None, {(): Place(f"{label}:1")})
    try:
        data = builder.build(root, (), root.start_mark.line + 1)
    except RecursionError:
        raise SpecError(f"{label}: invalid YAML: nested too deeply") from None
    if builder.problems:
        raise SpecError("\n".join(builder.problems))
    return Tree(data, builder.places)


# A line with a key and no colon, or no blank after it: `batch 64`, `systems:[dojo]`.
NO_COLON = re.compile(
    r"\s*(?:- +)?(?P<key>[A-Za-z_][\w.-]*)(?::(?=\S)|\s+(?=[^\s:#]))(?P<rest>(?![^\[{'\"]*:(?:\s|$)).*?)\s*"
)
# A line with a key alone and no colon, below which its value follows.
_KEY_ALONE = re.compile(r"\s*(?:- +)?(?P<key>[A-Za-z_][\w.-]*)\s*")
# Part of what PyYAML says → what to write.
_SLIPS = {
    "mapping values are not allowed": "put a value that has a colon in quotes",
    "found character '\\t'": "indent with blanks, not tabs",
    "that cannot start any token": "put the text in quotes",
    "expected <block end>": "keys of one mapping begin in the same column, and so do items of one list",
    "expected ',' or": "close the bracket, or write a comma between values",
    "unexpected end of stream": "close the quotes that begin here",
}


def _no_colon_message(found: re.Match[str]) -> str:
    return f"no colon and blank after the key: write '{found['key']}: {found['rest']}'"


def _slip(text: str, error: yaml.MarkedYAMLError) -> tuple[int, str]:
    """The line of what is not YAML, and what is wrong there, with what to write."""
    problem, lines = error.problem or error.context or "", text.splitlines()
    mark = error.problem_mark or error.context_mark
    at = mark.line if mark else 0
    begun = error.context_mark.line if error.context_mark else at
    before = next((line for line in range(min(at, len(lines)) - 1, -1, -1) if lines[line].strip()), at)
    for line in (begun, at, before):
        if line < len(lines) and (found := NO_COLON.fullmatch(lines[line].partition(" #")[0])):
            return line + 1, _no_colon_message(found)
    if "could not find expected ':'" in problem or "mapping values are not" in problem:
        for line in (begun, before):
            if line < len(lines) and (found := _KEY_ALONE.fullmatch(lines[line].partition(" #")[0])):
                return line + 1, f"no colon after the key: write '{found['key']}:'"
    hint = next((hint for part, hint in _SLIPS.items() if part in problem), "")
    if hint == _SLIPS["unexpected end of stream"]:
        at = begun
    return at + 1, f"{problem}; {hint}" if hint else problem


def _compose(text: str) -> yaml.Node | None:
    """Composed by libyaml, if PyYAML has it: eight times faster. The Python parser has better messages, and survives
    deep nesting, which libyaml does not. Depth is at most the number of brackets (of those around nothing but scalars
    one), or of columns in a line."""
    outer = _INNERMOST.sub("", text)
    deepest = 1 + outer.count("[") + outer.count("{") + max(map(len, text.splitlines()), default=0)
    if deepest <= _SAFE_DEPTH and yaml.__with_libyaml__:
        with suppress(yaml.YAMLError):
            return yaml.compose(text, Loader=yaml.CBaseLoader)
    return yaml.compose(text, Loader=yaml.BaseLoader)


def parse_value(text: str, head: str) -> Any:
    """The value in an override (``[64]``, ``2TB/s``, ``{x: 3, y: 8}``); messages start with ``head``."""
    try:
        return parse_yaml(text, "value").data
    except SpecError as error:
        raise SpecError(f"{head}: {str(error).partition(': ')[2]}") from None


def resolve_scalar(text: str) -> None | bool | int | float | str:
    """The value of a plain (unquoted) scalar."""
    if text.lower() in _WORDS and text in (text.lower(), text.capitalize(), text.upper()):
        return _WORDS[text.lower()]
    if _INTEGER.fullmatch(text):
        return int(text) if len(text) < 100 else text
    if (
        _FLOAT.fullmatch(text)
        and any(mark in text for mark in ".eE")
        and re.search(r"\d", text.split("e")[0].split("E")[0])
    ):
        return float(text)
    return text


def dump_yaml(data: Any, *, flow: bool | None = False) -> str:
    """YAML text that :func:`parse_yaml` reads back as equal data; keys keep their order. flow: on one line, in
    brackets; None: only what holds nothing but scalars.
    """
    if flow:
        return yaml.dump(
            data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf, default_flow_style=True
        ).strip()
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=flow)


class _Dumper(yaml.SafeDumper):
    """Quotes text that this module's rules (not YAML 1.1's) would resolve to another type; expands aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if not text.isprintable():
        style = '"'  # the only style that can escape all line breaks
    elif resolve_scalar(text) != text:
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class _Builder:
    """Converts composed nodes to plain data, recording places and problems."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.places: dict[Keys, Place] = {}
        self.problems: list[str] = []
        self._open: set[int] = set()
        self._seen: set[int] = set()
        self._nodes = 0

    def build(self, node: yaml.Node, keys: Keys, line: int) -> Any:
        self.places[keys] = Place(f"{self.label}:{line}", keys)
        self._nodes += 1
        if id(node) in self._open:
            raise SpecError(f"{self.places[keys]}: an alias refers to itself")
        self._seen.add(id(node))
        if self._nodes > _MOST_TIMES * len(self._seen) + _MOST_NODES:
            raise SpecError(
                f"{self.places[keys]}: aliases repeat what they name to over {self._nodes - 1:,} values; expected at "
                f"most {_MOST_NODES:,}"
            )
        if len(self._seen) > _MOST_WRITTEN:
            raise SpecError(f"{self.places[keys]}: more than {_MOST_WRITTEN:,} values in one file. Split it")
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.rpartition(":")[2] not in ("str", "seq", "map"):
            self.problems.append(f"{self.places[keys]}: YAML tags are not supported: {node.tag}")
            return None
        self._open.add(id(node))
        value = self._value(node, keys)
        self._open.discard(id(node))
        return value

    def _value(self, node: yaml.Node, keys: Keys) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return node.value if node.style else resolve_scalar(node.value)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*keys, index), item.start_mark.line + 1) for index, item in enumerate(node.value)]
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(f"{Place(f'{self.label}:{line}', keys)}: a key must be text")
                continue
            key = key_node.value
            if key in mapping:
                first = self.places[(*keys, key)].head.rpartition(":")[2]
                self.problems.append(
                    f"{Place(f'{self.label}:{line}', (*keys, key))}: duplicate key; first given in line {first}"
                )
                continue
            mapping[key] = self.build(value_node, (*keys, key), line)
        return mapping
