"""Numbers for readers: three significant digits and a unit."""

import math
from collections.abc import Callable, Iterable

from archsim.runs.columns import BY_NAME
from archsim.specs import constraints, explore

BYTE_UNITS = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
TIME_UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
RATE_UNITS = ((1e9, "G tokens/s"), (1e6, "M tokens/s"), (1e3, "k tokens/s"), (1.0, "tokens/s"))
PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
SCALES = (*PREFIXES, (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
NO_BREAK = "\u00a0"  # space between a number and its unit

_NARROW = 0.01  # width of a ratio's range below which digits beyond the third decimal would be shown
_NOTHING = 1e-9  # numbers below it have no digit that is shown

Unit = tuple[float, str]


def significant(value: float, digits: int = 3) -> str:
    """``1234.5`` → ``1,234``; ``12.345`` → ``12.3``; ``0.0123`` → ``0.0123``. Never an exponent below 1e15."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "∞"
    if abs(value) < _NOTHING:
        return "0"
    magnitude = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 0.99996 is 1.00
    decimals = max(0, digits - 1 - magnitude)
    return f"{value:,.{min(decimals, 9)}f}"


def rounded_up(value: float, digits: int = 2) -> float:
    """``50.4`` → 51: the least number with so many digits that is not below a value above 0."""
    decimals = digits - 1 - math.floor(math.log10(value))
    return math.ceil(round(value * 10.0**decimals, 6)) / 10.0**decimals


def carried_digits(value: float, low: float, high: float) -> str:
    """A value with as many digits as its interval carries, ``127.3`` of 104 to 170 → ``127``: the last digit that is
    shown is worth at most a tenth of the interval's width, and the first one stays, of
    whole numbers the first two: ``240`` of 90 to 1,300 is not 200.
    """
    width = abs(high - low)
    if not (math.isfinite(value) and math.isfinite(width)) or width <= _NOTHING * abs(value):
        return significant(value)
    place = math.floor(math.log10(width / 10))
    if value:
        first = math.floor(math.log10(abs(value)))
        place = min(place, max(first - 1, min(first, 0)))
    worth = 10.0**place
    return f"{round(value / worth) * worth if place > 0 else value:,.{max(0, -place)}f}"


def interval(value: float, low: float, high: float, units: tuple[Unit, ...] = ((1.0, ""),)) -> tuple[str, str, str]:
    """A value and the ends of its interval, in the unit of the value and with the digits of `carried_digits`."""
    worth, name = unit_of([value], units)
    ends = low / worth, high / worth
    texts = (carried_digits(each, *ends).replace("-", "−") for each in (value / worth, *ends))
    first, second, third = (f"{each}{NO_BREAK}{name}" if name else each for each in texts)
    return first, second, third


def range_text(value: float, ends: tuple[float, float] | None, units: tuple[Unit, ...], within: str = "") -> str:
    """``12.3 ms (11.1–14.0 ms in 90 % of 32 samples)``; without ``ends`` the value. ``within``: after the range."""
    if ends is None:
        return with_unit(value, units)
    text, low, high = interval(value, *ends, units)
    return f"{text} ({low.partition(NO_BREAK)[0]}–{high}{within})"


def times_text(value: float, low: float, high: float, within: str = "") -> str:
    """``1.18 × (1.08–1.25)``, at most three decimals; without a range ``1.18 ×``. ``within``: said of the range."""
    if high - low < 1e-9 * abs(value):
        return f"{significant(value)}{NO_BREAK}×"
    low_text, text, high_text = digits_of_ratio(low, value, high)
    return f"{text}{NO_BREAK}× ({low_text}–{high_text}{within})"


def digits_of_ratio(low: float, value: float, high: float) -> tuple[str, str, str]:
    """The digits that a ratio carries by its range, at most three decimals and four digits."""
    if high - low >= _NARROW:
        one, two, three = (carried_digits(each, low, high) for each in (low, value, high))
    else:
        one, two, three = (significant(each, 4) if each >= 1 else f"{each:.3f}" for each in (low, value, high))
    return one, two, three


def percents_text(shares: tuple[float, float, float]) -> str:
    """``4.1 % (1.2–9.0 %)``: a share and its range (low, middle, high), with the digits that the range carries."""
    low, middle, high = (100 * each for each in shares)
    if max(abs(low), abs(high)) < 0.05:
        return f"less than 0.1{NO_BREAK}%"
    if high - low < 0.005:
        return f"{middle:.1f}{NO_BREAK}%".replace("-", "−")
    texts = [carried_digits(each, low, high).replace("-", "−") for each in (middle, low, high)]
    return f"{texts[0]}{NO_BREAK}% ({texts[1]}–{texts[2]}{NO_BREAK}%)"


def damage_text(lost: tuple[float, float, float], verb: str = "cost", more: str = "add") -> str:
    """``cost 4.1 % (1.2–9.0 %) of the throughput``, or ``cost nothing and add …``: what defects do, by its range."""
    low, middle, high = lost
    if middle < 0:
        return f"{verb} nothing and {more} {percents_text((-high, -middle, -low))} to the throughput"
    return f"{verb} {percents_text(lost)} of the throughput"


def change_text(change: tuple[float, float, float], within: str = "") -> str:
    """``4.1 % (1.2–9.0 %) more``, ``up to 9 % more`` or ``between 1 % less and 4 % more``: a relative change (low,
    middle, high), whose direction is said only where it is sure.
    """
    low, middle, high = change
    less, more = -low >= 0.001, high >= 0.001
    if less and more:
        return f"between {less_or_more(low)} and {less_or_more(high)}{within}"
    if not less and not more:
        return "no less"
    if min(abs(low), abs(high)) < 0.001:
        return f"up to {less_or_more(high if more else low)}{within}"
    ends = (-high, -middle, -low) if less else change
    return f"{percents_text(ends).replace(')', within + ')')} {'less' if less else 'more'}"


def unit_of(values: Iterable[float], units: tuple[Unit, ...]) -> Unit:
    """The unit in which the largest of ``values`` is at least 1; the smallest if there is none, of 0 the plain one."""
    largest = max((abs(value) for value in values), default=0.0)
    if largest == 0:
        return next((unit for unit in units if unit[0] == 1.0), units[-1])
    return next((unit for unit in units if largest >= unit[0]), units[-1])


def with_unit(value: float, units: tuple[Unit, ...]) -> str:
    """``1.24e12`` with BYTE_UNITS → ``1.24 TB``; a minus is no hyphen."""
    worth, name = unit_of([value], units)
    return f"{significant(value / worth).replace('-', '−')}{NO_BREAK}{name}"


def with_prefix(value: float) -> str:
    """``1.24e12`` → ``1.24 T``, ``33`` → ``33``: for columns whose header names the unit."""
    worth, prefix = unit_of([value], PREFIXES)
    return f"{significant(value / worth)}{NO_BREAK}{prefix}" if prefix else plain(value)


def in_base_unit(value: float, unit: str) -> str:
    """``1.5 TB/s``, ``300 ns``, ``0.9``: a value in B, B/s, FLOP/s, Hz, ns or no unit."""
    if unit in ("B", "B/s", "FLOP/s", "Hz"):
        number, _, prefix = with_prefix(value).partition(NO_BREAK)
        return f"{number} {prefix}{unit}"
    return f"{significant(value)} {unit}".strip()


def factor(value: float) -> str:
    """``5.31×``."""
    return f"{significant(value)}×"


def plain(value: float) -> str:
    """Without trailing zeros: ``5.3``, ``1,000``; for ticks and published numbers."""
    written = f"{value:,.6f}"
    return written.rstrip("0").rstrip(".")


def plain_factor(value: float) -> str:
    """``5.3×``."""
    return f"{plain(value)}×"


def percent(share: float, digits: int = 0) -> str:
    """``0.87`` → ``87 %``."""
    return f"{100 * share:.{digits}f}{NO_BREAK}%"


def between(values: Iterable[float], write: Callable[[float], str]) -> str:
    """``low to high`` of the least and the largest; one of them where both read the same."""
    every = list(values)
    low, high = write(min(every)), write(max(every))
    return low if low == high else f"{low} to {high}"


def count_of(number: int, noun: str) -> str:
    """``1 run``, ``1,200 runs``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listing(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = list(names) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def less_or_more(change: float, nothing: float = 0.001) -> str:
    """``45 % less``, ``3.1 % more``, ``no less``: a relative change in words; below ``nothing`` there is none."""
    if abs(change) < nothing:
        return "no less"
    return f"{significant(100 * abs(change), 2)}{NO_BREAK}% {'less' if change < 0 else 'more'}"


def signed_percent(change: float, nothing: float = 0.0) -> str:
    """``+3.1 %``, ``−0.4 %``, ``0 %``: a relative change, two significant digits; up to ``nothing`` there is none."""
    if abs(change) <= nothing:
        return f"0{NO_BREAK}%"
    sign = "+" if change > 0 else "−"
    return f"{sign}{significant(abs(100 * change), 2)}{NO_BREAK}%"


def usd(low: float, high: float) -> str:
    """``43,000 to 530,000 USD``: two digits of each end."""
    ends = (f"{float(f'{end:.1e}'):,.{0 if end >= 10 else 2}f}" for end in (low, high))
    return f"{' to '.join(ends)}{NO_BREAK}USD"


def scales_of(unit: str) -> tuple[Unit, ...]:
    """Prefixes before a unit: those below 1 of joules and watts alone, as ``149 m tokens/s`` reads as millions."""
    return SCALES if unit[:1] in ("J", "W") else PREFIXES


def amount(objective: str, number: float) -> str:
    """``throughput``, 12345.0 → ``12.3 k tokens/s``."""
    if objective.startswith("probability("):
        return f"{number:.0%}"
    worth, prefix = unit_of([number], scales_of(unit_of_objective(objective)))
    return f"{significant(number / worth)} {objective_unit(objective, prefix)}".strip()


def estimate_texts(objective: str, number: float, low: float, high: float) -> tuple[str, str, str]:
    """Like `amount`, of a value and the ends of its range, with `carried_digits`."""
    worth, prefix = unit_of([number], scales_of(unit_of_objective(objective)))
    unit, ends = objective_unit(objective, prefix), (low / worth, high / worth)
    value, first, second = (f"{carried_digits(each, *ends)} {unit}" for each in (number / worth, *ends))
    return value, first, second


def objective_unit(objective: str, prefix: str) -> str:
    """``mJ/token``, ``k tokens/s``, ``USD``."""
    unit = unit_of_objective(objective)
    return f"{prefix}{unit}" if unit[:1] in "JW" else f"{prefix} {unit}".strip()


def unit_of_objective(objective: str) -> str:
    """``J/token``, ``tokens/s``, ``USD``."""
    if objective in explore.OBJECTIVES:
        return BY_NAME[explore.OBJECTIVES[objective].column].unit
    if (risk := explore.risk_of(objective)) is not None:
        return BY_NAME[explore.OBJECTIVES[risk.name].column].unit if risk.quantile is not None else ""
    return _unit_of_tree(constraints.parse_expression(objective).tree)


def _unit_of_tree(tree: tuple) -> str:
    """Of an expression of objectives: ``tokens/s/mm²``."""
    kind, *parts = tree
    if kind == "name":
        return BY_NAME[explore.OBJECTIVES[parts[0]].column].unit
    units = [_unit_of_tree(part) for part in parts if isinstance(part, tuple)]
    if kind == "/":
        return "/".join([units[0] or "1", *filter(None, units[1:])])
    return "·".join(dict.fromkeys(filter(None, units)))
