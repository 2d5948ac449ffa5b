"""Reads a file of ``archsim serve`` with the system and the model that it names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from archsim.base.errors import SpecError
from archsim.specs.loading.library import Source, folder_of, tree_of
from archsim.specs.loading.overrides import apply_overrides
from archsim.specs.loading.references import folders_around, resolve
from archsim.specs.machine.system import SystemSpec
from archsim.specs.model import ModelSpec
from archsim.specs.serving import ServeSpec
from archsim.specs.text.validation import validate


class Serving(NamedTuple):
    """A file of ``archsim serve``, read. ``trace``: its requests, found; None where they are drawn."""

    spec: ServeSpec
    system: SystemSpec
    model: ModelSpec
    trace: Path | None


def load_serving(source: Source, overrides: Sequence[str] = ()) -> Serving:
    """A deployment and its traffic, after ``key.path=value`` overrides. Raises SpecError."""
    tree, folder = tree_of(source), folder_of(source)
    apply_overrides(tree, overrides, lambda keys: None)
    spec = validate(ServeSpec, tree)
    system = validate(SystemSpec, resolve("systems", spec.system, tree.place(("system",)), folder), ("systems", 0))
    model = validate(ModelSpec, resolve("models", spec.model, tree.place(("model",)), folder), ("models", 0))
    return Serving(spec, system, model, _trace(spec, tree, folder))


def _trace(spec: ServeSpec, tree, folder: Path | None) -> Path | None:
    name = spec.requests.trace
    if name is None:
        return None
    places = [Path(name), *(each / name for each in folders_around(folder))]
    found = next((path for path in places if path.is_file()), None)
    if found is None:
        raise SpecError(f"{tree.place(('requests', 'trace'))}: no such file: {name!r}")
    return found
