"""The manifest of a report: its experiment, what it was made by, and digests for ``archsim check --report``.

``manifest.yaml`` has the experiment, and below ``manifest``: version and libraries, ``digest`` (of the experiment),
``functions`` (file → SHA-256 of users' code, copied to ``code/``) and ``results`` (file → SHA-256), written last.
"""

import ast
import hashlib
import json
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from archsim.base.errors import ArchsimError
from archsim.base.files import write_text
from archsim.base.own_code import import_function, is_in_folder, is_ours, module_of
from archsim.base.yaml import dump_yaml, parse_yaml, read_yaml
from archsim.specs.library import MANIFEST, MANIFEST_KEY

CODE = "code"  # folder of users' functions, beside the manifest
_INSTALLED = "site-packages"


def made_by() -> dict[str, str]:
    """Facts about the program, for every manifest."""
    libraries = {library: version(library) for library in ("numpy", "numba")}
    return {"version": version("archsim"), "python": platform.python_version(), **libraries}


def write_manifest(
    folder: Path, given: Mapping[str, Any], about: Mapping[str, Any], functions: Iterable[str] = ()
) -> None:
    """Write the manifest of ``given``, an experiment, and copy the code of ``functions`` (``package.module:function``).

    about: facts beside those that every manifest has.
    """
    facts = {**made_by(), **about, "digest": digest_of(parse_yaml(dump_yaml(given), MANIFEST).data)}
    if copied := _copy_code(functions, folder / CODE):
        facts["functions"] = copied
    write_text(folder / MANIFEST, dump_yaml({MANIFEST_KEY: facts, **given}))


def seal(folder: Path, *files: str) -> None:
    """Add the digests of finished ``files`` to the manifest."""
    data = dict(read_yaml(folder / MANIFEST).data)
    facts = data.pop(MANIFEST_KEY) | {"results": {name: _sha256(folder / name) for name in files}}
    write_text(folder / MANIFEST, dump_yaml({MANIFEST_KEY: facts, **data}))


def read_manifest(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(facts, experiment) of a report that nobody has changed.

    Raises ArchsimError that names the digest that is false, or what is not there; SpecError as reading YAML does.
    """
    data = dict(read_yaml(inside(folder, MANIFEST)).data)
    facts = data.pop(MANIFEST_KEY, None) or {}
    if not isinstance(facts, dict) or "digest" not in facts:
        raise ArchsimError(f"{folder / MANIFEST}: no digest of the experiment; it was made by an older archsim")
    for name in ("functions", "results", "traces"):
        listed = facts.get(name) or {}
        if not isinstance(listed, dict) or not all(isinstance(each, str) for each in listed.values()):
            raise ArchsimError(f"{folder / MANIFEST}: {MANIFEST_KEY}.{name}: expected names, each with its digest")
    if facts["digest"] != digest_of(data):
        raise ArchsimError(f"{folder / MANIFEST}: the experiment is not that of its digest: it was changed afterwards")
    if not facts.get("results"):
        raise ArchsimError(f"{folder / MANIFEST}: no digest of results: the command that made it did not end")
    named = {f"{CODE}/{name}": digest for name, digest in (facts.get("functions") or {}).items()} | facts["results"]
    for name, digest in named.items():
        if _sha256(inside(folder, name)) != digest:
            raise ArchsimError(f"{folder / name}: is not the file of its digest in {MANIFEST}: one was changed")
    return facts, data


def inside(folder: Path, name: str) -> Path:
    """The file of a report, by a name that the report gives. Raises ArchsimError for one that leads out of the folder,
    also by a link, and for one that is not there.
    """
    try:
        file = (folder / name).resolve()
        if not file.is_relative_to(folder.resolve()):
            raise ArchsimError(f"{folder / MANIFEST}: {name!r} leads out of the folder of the report; nothing is read")
        if not file.is_file():
            raise ArchsimError(f"{folder / name}: no such file, but it is part of the report")
    except (OSError, ValueError, RuntimeError) as error:  # names that are too long, null characters, links in a circle
        raise ArchsimError(f"{folder / MANIFEST}: {name!r:.80} is no name of a file: {error}") from None
    return file


def digest_of(experiment: Mapping[str, Any]) -> str:
    """SHA-256 of an experiment as read from YAML, whatever its layout and order of keys."""
    return hashlib.sha256(json.dumps(experiment, sort_keys=True, default=str).encode()).hexdigest()


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _copy_code(functions: Iterable[str], folder: Path) -> dict[str, str]:
    """Copy the modules of users' functions, and those beside them that they import; file → SHA-256. Installed packages
    and Python's own modules stay where they are.
    """
    files: dict[str, Path] = {}
    for target in dict.fromkeys(functions):
        import_function(target)
        name = target.partition(":")[0]
        module = module_of(name)
        file = getattr(module, "__file__", None)
        elsewhere = is_ours(name) or name.partition(".")[0] in sys.stdlib_module_names
        if file and (is_in_folder(module) or (not elsewhere and _INSTALLED not in Path(file).parts)):
            root = Path(file).parents[name.count(".") + (Path(file).name == "__init__.py")]
            files |= {each.relative_to(root).as_posix(): each for each in _with_imports(Path(file), root)}
    copied = {name: _sha256(file) for name, file in sorted(files.items())}
    for name, file in files.items():
        copy = folder / name
        if not (copy.is_file() and copy.samefile(file)):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    return copied


def _with_imports(file: Path, root: Path) -> set[Path]:
    """The file, the packages around it, and what these import below ``root``."""
    found: set[Path] = set()
    waiting = [file]
    while waiting:
        each = waiting.pop()
        if each in found or not each.is_file():
            continue
        found.add(each)
        waiting += [folder / "__init__.py" for folder in each.parents if root in folder.parents]
        for name in _imported(each, root):
            path = root.joinpath(*name.split("."))
            waiting += [path.with_suffix(".py"), path / "__init__.py"]
    return found


def _imported(file: Path, root: Path) -> Iterator[str]:
    """Names that may be modules; of relative imports, the absolute ones."""
    package = file.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)
