"""LPLB: the shares of an expert's instances that minimise the load of the fullest GPU (DeepSeek's LPLB, as in SGLang).

The linear programme of the SGLang article on Waterfill and LPLB, "The LP Formulation": minimise M subject to, for
every GPU, the shares of the instances on it <= M; for every expert, its shares sum to its load; all shares >= 0. The
paper solves it approximately on the GPU; here it is exact.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.policies.load import checked_count, checked_load
from archsim.policies.max_flow import share_out


class Shares(NamedTuple):
    max_load: float  # of the fullest GPU: the optimum
    split: list[np.ndarray]  # [expert] float64[instance], as in holders


def lplb(
    load: ArrayLike, holders: Sequence[Sequence[int]], gpus: int | None = None, speed: ArrayLike | None = None
) -> Shares:
    """Share ``load[expert]`` among ``holders[expert]``, the GPUs of its instances, such that the fullest of ``gpus``
    has least; with ``speed[gpu]``, such that the last of them ends first (``max_load`` is then that time).

    ``gpus``: by default as many as ``holders`` name. The optimum is unique, the shares usually are not: another
    solver's are as good. Several instances on one GPU are allowed, without benefit. ValueError: an expert without a
    holder, a GPU outside 0..gpus - 1, holders for a different number of experts.
    """
    load = checked_load(load, ("expert",))
    if len(holders) != len(load):
        raise ValueError(
            f"holders of {len(holders)} experts, load of {len(load)}; expected holders[expert] = [gpu, ...] for each"
        )
    begin = np.zeros(len(load) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, holders), np.int64, len(load)), out=begin[1:])
    gpu = np.fromiter(chain.from_iterable(holders), np.int64, begin[-1])
    if (begin[1:] == begin[:-1]).any():
        raise ValueError(
            f"expert {int(np.argmin(np.diff(begin)))} has no holder; expected one GPU or more for every expert"
        )
    gpus = int(gpu.max(initial=0)) + 1 if gpus is None else checked_count(gpus, "gpus")
    if len(gpu) and not 0 <= gpu.min() <= gpu.max() < gpus:
        raise ValueError(f"holders name GPUs {gpu.min()}..{gpu.max()}; expected 0..{gpus - 1}")

    own = None if speed is None else checked_load(speed, ("gpu",), "speed")
    if own is not None and (len(own) != gpus or (own <= 0).any()):
        raise ValueError(f"speed of {len(own)} GPUs; expected one above 0 for each of {gpus}")
    share = share_out(load, begin, gpu, gpus, own)
    used = np.bincount(gpu, weights=share, minlength=gpus)
    most = (used if own is None else used / own).max()
    ends = begin.tolist()
    return Shares(float(most), [share[a:b] for a, b in zip(ends, ends[1:], strict=False)])
