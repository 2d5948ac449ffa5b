"""The raw layout ``<org>/<model>/<dataset>/<subject>/<n>.json``: one file per request.

A file is a list of iterations; an iteration maps layer ids (as strings) to null (a layer without routing) or to rows
of `top_k` expert ids. Iteration 0 is the prefill, one row per prompt token; later iterations are decode steps of one
row. The data set is published as core12345/MoE_expert_selection_trace (Yu et al., ISCA 2026, arXiv 2510.05497v4).
"""

import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from archsim.base.errors import TraceError
from archsim.base.packed_files import LEAST_SUSPECT_BYTES, MOST_TIMES
from archsim.traffic import trace_checks
from archsim.traffic.formats.json_request import Origin, read_request
from archsim.traffic.formats.requests import Item


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


# The data set's JSON tree, in a directory or in a tar archive (which is streamed, never unpacked).
#
# ``<org>/<model>/<dataset>/<subject>/<n>.json``; its layout is at the top of this module.

MOST_REQUEST_BYTES = 512 << 20
"""A member that declares more is refused unread; the longest requests of the data set are about 50 MB."""

ARCHIVES = (".tar.gz", ".tgz", ".tar")
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, EOFError, OSError, zlib.error, lzma.LZMAError, ValueError)


def tree_name(root: Path) -> str:
    """'<org>/<model>', from the directory names. Raises TraceError."""
    return model_name(root, request_files(root))


def tree_items(root: Path) -> Iterator[Item]:
    for file in request_files(root):
        parts = file.absolute().parts
        yield Item(str(file), parts[-3], parts[-2], int(file.stem), _known_size(file), partial(_read_file, file))


def archive_name(path: Path) -> str:
    """'<org>/<model>' of the first request in an archive. Raises TraceError."""
    with _requests(path) as members:
        return _model_of(next(members)[1])


def archive_items(path: Path) -> Iterator[Item]:
    """Raises TraceError for an archive that is damaged, is not a tar file, or has unexpected members."""
    with _requests(path) as members:
        first = None
        for content, member in members:
            first = first or member
            if _model_of(member) != _model_of(first):
                raise TraceError(
                    f"{path}: holds requests of {_model_of(first)} and of {_model_of(member)}; expected those of one "
                    f"model"
                )
            where = f"{path}: {member}"
            origin = Origin(where, f"{member.parent.name}/{member.stem}")
            read = partial(_read_content, content, origin)
            yield Item(where, member.parent.parent.name, member.parent.name, int(member.stem), len(content), read)


@contextmanager
def _requests(path: Path):
    """An iterator of (content, member name) of the requests in an archive, in its order."""
    compressed = not path.name.endswith(".tar")
    if not compressed:
        _check_end(path)
    try:
        with path.open("rb") as raw, gzip.open(raw) if compressed else raw as stream:
            yield _members(path, stream)
    except _BROKEN as error:
        raise _broken(path, error) from error


def _members(path: Path, stream) -> Iterator[tuple[bytes, PurePosixPath]]:
    found = False
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as archive:
            for member in archive:
                if _is_request(path, member):
                    found = True
                    content = archive.extractfile(member)
                    assert content is not None, "a file"
                    yield content.read(), PurePosixPath(member.name)
        while stream.read(1 << 20):  # to the checksum at the end
            pass
    except _BROKEN as error:
        raise _broken(path, error) from error
    if not found:
        raise TraceError(f"{path}: no request files; expected <dataset>/<subject>/<n>.json in the archive")


def _is_request(path: Path, member: tarfile.TarInfo) -> bool:
    """Whether a member is a request. Raises TraceError for one that escapes, is no file, or is too large."""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise TraceError(f"{path}: member {member.name!r} leads out of the archive; nothing is imported")
    if member.isdir():
        return False
    if not member.isfile():
        raise TraceError(f"{path}: member {member.name!r} is a link or a device; expected only files")
    if name.suffix != ".json":
        return False
    most = min(MOST_REQUEST_BYTES, max(LEAST_SUSPECT_BYTES, MOST_TIMES * path.stat().st_size))
    if member.size > most:
        raise TraceError(
            f"{path}: member {member.name!r} declares {member.size} bytes; expected at most {most} per request"
        )
    if not (name.stem.isascii() and name.stem.isdecimal()) or len(name.parts) < 2:
        raise TraceError(f"{path}: member {member.name!r}: expected <dataset>/<subject>/<n>.json, n a number")
    return True


def _check_end(path: Path) -> None:
    """A tar archive ends with two blocks of zeros; else one truncated between members would go unnoticed."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 1024))
        if size < 1024 or any(stream.read()):
            raise TraceError(f"{path}: not a whole tar archive (its end is missing); is it truncated?")


def _broken(path: Path, error: Exception) -> TraceError:
    return TraceError(f"{path}: not a readable archive ({error or type(error).__name__}); is it truncated?")


def _model_of(member: PurePosixPath) -> str:
    return "/".join(member.parts[-5:-3])


def _read_file(file: Path, model, layer_ids):
    size = _size(file)
    if size > MOST_REQUEST_BYTES:
        raise TraceError(f"{file}: {size} bytes; expected at most {MOST_REQUEST_BYTES} per request")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise TraceError(f"{file}: cannot be read ({error.strerror})") from error
    return read_request(content, Origin(str(file), f"{file.absolute().parent.name}/{file.stem}"), model, layer_ids)


def _read_content(content: bytes, origin: Origin, model, layer_ids):
    return read_request(content, origin, model, layer_ids)


def _known_size(file: Path) -> int:
    """0 for a file that cannot be read: reading it says so, as of one request among others."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:
        raise TraceError(f"{trace_checks.place(str(file))}: cannot be read ({error.strerror})") from error
