"""``--set key.path=value``: puts values into the raw tree of an experiment before validation."""

from collections.abc import Callable, Sequence
from typing import Any

from archsim.base import errors, quantities, yaml

Put = Callable[[yaml.Tree, tuple[str, ...], Any, str, Callable[[yaml.Keys], None]], None]


def apply_overrides(
    tree: yaml.Tree, overrides: Sequence[str], expand: Callable[[yaml.Keys], None], put_at: Put | None = None
) -> None:
    """Apply ``key.path=value`` texts in order; values are YAML, list items are addressed by number. ``put_at``: in
    place of `put`; ``expand(keys)`` replaces a reference by the mapping it names, so that a path can lead into it.
    Raises SpecError for text that is no override and for paths that do not exist; unknown keys show in validation.
    """
    for text in overrides:
        head = f"--set {text}"
        path, equals, value = text.partition("=")
        names = tuple(name.strip() for name in path.split("."))
        if not equals or not value.strip() or not all(names):
            raise errors.SpecError(f"{head}: expected key.path=value, such as workload.batch=[64]")
        (put_at or put)(tree, names, yaml.parse_value(value, head), head, expand)


def put(tree: yaml.Tree, names: tuple[str, ...], value: Any, head: str, expand: Callable[[yaml.Keys], None]) -> None:
    """Put a value at a path of keys; ``head`` names it in messages."""
    keys: yaml.Keys = ()
    key: yaml.Key
    for depth, name in enumerate(names):
        container, key, shown = tree.get(keys), name, ".".join(names[:depth])
        if isinstance(container, list):
            if not (name.isascii() and name.isdecimal()):
                raise errors.SpecError(f"{head}: {shown} is a list; say which item: {shown}.0.{name}")
            if int(name) >= len(container):
                raise errors.SpecError(f"{head}: {shown} has no item {name}; it has {len(container)}, numbered from 0")
            key = int(name)
        elif not isinstance(container, dict):
            raise errors.SpecError(f"{head}: {shown} is {quantities.describe(container)}; it has no key {name!r}")
        keys += (key,)
        if depth == len(names) - 1:
            tree.graft(keys, yaml.Tree(value, {(): yaml.Place(head)}))
        elif isinstance(container, dict) and name not in container:
            container[name] = {}
            tree.places[keys] = yaml.Place(head, keys)
        else:
            expand(keys)
