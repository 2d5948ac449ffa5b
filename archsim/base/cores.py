"""How much of this machine the process may use."""

import os


def available_cores() -> int:
    """The number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_one_blas_thread() -> None:
    """Have numpy use one thread, unless the user has said otherwise; has an effect before numpy is imported only.

    Small matrices are inverted several times faster by one thread, and the same way on every machine.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
