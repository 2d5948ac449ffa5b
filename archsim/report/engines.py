"""The page section on the error of the analytical engine: the sample of an analytical sweep that the event engine
repeated.
"""

from pathlib import Path
from typing import Any

from archsim.report.units import percent
from archsim.runs.engine_comparison import OUTSIDE, errors, read_comparison


def section(folder: Path) -> dict[str, Any] | None:
    """Rows of the section's two tables; None if the folder has no comparison."""
    kept = read_comparison(folder)
    if kept is None:
        return None
    compared, about = kept
    outside = sorted((each for each in compared if abs(each.error) > OUTSIDE), key=lambda each: -abs(each.error))
    return {
        "runs": len(compared),
        **about,
        "limit": percent(OUTSIDE),
        "sets": [
            {
                "assumptions": each.assumptions,
                "runs": each.runs,
                "numbers": [f"{value:.1%}" for value in (each.median, each.p95, each.largest)]
                + [f"{each.signed_median:+.1%}"],
                "rank": "–" if each.rank is None else f"{each.rank:.3f}",
            }
            for each in errors(compared)
        ],
        "outside": [{"run": each.run, "error": f"{each.error:+.1%}", "reason": each.reason} for each in outside],
    }
