"""Single numbers with their range: the median of the measurements, with their 5 % and 95 % quantiles."""

import numpy as np
import pandas as pd

from archsim.laws.tables import ScalarTable


def scalar_table(rows: pd.DataFrame, values, unit: str, of: dict[str, str]) -> ScalarTable:
    """The median of ``values`` (one for each of ``rows``, not empty), with its source."""
    low, middle, high = (float(x) for x in np.quantile(np.asarray(values, dtype=np.float64), (0.05, 0.5, 0.95)))
    return ScalarTable(
        library=" ".join(sorted(set(rows["library"]))), version=" ".join(sorted(set(rows["library_version"]))),
        source=" ".join(sorted(set(rows["file"]))), sweeps=tuple(sorted(set(rows["run_id"]))), of=of, unit=unit,
        value=middle, low=low, high=high,
    )
