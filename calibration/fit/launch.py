"""What a launch costs: on a stream, as a graph node, as a grid-wide sync; and single numbers with their range."""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from archsim.laws.tables import ScalarTable
from calibration.measurements.reading import Measurements


def scalar_table(rows: pd.DataFrame, values: ArrayLike, unit: str, of: dict[str, str]) -> ScalarTable:
    """The median of ``values`` (one for each of ``rows``, not empty), with its source."""
    low, middle, high = (float(x) for x in np.quantile(np.asarray(values, dtype=np.float64), (0.05, 0.5, 0.95)))
    return ScalarTable(
        library=" ".join(sorted(set(rows["library"]))), version=" ".join(sorted(set(rows["library_version"]))),
        source=" ".join(sorted(set(rows["file"]))), sweeps=tuple(sorted(set(rows["run_id"]))), of=of, unit=unit,
        value=middle, low=low, high=high,
    )  # fmt: skip


SMALL_KERNEL_BYTES = 256 * 1024  # smaller kernels take no longer than their launch (gpu-benches, all GPUs)
# Launch cost depends on driver and architecture: a GPU without measurements uses those of a sibling.
ARCHITECTURES = (("h100", "h200", "h100-pcie", "h800", "h20"), ("b200", "gb200", "b300"), ("mi300x",), ("a100",))


def fit_launch(measurements: Measurements, gpu: str) -> tuple[ScalarTable, ...]:
    """One number per kind; ``of`` names the measured GPU."""
    siblings = next((family for family in ARCHITECTURES if gpu in family), (gpu,))
    rows = measurements.table("launch")
    rows = rows[rows["kernel_bytes"].astype(float) <= SMALL_KERNEL_BYTES]
    found = []
    for kind, of_kind in rows.groupby("kind", sort=True):
        for measured_on in (gpu, *(name for name in siblings if name != gpu)):
            points = of_kind[of_kind["gpu"] == measured_on]
            if len(points):
                times_ns = points["latency_us_median"].astype(float) * 1e3
                found.append(scalar_table(points, times_ns, "ns", {"kind": kind, "measured_on": measured_on}))
                break
    return tuple(found)
