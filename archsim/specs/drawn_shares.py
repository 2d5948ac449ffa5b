"""Shares between 0 and 1 for the points of a sampled sweep."""

METHODS = ("latin_hypercube", "sobol", "random")


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
    """A share in every stratum of 1 / count of every axis (McKay, Beckman and Conover, Technometrics 1979): the numbers
    of scipy.stats.qmc.LatinHypercube, which takes a second to import.
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
