"""Public measurement layouts, and one of a user's node, read into the tables of ``calibration.measurements.schema``."""

from calibration.measurements.adapters import (
    aiconfigurator,
    deepgemm,
    dgx,
    node_and_micro,
    not_fitted,
    transfers,
    xla_gemm,
)

LAYOUTS = (
    *aiconfigurator.ATTENTION_LAYOUTS, *aiconfigurator.GEMM_LAYOUTS, *aiconfigurator.MOE_LAYOUTS, *deepgemm.LAYOUTS,
    *xla_gemm.LAYOUTS, *transfers.LAYOUTS, *aiconfigurator.DISPATCH_LAYOUTS, *node_and_micro.LAYOUTS, *dgx.LAYOUTS,
    *not_fitted.LAYOUTS,
)
