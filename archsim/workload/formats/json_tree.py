"""The raw layout ``<org>/<model>/<dataset>/<subject>/<n>.json``: one file per request.

A file is a list of iterations; an iteration maps layer ids (as strings) to null (a layer without routing) or to rows
of `top_k` expert ids. Iteration 0 is the prefill, one row per prompt token; later iterations are decode steps of one
row. The data set is published as core12345/MoE_expert_selection_trace (Yu et al., ISCA 2026, arXiv 2510.05497v4).
"""

from pathlib import Path

from archsim.base.errors import TraceError
from archsim.workload.formats.json_request import Origin


def request_files(root: Path) -> list[Path]:
    """The request files at or below `root`, by (…, dataset, subject, number). Raises TraceError if there are none."""
    files = [root] if root.is_file() else sorted(root.rglob("*.json"))
    if not files:
        raise TraceError(f"{root}: no request files; expected <dataset>/<subject>/<n>.json below this directory")
    for file in files:
        if not (file.stem.isascii() and file.stem.isdecimal()):
            raise TraceError(f"{file}: the name of a request file is its number; expected <n>.json")
        if file.exists() and not file.is_file():
            raise TraceError(f"{file}: a directory, a device or a pipe; expected a file")
    return sorted(files, key=lambda file: (file.parent.parts, int(file.stem)))


def model_name(root: Path, files: list[Path]) -> str:
    """'<org>/<model>' of <org>/<model>/<dataset>/<subject>/<n>.json. Raises TraceError if there are several."""
    names = sorted({"/".join(file.absolute().parts[-5:-3]) for file in files})
    if len(names) > 1:
        raise TraceError(f"{root}: holds requests of {names[0]} and of {names[1]}; expected those of one model")
    return names[0]


def origin_of(file: Path) -> Origin:
    return Origin(str(file), f"{file.absolute().parent.name}/{file.stem}")
