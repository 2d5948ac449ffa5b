"""Charts of the validation page: SVG of measured against predicted times, and of errors."""

import math
from collections.abc import Sequence
from html import escape

import numpy as np
import pandas as pd

from archsim.report.draw.svg import Axis, element, linear_axis, log_axis, number, picture, text, title
from archsim.studies.validation.errors import UNDER

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 320.0, 220.0, 54.0, 22.0, 34.0, 18.0
MOST_POINTS = 600  # points per scatter: every n-th case by error, so that the worst are always drawn
MOST_ERROR = 0.2  # largest error on the axis of cumulative error charts
NEAR, FAR = "p4", "p7"  # colour classes of cases within and beyond UNDER
COLOUR_OF = {"bf16": "p2", "fp8": "p3", "fp8_block": "p5"}
OTHER_COLOUR = "p0"
MICROSECONDS = "us"


def scatter(caption: str, cases: pd.DataFrame) -> str:
    """Predicted over measured time, with the diagonal; ``cases``: measured_us, predicted_us, error."""
    order = np.argsort(-cases["error"].abs().to_numpy(), kind="stable")
    shown = cases.iloc[order[:: math.ceil(len(order) / MOST_POINTS)]]
    times = shown[["measured_us", "predicted_us"]].to_numpy(float)
    axis = log_axis(times.min(), times.max(), _plain)
    frame = _frame(axis, axis, "measured, us", "predicted, us")
    ends = [f"{number(_x(axis, end))} {number(_y(axis, end))}" for end in (axis.low, axis.high)]
    frame.append(element("path", class_="ref", d=f"M{ends[0]}L{ends[1]}"))
    for (measured, predicted), error in zip(times, shown["error"], strict=True):
        frame.append(element("circle", class_=_class(error), cx=_x(axis, measured), cy=_y(axis, predicted), r=1.8))
    errors = cases["error"].abs()
    note = f"{len(cases):,} cases, mean {percent(errors.mean())}, max {percent(errors.max())}"
    return figure(caption, picture(WIDTH, HEIGHT, caption, frame), note)


def times_over_m(caption: str, cases: pd.DataFrame) -> str:
    """Points: measured, line: predicted; ``cases``: m, measured_us, predicted_us, error."""
    cases = cases.sort_values("m", kind="stable")
    across = log_axis(1, cases["m"].max(), _plain)
    points = [
        (
            row.m,
            row.measured_us,
            row.error,
            f"M = {row.m}: measured {row.measured_us:.4g} us, error {percent(row.error)}",
        )
        for row in cases.itertuples()
    ]
    once = cases.drop_duplicates("m")
    return _line_and_points(caption, across, "M", list(zip(once["m"], once["predicted_us"], strict=True)), points)


def times_over_size(caption: str, cases: pd.DataFrame) -> str:
    """Points: measured, line: the event engine; ``cases``: bytes, engine_us, measured_us (may be nan), error."""
    across = log_axis(cases["bytes"].min(), cases["bytes"].max(), _power_of_ten)
    points = [
        (
            row.bytes,
            row.measured_us,
            row.error,
            f"{row.bytes} bytes: measured {row.measured_us:.4g} us, error {percent(row.error)}",
        )
        for row in cases.dropna(subset="measured_us").itertuples()
    ]
    return _line_and_points(
        caption, across, "bytes", list(zip(cases["bytes"], cases["engine_us"], strict=True)), points
    )


def _line_and_points(caption: str, across: Axis, unit: str, line: Sequence[tuple], points: Sequence[tuple]) -> str:
    times = [time for _, time in line] + [time for _, time, _, _ in points]
    up = log_axis(min(times), max(times), _plain)
    frame = _frame(across, up, unit, MICROSECONDS)
    steps = "L".join(f"{number(_x(across, at))} {number(_y(up, time))}" for at, time in line)
    frame.append(element("path", class_="curve p2-line", d=f"M{steps}"))
    for at, time, error, tip in points:
        frame.append(element("circle", title(tip), class_=_class(error), cx=_x(across, at), cy=_y(up, time), r=2.2))
    return figure(caption, picture(WIDTH, HEIGHT, caption, frame))


def shares_within(caption: str, errors: dict[str, np.ndarray]) -> str:
    """Share of cases (y) with at most a given |error| (x), a line per dtype; errors: dtype → float64[case]."""
    across, up = linear_axis(MOST_ERROR, _whole_percent, 4), linear_axis(1.0, _whole_percent, 4)
    frame = _frame(across, up, "error at most", "cases")
    frame.append(
        element("path", class_="ref", d=f"M{number(_x(across, UNDER))} {number(TOP)}V{number(HEIGHT - BOTTOM)}")
    )
    at = np.linspace(0, MOST_ERROR, 101)
    for dtype, of in errors.items():
        share = np.searchsorted(np.sort(np.abs(of)), at, side="right") / len(of)
        steps = "L".join(f"{number(_x(across, x))} {number(_y(up, y))}" for x, y in zip(at, share, strict=True))
        tip = title(
            f"{dtype}: {percent(float(np.mean(np.abs(of) < UNDER)))} of {len(of)} cases under {_whole_percent(UNDER)}"
        )
        frame.append(element("path", tip, class_=f"curve {colour_of(dtype)}-line", d=f"M{steps}"))
    note = f"{sum(map(len, errors.values())):,} cases"
    return figure(caption, picture(WIDTH, HEIGHT, caption, frame), note)


def colour_of(dtype: str) -> str:
    return COLOUR_OF.get(dtype, OTHER_COLOUR)


def figure(caption: str, drawing: str, note: str = "") -> str:
    """A drawing (SVG) with its caption above, and ``note`` below the caption in small print."""
    small = f"<br><small>{escape(note)}</small>" if note else ""
    return f"<figure><figcaption>{escape(caption)}{small}</figcaption>{drawing}</figure>"


def percent(share: float) -> str:
    """``0.034`` → ``3.4 %``; nan (unknown) is a dash."""
    return "–" if math.isnan(share) else f"{100 * share:.1f} %"


def _class(error: float) -> str:
    return NEAR if abs(error) < UNDER else FAR


def _frame(across: Axis, up: Axis, unit: str, unit_up: str) -> list[str]:
    parts = [text(LEFT - 5, TOP - 8, unit_up, "m", "middle")]
    for tick in across.ticks:
        x = number(_x(across, tick))
        parts.append(element("path", class_="grid", d=f"M{x} {number(TOP)}V{number(HEIGHT - BOTTOM)}"))
        parts.append(text(_x(across, tick), HEIGHT - BOTTOM + 13, across.label(tick), "m", "middle"))
    for tick in up.ticks:
        y = number(_y(up, tick))
        parts.append(element("path", class_="grid", d=f"M{number(LEFT)} {y}H{number(WIDTH - RIGHT)}"))
        parts.append(text(LEFT - 5, _y(up, tick) + 3.5, up.label(tick), "m", "end"))
    parts.append(text((LEFT + WIDTH) / 2, HEIGHT - 6, unit, "m", "middle"))
    return parts


def _x(axis: Axis, value: float) -> float:
    return LEFT + (WIDTH - RIGHT - LEFT) * axis.share(value)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * axis.share(value)


def _plain(value: float) -> str:
    return f"{value:,.10g}"


def _whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _power_of_ten(value: float) -> str:
    exponent = round(math.log10(value))
    return f"10{str(exponent).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
