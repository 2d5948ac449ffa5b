"""Public measurement layouts, and one of a user's node, read into the tables of ``calibration.measurements.schema``."""

from calibration.measurements.adapters import (
    aiconfigurator,
    aiconfigurator_gemm,
    aiconfigurator_moe,
    dgx,
    dispatches,
    public,
)

LAYOUTS = (
    *aiconfigurator.ATTENTION_LAYOUTS,
    *aiconfigurator_gemm.GEMM_LAYOUTS,
    *aiconfigurator_moe.MOE_LAYOUTS,
    *public.DEEPGEMM_LAYOUTS,
    *public.XLA_LAYOUTS,
    *public.TRANSFER_LAYOUTS,
    *dispatches.DISPATCH_LAYOUTS,
    *public.NODE_LAYOUTS,
    *dgx.LAYOUTS,
    *public.NOT_FITTED_LAYOUTS,
)
