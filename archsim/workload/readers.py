"""Open a recorded trace, whatever its layout."""

from pathlib import Path

from archsim.specs.errors import TraceError
from archsim.workload.json_tree import read_json_tree
from archsim.workload.npz import read_npz
from archsim.workload.trace import Trace


def open_trace(path: str | Path, model, known_models: tuple[str, ...] = ()) -> Trace:
    """Read a token-level ``.npz`` file, or a directory (or file) of the JSON layout, and check it against a model.

    model: a ModelSpec (name, layers, moe_layer_ids, experts, top_k are used). known_models: names of shipped models;
    data that names one of them is refused for another of them. Raises TraceError naming file, request, iteration and
    layer.
    """
    location = Path(path)
    if not location.exists():
        raise TraceError(f"{location}: no such file or directory{_beside(location)}")
    if location.suffix == ".npz":
        return read_npz(location, model, str(path), known_models)
    if location.is_dir() or location.suffix == ".json":
        return read_json_tree(location, model, str(path), known_models)
    raise TraceError(f"{location}: not a trace; expected a .npz file, a .json request or a directory of requests")


def _beside(location: Path) -> str:
    """The nearest existing name, for a mistyped path."""
    import difflib

    parent = next(parent for parent in location.absolute().parents if parent.exists())
    missing = location.absolute().relative_to(parent).parts[0]
    close = difflib.get_close_matches(missing, [entry.name for entry in parent.iterdir()], n=1)
    return f"; did you mean '{parent / close[0]}'?" if close else f"; {parent} exists, '{missing}' in it does not"
