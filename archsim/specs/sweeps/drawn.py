"""Values of a sampled axis, made when asked for: a sample of a million points costs no more than its random numbers."""

from collections.abc import Sequence
from typing import Any

from archsim.specs.sweeps.axis_values import Range

METHODS = ("latin_hypercube", "sobol", "random")


class Drawn(Sequence):
    """``shares: float64[count]`` in [0, 1), as values ``of`` a range, or of a sequence with equal chances."""

    def __init__(self, shares, of: Range | Sequence[Any]) -> None:
        self._shares, self._of = shares, of

    def __len__(self) -> int:
        return len(self._shares)

    def __getitem__(self, index):
        share = float(self._shares[index])
        if isinstance(self._of, Range):
            return self._of.value(share)
        return self._of[min(int(share * len(self._of)), len(self._of) - 1)]

    @property
    def telling(self) -> list[int]:
        """Indices of values that are valid only if all are: the ends of a range, else one of each."""
        if isinstance(self._of, Range):
            return sorted({int(self._shares.argmin()), int(self._shares.argmax())})
        import numpy as np

        chosen = np.minimum((self._shares * len(self._of)).astype(np.int64), len(self._of) - 1)
        return sorted(np.unique(chosen, return_index=True)[1].tolist())


def draw_shares(method: str, dimensions: int, count: int, seed: int):
    """float64[count, axis] in [0, 1) by a method of ``METHODS`` (scipy.stats.qmc; Sobol points are scrambled)."""
    import warnings

    import numpy as np

    generator = np.random.default_rng(seed)
    if method == "random":
        return generator.random((count, dimensions))
    from scipy.stats import qmc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a count that is not a power of 2 is merely less balanced
        kind = qmc.Sobol if method == "sobol" else qmc.LatinHypercube
        return kind(dimensions, seed=generator).random(count)
