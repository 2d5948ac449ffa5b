"""Values of a sampled axis, made when asked for: a sample of a million points costs no more than its random numbers."""

from collections.abc import Sequence
from functools import cached_property
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

    @cached_property
    def telling(self) -> list[int]:
        """Indices of values that are valid only if all are: the ends of a range, else one of each."""
        if isinstance(self._of, Range):
            return sorted({int(self._shares.argmin()), int(self._shares.argmax())})
        import numpy as np

        drawn = np.minimum((self._shares * len(self._of)).astype(np.int32), len(self._of) - 1)
        first = np.full(len(self._of), -1)
        first[drawn[::-1]] = np.arange(len(drawn) - 1, -1, -1, dtype=np.int32)  # the last that is written stays
        return sorted(first[first >= 0].tolist())


def draw_shares(method: str, dimensions: int, count: int, seed: int):
    """float64[count, axis] in [0, 1) by a method of ``METHODS``; Sobol points (scipy.stats.qmc) are scrambled."""
    import numpy as np

    generator = np.random.default_rng(seed)
    if method == "sobol":
        return _sobol(dimensions, count, generator)
    if method == "random":
        return generator.random((count, dimensions))
    return _latin_hypercube(dimensions, count, *generator.spawn(1))


def _latin_hypercube(dimensions: int, count: int, generator):
    """One share in every stratum of 1 / count of every axis (McKay, Beckman and Conover, Technometrics 1979).

    The numbers of scipy.stats.qmc.LatinHypercube, which takes a second to import and three times the memory.
    """
    import numpy as np

    shares = generator.random((count, dimensions))
    for column in shares.T:
        strata = np.arange(1, count + 1, dtype=np.int32)
        generator.shuffle(strata)
        np.subtract(strata, column, out=column)
    shares /= count
    return shares


def _sobol(dimensions: int, count: int, generator):
    import warnings

    from scipy.stats import qmc

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a count that is not a power of 2 is merely less balanced
        return qmc.Sobol(dimensions, seed=generator).random(count)
