"""``--set key.path=value``: puts values into the raw tree of an experiment before validation."""

from collections.abc import Callable, Sequence
from typing import Any

from archsim.base.errors import SpecError
from archsim.base.text.quantities import describe
from archsim.base.text.yaml import Key, Keys, Place, Tree, parse_value


def apply_overrides(tree: Tree, overrides: Sequence[str], expand: Callable[[Keys], None]) -> None:
    """Apply ``key.path=value`` texts in order; list items are addressed by number.

    ``expand(keys)`` replaces a reference at ``keys``, if there is one, by the mapping that it names, so that a path
    can lead into it. Values are YAML. Raises SpecError for text that is not an override and for paths that do not
    exist; keys that a spec does not know are reported when the tree is validated.
    """
    for text in overrides:
        head = f"--set {text}"
        path, equals, value = text.partition("=")
        names = tuple(name.strip() for name in path.split("."))
        if not equals or not value.strip() or not all(names):
            raise SpecError(f"{head}: expected key.path=value, such as workload.batch=[64]")
        put(tree, names, parse_value(value, head), head, expand)


def put(tree: Tree, names: tuple[str, ...], value: Any, head: str, expand: Callable[[Keys], None]) -> None:
    """Put a value at a path of keys; ``head`` names it in messages."""
    keys: Keys = ()
    for depth, name in enumerate(names):
        container = tree.get(keys)
        keys += (_key(container, name, names[:depth], head),)
        if depth == len(names) - 1:
            tree.graft(keys, Tree(value, {(): Place(head)}))
        elif isinstance(container, dict) and name not in container:
            container[name] = {}
            tree.places[keys] = Place(head, keys)
        else:
            expand(keys)


def _key(container: Any, name: str, above: tuple[str, ...], head: str) -> Key:
    """``name`` as a key of ``container``: an index of a list, a key of a mapping."""
    if isinstance(container, dict):
        return name
    shown = ".".join(above)
    if not isinstance(container, list):
        raise SpecError(f"{head}: {shown} is {describe(container)}; it has no key {name!r}")
    if not (name.isascii() and name.isdecimal()):
        raise SpecError(f"{head}: {shown} is a list; say which item: {shown}.0.{name}")
    if int(name) >= len(container):
        raise SpecError(f"{head}: {shown} has no item {name}; it has {len(container)}, numbered from 0")
    return int(name)
