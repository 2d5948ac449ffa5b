"""Layouts of public measurements, and one of a user's node, read into the tables of ``calibration.measurements.schema``; one module per source."""

from calibration.measurements.adapters import aiconfigurator_gemm, deepgemm, dgx, node_and_micro, transfers, xla_gemm

LAYOUTS = (
    *aiconfigurator_gemm.LAYOUTS,
    *deepgemm.LAYOUTS,
    *xla_gemm.LAYOUTS,
    *transfers.LAYOUTS,
    *node_and_micro.LAYOUTS,
    *dgx.LAYOUTS,
)
