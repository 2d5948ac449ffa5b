"""How far a run of serving is: called with what it does, and the share that is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Progress(NamedTuple):
    """``say(text, share)``: what is going on, and how much of it is done."""

    say: Callable[[str, float], None]
    what: str = ""

    def __call__(self, text: str, share: float) -> None:
        self.say(f"{self.what}: {text}" if self.what else text, share)

    def of(self, what: str) -> Progress:
        """The same, of a part named so."""
        return Progress(self.say, what)


SILENT = Progress(lambda text, share: None)
