"""Every shipped calibration and its laws."""

from functools import lru_cache
from pathlib import Path

import numpy as np

from archsim.laws.calibration_files import load_calibration
from archsim.laws.laws import Laws

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "configs" / "calibrations").glob("*.yaml"))


GPUS = [file.stem for file in SHIPPED]


SECTIONS = ("gemm", "moe", "attention", "p2p", "collectives", "pcie", "hbm", "launch")


@lru_cache
def laws_of(gpu: str) -> Laws:
    return Laws(load_calibration(gpu))


def who(table) -> dict[str, str]:
    return {"library": table.library, "version": table.version}


def positive(times, shape) -> None:
    assert times.ns.shape == times.extrapolated.shape == shape
    assert np.all(np.isfinite(times.ns)) and np.all(times.ns > 0)
