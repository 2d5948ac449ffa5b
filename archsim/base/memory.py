"""How much memory this machine has for the process, and arrays that take of it what is written alone."""

from __future__ import annotations

import mmap
import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Where Linux keeps the limit of a container's memory: versions 2 and 1 of control groups (kernel documentation,
# admin-guide/cgroup-v2 and cgroup-v1/memory).
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def machine_bytes() -> int | None:
    """Memory of the machine, or of the container that is smaller; None where the system does not say."""
    try:
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):
        found = []
    for limit in _LIMITS:
        try:
            found.append(int(limit.read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(found, default=None)


# Linux, include/uapi/asm-generic/mman-common.h: the system does not ask whether all of it would fit.
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)


def sparse_zeros(shape: tuple[int, int]) -> np.ndarray:
    """int64[shape] of zeros, of which a row that is never written takes addresses but no memory, however many there
    are: in pages of the least size.
    """
    import numpy as np

    size = prod(shape)
    if not size:
        return np.zeros(shape, np.int64)
    pages = mmap.mmap(-1, 8 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.int64).reshape(shape)
