"""Pieces of hand-written SVG: elements, axes, text. Colours are CSS classes, so that a page can be light or dark."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

SMALL_CHARACTER = 6.7  # mean width of a character of 11 px text, in px; labels are laid out with it


def number(value: float) -> str:
    """A coordinate with at most one decimal place."""
    written = f"{value:.1f}".removesuffix(".0")
    return "0" if written == "-0" else written


def element(name: str, content: str = "", **attributes: object) -> str:
    """``<name a="1">content</name>``; a trailing underscore of an attribute name is dropped, others become hyphens."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{number(value) if isinstance(value, float) else escape(str(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def text(x: float, y: float, content: str, kind: str = "t", anchor: str = "start") -> str:
    return element("text", escape(content), class_=kind, x=float(x), y=float(y), text_anchor=anchor)


def title(content: str) -> str:
    """The tooltip of the enclosing element."""
    return element("title", escape(content))


def picture(width: float, height: float, label: str, parts: list[str]) -> str:
    """A drawing of a fixed size, so that its text stays legible; ``label`` is read by screen readers."""
    return element(
        "svg", "".join(parts), viewBox=f"0 0 {number(width)} {number(height)}", style=f"width:{number(width)}px",
        role="img", aria_label=label,
    )


def text_width(content: str) -> float:
    """Estimated width of 11 px text."""
    return SMALL_CHARACTER * len(content)


def shortened(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


@dataclass(frozen=True)
class Axis:
    """Values from ``low`` to ``high``, linear or logarithmic, with labelled ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    label: Callable[[float], str]
    log: bool = False

    def share(self, value: float) -> float:
        """Position of ``value`` between the ends, 0 to 1 (clipped)."""
        if self.log:
            at = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            at = (value - self.low) / (self.high - self.low)
        return min(max(at, 0.0), 1.0)


def linear_axis(largest: float, label: Callable[[float], str], ticks: int = 5) -> Axis:
    """From 0 to ``largest``, with about ``ticks`` round steps."""
    largest = largest if largest > 0 else 1.0
    step = _round_step(largest / ticks)
    count = math.floor(largest / step * (1 + 1e-9))
    return Axis(0.0, largest, tuple(step * i for i in range(count + 1)), label)


def log_axis(smallest: float, largest: float, label: Callable[[float], str]) -> Axis:
    """Whole decades that include 1, ``smallest`` and ``largest``; about six labelled ticks at most."""
    low = math.floor(math.log10(min(smallest, 1.0)) + 1e-9)
    high = max(math.ceil(math.log10(max(largest, 1.0)) - 1e-9), low + 1)
    every = math.ceil((high - low) / 6)
    ticks = tuple(10.0**power for power in range(low, high + 1, every))
    return Axis(10.0**low, 10.0**high, ticks, label, log=True)


def _round_step(rough: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(rough))
    return next(step * magnitude for step in (1, 2, 2.5, 5, 10) if step * magnitude >= rough * (1 - 1e-9))
