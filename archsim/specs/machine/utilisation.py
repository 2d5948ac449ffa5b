"""Shares of peak that the published simulator assumes (assumption ``gemm: tables``)."""

from dataclasses import dataclass

from archsim.specs.assumptions import shipped_sets

DEFAULT_ROW = "default"


@dataclass(frozen=True)
class Utilisation:
    """``hbm``: share of HBM bandwidth; ``values[i]``: share of peak compute for a task of at most ``bounds[i]`` tokens.

    ``values`` has one more entry than ``bounds``, for tasks above the last bound.
    """

    hbm: float
    bounds: tuple[int, ...]
    values: tuple[float, ...]


def published_utilisation(model_name: str) -> Utilisation:
    """The published simulator's table for a model; models without one get the default row, DeepSeek-V3's."""
    table = shipped_sets()["published"].utilisation
    row = table.get(model_name, table[DEFAULT_ROW])
    return Utilisation(row.hbm, row.bounds, row.values)
