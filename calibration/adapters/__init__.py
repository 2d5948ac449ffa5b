"""Layouts of public measurements, read into the tables of ``calibration.schema``; one module per source."""

from calibration.adapters import aiconfigurator_gemm, deepgemm, node_and_micro, transfers, xla_gemm

LAYOUTS = (
    *aiconfigurator_gemm.LAYOUTS,
    *deepgemm.LAYOUTS,
    *xla_gemm.LAYOUTS,
    *transfers.LAYOUTS,
    *node_and_micro.LAYOUTS,
)
