"""Public measurement layouts, and one of a user's node, read into the tables of ``calibration.measurements.schema``."""

from calibration.measurements.adapters import aiconfigurator, dgx, public

LAYOUTS = (
    *aiconfigurator.ATTENTION_LAYOUTS,
    *aiconfigurator.GEMM_LAYOUTS,
    *aiconfigurator.MOE_LAYOUTS,
    *public.DEEPGEMM_LAYOUTS,
    *public.XLA_LAYOUTS,
    *public.TRANSFER_LAYOUTS,
    *aiconfigurator.DISPATCH_LAYOUTS,
    *public.NODE_LAYOUTS,
    *dgx.LAYOUTS,
    *public.NOT_FITTED_LAYOUTS,
)
