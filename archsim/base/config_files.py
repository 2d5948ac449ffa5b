"""Where named systems, models and assumption sets are searched."""

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from archsim.base.errors import did_you_mean


@lru_cache
def shipped_configs() -> Path:
    """The shipped folder ``configs``: inside the package when installed, else in the repository."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def shipped_docs() -> Path:
    """The shipped folder ``docs``, likewise; installed, it has what pages and messages read."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "docs"
    return installed if installed.is_dir() else package.parent / "docs"


def search_folders(kind: str, beside: Path | None) -> list[Path]:
    """Folders that may hold named files of a kind ('systems', 'models', 'assumptions'), in search order."""
    folders = [Path("configs") / kind, shipped_configs() / kind]
    if beside is not None:
        folders.insert(0, beside / kind)
    return [folder for folder in folders if folder.is_dir()]


def named_files(kind: str, beside: Path | None = None) -> dict[str, Path]:
    """Name → file, sorted by name; the first folder that has a name wins."""
    files: dict[str, Path] = {}
    for folder in search_folders(kind, beside):
        for file in folder.glob("*.yaml"):
            files.setdefault(file.stem, file)
    return dict(sorted(files.items()))


def known_calibration(name: str | None) -> str | None:
    """A calibration's name or path unchanged. Raises ValueError if it is unknown or missing."""
    if name is None or os.path.isfile(name):  # unlike Path.is_file, false for names that are too long
        return name
    known = named_files("calibrations")
    if Path(name).suffix in (".yaml", ".yml"):
        raise ValueError(f"no such file: {name!r} (searched the current directory)")
    if name not in known:
        raise ValueError(
            f"unknown calibration {name!r}{did_you_mean(name, known)} (known: {', '.join(known)}; or the path of a "
            f"YAML file)"
        )
    return name


def display(path: Path) -> str:
    """The path, relative to the current directory if it is below it."""
    try:
        return str(path.resolve().relative_to(Path.cwd())) if path.is_absolute() else str(path)
    except ValueError:
        return str(path)


def searched_places(folders: Iterable[Path]) -> str:
    """The places searched, for a message: the current directory and ``folders``, each once."""
    here = Path.cwd()
    return ", ".join(
        ["the current directory", *dict.fromkeys(display(folder) for folder in folders if folder.resolve() != here)]
    )


def schema_line(kind: str, file: Path) -> str:
    """The first line of a file by which editors complete its keys. kind: system, model or experiment. The schema's path
    is relative to a file in the same checkout.
    """
    schema = shipped_docs().resolve() / "schemas" / f"{kind}.schema.json"
    folder = file.resolve().parent
    shown = os.path.relpath(schema, folder) if folder.is_relative_to(schema.parents[2]) else str(schema)
    return f"# yaml-language-server: $schema={Path(shown).as_posix()}\n"
