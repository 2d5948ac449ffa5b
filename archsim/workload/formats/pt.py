"""SGLang's expert-distribution dumps as ``torch.save`` writes them, read so that nothing in a file is ever executed."""

import zipfile
from pathlib import Path

from archsim.base.errors import TraceError

MOST_BYTES = 512 << 20
SAFE_TORCH = (2, 6)
"""In earlier versions, ``weights_only=True`` could be made to execute code (CVE-2025-32434)."""


def read_pt(path: Path) -> object:
    """The content of a ``.pt`` file; ``logical_count`` of an object as nested lists. Raises TraceError.

    Only tensors, numbers, text and containers of them are loaded (``torch.load(weights_only=True)``).
    """
    torch = _safe_torch(path)
    _check_archive(path)
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many different exceptions
        raise TraceError(
            f"{path}: not a .pt file that can be loaded safely: it is damaged, or holds more than tensors and plain "
            f"values ({type(error).__name__}); nothing in it was executed"
        ) from error
    counts = data.get("logical_count") if isinstance(data, dict) else None
    if not isinstance(counts, torch.Tensor):
        return data
    if counts.numel() * 8 > MOST_BYTES or counts.layout != torch.strided or counts.is_meta:
        raise TraceError(
            f"{path}: logical_count is a tensor {list(counts.shape)} ({counts.layout}, on {counts.device}); expected a "
            f"dense one of at most {MOST_BYTES // 8} counts"
        )
    return {"logical_count": counts.tolist()}


def _safe_torch(path: Path):
    try:
        import torch
    except ImportError:
        raise TraceError(
            f"{path}: only torch reads .pt files, and it is not installed; install it, or write the counts as "
            'JSON: {"logical_count": counts.tolist()}'
        ) from None
    if tuple(map(int, torch.__version__.split(".")[:2])) < SAFE_TORCH:
        raise TraceError(
            f"{path}: torch {torch.__version__} cannot load .pt files safely; expected at least "
            f"{'.'.join(map(str, SAFE_TORCH))}"
        )
    return torch


def _check_archive(path: Path) -> None:
    """Sizes and checksums, which torch does not compare. Older .pt files are not archives and have no checksums."""
    try:
        declared = path.stat().st_size
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                declared = max(declared, sum(member.file_size for member in archive.infolist()))
                damaged = archive.testzip() if declared <= MOST_BYTES else None
                if damaged is not None:
                    raise TraceError(f"{path}: damaged: the checksum of member {damaged!r} does not match")
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise TraceError(f"{path}: not a .pt file that can be read ({error})") from error
    if declared > MOST_BYTES:
        raise TraceError(f"{path}: {declared} bytes; expected at most {MOST_BYTES} for a dump of loads")
