"""Public measurement layouts, and one of a user's node, read into the tables of ``calibration.measurements.schema``."""

from calibration.measurements.adapters import (
    aiconfigurator,
    aiconfigurator_gemm,
    aiconfigurator_moe,
    batched_products,
    dgx,
    dispatches,
    node_and_micro,
    not_fitted,
    transfers,
)

LAYOUTS = (
    *aiconfigurator.ATTENTION_LAYOUTS,
    *aiconfigurator_gemm.GEMM_LAYOUTS,
    *aiconfigurator_moe.MOE_LAYOUTS,
    *batched_products.DEEPGEMM_LAYOUTS,
    *batched_products.XLA_LAYOUTS,
    *transfers.TRANSFER_LAYOUTS,
    *dispatches.DISPATCH_LAYOUTS,
    *node_and_micro.NODE_LAYOUTS,
    *dgx.LAYOUTS,
    *not_fitted.NOT_FITTED_LAYOUTS,
)
