"""How much memory this machine has for the process."""

import os
from pathlib import Path

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
