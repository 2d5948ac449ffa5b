"""Public measurement layouts, and one of a user's node, read into the tables of ``calibration.measurements.schema``."""

from calibration.measurements.adapters import (
    aiconfigurator_attention,
    aiconfigurator_gemm,
    aiconfigurator_moe,
    deepgemm,
    dgx,
    dispatches,
    node_and_micro,
    not_fitted,
    transfers,
    xla_gemm,
)

LAYOUTS = (
    *aiconfigurator_attention.LAYOUTS, *aiconfigurator_gemm.LAYOUTS, *aiconfigurator_moe.LAYOUTS, *deepgemm.LAYOUTS,
    *xla_gemm.LAYOUTS, *transfers.LAYOUTS, *dispatches.LAYOUTS, *node_and_micro.LAYOUTS, *dgx.LAYOUTS,
    *not_fitted.LAYOUTS,
)
