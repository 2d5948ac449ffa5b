"""Launch cost of a kernel: on a stream, as a graph node, as a grid-wide sync, and launch plus wait."""

from archsim.laws.tables import ScalarTable
from calibration.fit.scalars import scalar_table
from calibration.measurements.reading import Measurements

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
