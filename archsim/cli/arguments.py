"""The parser of the command line, which names what is nearest to a mistyped word, and types of arguments."""

import argparse
import re
from typing import Any

from archsim.base.nearest import did_you_mean

_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<choices>.*)\)")


class Parser(argparse.ArgumentParser):
    """As argparse's, with the nearest command, choice or option in its messages. Parsers of commands are of this class, too."""

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        action = super().add_argument(*names, **settings)
        self._options = [*getattr(self, "_options", ()), *(name for name in action.option_strings if name.startswith("--"))]
        return action

    def parse_known_args(self, args=None, namespace=None):
        """Ends with a message where a word is left over that no option takes: the command knows its options, its parents do not."""
        found, left = super().parse_known_args(args, namespace)
        if left:
            word = left[0].partition("=")[0]
            hint = did_you_mean(word, self._options) if word.startswith("--") else ""
            self.error(f"unrecognized arguments: {' '.join(left)}{hint}")
        return found, left

    def error(self, message: str) -> None:
        if choice := _CHOICE.search(message):
            message += did_you_mean(choice["given"], re.findall(r"[\w.+-]+", choice["choices"]))
        super().error(message)


def positive(text: str) -> int:
    """A whole number from 1."""
    value = natural(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def natural(text: str) -> int:
    """A whole number from 0."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
