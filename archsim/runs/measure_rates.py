"""Measures that stand side by side on pages: one definition of throughput, time of a step, and use of the machine.

Throughput and time of a step are those of all MoE layers of the model, whichever ran, and count the tokens that decode
generates under every set of assumptions. Use of the machine is over the whole run, prefill included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from archsim.base.units import NS_PER_S

if TYPE_CHECKING:
    from archsim.runs.measure import Finished


def decode_step_ns(run: Finished) -> float | None:
    """Mean time of a decode step."""
    return run.outcome.decode_ns / len(run.decode) / _layers_share(run) if len(run.decode) else None


def decode_batch_token_ns(run: Finished) -> float | None:
    """Time of decode over the tokens that it generates: the reciprocal of `tokens_per_s`."""
    tokens = _generated(run)
    return run.outcome.decode_ns / tokens / _layers_share(run) if tokens else None


def tokens_per_s(run: Finished) -> float | None:
    """Tokens that decode generates over its time."""
    ns = decode_batch_token_ns(run)
    return NS_PER_S / ns if np.any(ns) else None


def mfu(run: Finished) -> float | None:
    """FLOP of experts over what all dies could do in the time, at their peak."""
    return _flop_ns(run) / run.total_ns if run.total_ns else None


def hbm_use(run: Finished) -> float | None:
    """Bytes of HBM over what all dies could move in the time, at nominal bandwidth."""
    return _hbm_ns(run) / run.total_ns if run.total_ns else None


def over_roofline(run: Finished) -> float | None:
    """Time over the least in which evenly loaded dies could do the same FLOP and move the same bytes of HBM."""
    least_ns = max(_flop_ns(run), _hbm_ns(run))
    return run.total_ns / least_ns if least_ns else None


def _flop_ns(run: Finished) -> float:
    system = run.run.system
    return run.work["flop"] / (system.compute.peak_flop_per_s * system.dies) * NS_PER_S


def _hbm_ns(run: Finished) -> float:
    system = run.run.system
    return run.work["hbm_bytes"] / (system.hbm.bandwidth_bytes_per_s * system.dies) * NS_PER_S


def _generated(run: Finished) -> int:
    return int(run.demand.tokens_of_step[run.decode].sum())


def _layers_share(run: Finished) -> float:
    """MoE layers that ran, of the model's."""
    return run.demand.layers / len(run.run.model.moe_layer_ids)
