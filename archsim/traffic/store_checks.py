"""What a store says about itself, checked when it is opened, and its columns, checked when they are read.

Checksums show damage; these checks show content that no import writes. They read the manifest and the index, and
compare smallest and largest ids of columns that are decompressed anyway: less than 5 % of the time to read a store.
"""

import re
from typing import Any

import numpy as np

from archsim.base.errors import TraceError
from archsim.traffic import trace_checks

_FILE = re.compile(r"(index|rows|loads)-([0-9a-f]{16})\.col")
_SHA256 = re.compile(r"[0-9a-f]{64}")
MOST = 2**62
MOST_LAYERS, MOST_EXPERTS = 10_000, 32_767  # as in archsim.model.spec


def whole(given: Any, name: str, least: int = 0, most: int = MOST) -> int:
    """A whole number in a range, of a JSON value. Raises ValueError."""
    if type(given) is not int or not least <= given <= most:
        raise ValueError(f"{name} is {_short(given)}; expected a whole number from {least} to {most}")
    return given


def _text(given: Any, name: str) -> str:
    if type(given) is not str:
        raise ValueError(f"{name} is {_short(given)}; expected text")
    return given


def _list(given: Any, name: str) -> list:
    if type(given) is not list:
        raise ValueError(f"{name} is {_short(given)}; expected a list")
    return given


def _object(given: Any, name: str, keys: tuple[str, ...]) -> dict:
    if type(given) is not dict:
        raise ValueError(f"{name} is {_short(given)}; expected an object")
    for key in keys:
        if key not in given:
            raise ValueError(f"{name} has no {key!r}")
    return given


def _short(given: Any) -> str:
    text = repr(given) if not isinstance(given, int) or abs(given) < MOST else "a number of many digits"
    return text if len(text) < 60 else f"{text[:57]}..."


def check_manifest(manifest: Any) -> None:
    """Raises ValueError for a manifest that no import writes."""
    _object(manifest, "the manifest", ("kind", "shape", "rows"))
    shape = _object(manifest["shape"], "shape", ("model", "layers", "num_experts", "top_k", "layer_ids"))
    if len(shape) != 5:
        raise ValueError(f"shape has the keys {', '.join(map(str, shape))}")
    _text(shape["model"], "shape.model")
    layers = whole(shape["layers"], "shape.layers", 1, MOST_LAYERS)
    experts = whole(shape["num_experts"], "shape.num_experts", 1, MOST_EXPERTS)
    whole(shape["top_k"], "shape.top_k", 1, experts)
    ids = [whole(each, "shape.layer_ids", 0, layers - 1) for each in _list(shape["layer_ids"], "shape.layer_ids")]
    if not ids or sorted(set(ids)) != ids:
        raise ValueError("shape.layer_ids do not ascend")
    rows = [_file(each, f"rows[{n}]", "rows") for n, each in enumerate(_list(manifest["rows"], "rows"))]
    kind = _text(manifest["kind"], "kind")
    if kind == "tokens":
        _check_tokens(manifest, rows)
    elif kind == "loads":
        _file(manifest.get("loads"), "loads", "loads")
        whole(manifest.get("matrices"), "matrices", 1)
        if rows:
            raise ValueError("a store of loads has files of rows")
    else:
        raise ValueError(f"kind is {_short(kind)}; expected 'tokens' or 'loads'")


def _check_tokens(manifest: dict, rows: list[dict]) -> None:
    _file(manifest.get("index"), "index", "index")
    for n, about in enumerate(rows):
        whole(about.get("requests"), f"rows[{n}].requests", 1)
        whole(about.get("tokens"), f"rows[{n}].tokens", 1)
    for name in ("requests", "tokens"):
        if whole(manifest.get(name), name, 1) != sum(about[name] for about in rows):
            raise ValueError(f"{name} is {manifest[name]}; the files of rows have {sum(each[name] for each in rows)}")
    if type(manifest.get("scores", False)) is not bool:
        raise ValueError(f"scores is {_short(manifest['scores'])}; expected true or false")
    whole(manifest.get("prefill_tokens"), "prefill_tokens", 0, manifest["tokens"])
    for subject in _list(manifest.get("subjects"), "subjects"):
        _text(subject, "subjects")


def _file(about: Any, name: str, part: str) -> dict:
    """The manifest's entry of a file: named after its content, so it cannot lead out of the folder."""
    _object(about, name, ("file", "bytes", "sha256"))
    digest, match = _text(about["sha256"], f"{name}.sha256"), _FILE.fullmatch(_text(about["file"], f"{name}.file"))
    if match is None:
        raise ValueError(f"{name} names a file outside of the store: {_short(about['file'])}")
    if not _SHA256.fullmatch(digest) or match[1] != part or match[2] != digest[:16]:
        raise ValueError(f"{name}.file is {about['file']}; expected {part}-{digest[:16]}.col, after its sha256")
    whole(about["bytes"], f"{name}.bytes")
    return about


def check_index(where: str, index: dict[str, np.ndarray], facts: dict, manifest: dict) -> None:
    """Raise TraceError unless the index has one valid row for every request of the manifest."""
    requests = manifest["requests"]
    for name in ("dataset", "subject", "number", "rows", "prefill_rows"):
        if name not in index or index[name].shape != (requests,) or index[name].dtype.kind not in "iu":
            raise TraceError(f"{where}: column '{name}' is missing, or has not {requests} integers, one per request")
    for name in ("datasets", "subjects"):
        given = facts.get(name)
        if type(given) is not list or not all(type(each) is str and each.isprintable() for each in given):
            raise TraceError(f"{where}: {name}: expected a list of printable names")
    limits: list[tuple[str, int, Any]] = [
        ("dataset", 0, len(facts["datasets"]) - 1),
        ("subject", 0, len(facts["subjects"]) - 1),
        ("number", 0, MOST),
        ("rows", 1, MOST),
        ("prefill_rows", 0, index["rows"]),
    ]
    for name, least, most in limits:
        bad = np.flatnonzero((index[name] < least) | (index[name] > most))
        if len(bad):
            allowed = most[bad[0]] if isinstance(most, np.ndarray) else most
            raise TraceError(
                f"{where}: {name} of request {bad[0]} is {index[name][bad[0]]}; expected {least} to {allowed}"
            )
    ends = np.cumsum([about["requests"] for about in manifest["rows"]])
    tokens = np.add.reduceat(index["rows"].astype(np.int64), np.r_[0, ends[:-1]])
    stated = [about["tokens"] for about in manifest["rows"]]
    if tokens.tolist() != stated or index["prefill_rows"].sum(dtype=np.int64) != manifest["prefill_tokens"]:
        raise TraceError(f"{where}: its requests have other numbers of tokens than the manifest")


def check_rows(where: str, experts: np.ndarray, shape: tuple[int, int], num_experts: int) -> None:
    """Raise TraceError unless the column experts, int16[token, layer, k], has these (layers, k) and ids of experts."""
    if experts.shape[1:] != shape:
        raise TraceError(
            f"{where}: column 'experts' has {experts.shape[1]} layers and top-{experts.shape[2]}; the manifest has "
            f"{shape[0]} layers and top-{shape[1]}"
        )
    if experts.size and experts.view(np.uint16).max() >= num_experts:  # negative ids are the largest: one pass
        raise TraceError(f"{where}: expert ids {experts.min()} to {experts.max()}; expected 0 to {num_experts - 1}")


def check_scores(where: str, scores: np.ndarray, shape: tuple) -> None:
    """Raise TraceError unless scores are float32[token, layer, k] of this shape, finite and not negative."""
    if scores.dtype != np.float32 or scores.shape != shape:
        raise TraceError(f"{where}: scores are {scores.dtype}{list(scores.shape)}; expected float32{list(shape)}")
    if not np.isfinite(scores).all() or scores.min(initial=0) < 0:
        raise TraceError(f"{where}: a score is negative or not finite")


def check_steps(where: str, iteration: np.ndarray, tokens: int) -> None:
    """Raise TraceError unless there is one iteration a token, in range."""
    if iteration.shape != (tokens,) or iteration.dtype.kind not in "iu":
        raise TraceError(f"{where}: iteration is {iteration.dtype}{list(iteration.shape)}; expected {tokens} integers")
    if iteration.size and (iteration.min() < 0 or iteration.max() > trace_checks.MAX_ITERATION):
        raise TraceError(
            f"{where}: iterations {iteration.min()} to {iteration.max()}; expected 0 to {trace_checks.MAX_ITERATION}"
        )


def check_loads(where: str, columns: dict[str, np.ndarray], facts: dict, shape: tuple[int, ...]) -> None:
    """Raise TraceError unless counts are numbers >= 0 of ``shape``, with a name and a phase each."""
    counts, phase = columns.get("counts"), columns.get("phase")
    if counts is None or counts.dtype.kind not in "iuf" or counts.shape != shape:
        found = "missing" if counts is None else f"{counts.dtype}{list(counts.shape)}"
        raise TraceError(f"{where}: counts are {found}; expected numbers {list(shape)}")
    if not np.isfinite(counts).all() or counts.min(initial=0) < 0:
        raise TraceError(f"{where}: a count is negative or not finite")
    if phase is None or phase.shape != shape[:1] or not np.isin(phase, (-1, 0, 1)).all():
        raise TraceError(f"{where}: phase: expected {shape[0]} of -1, 0 and 1")
    for name in ("names", "series") if "series" in facts else ("names",):
        given = facts.get(name)
        if type(given) is not list or len(given) != shape[0] or not all(type(each) is str for each in given):
            raise TraceError(f"{where}: {name}: expected {shape[0]} names")
