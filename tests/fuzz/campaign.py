"""Runs mutants through commands, and judges each: accepted, refused with its place, or found."""

import contextlib
import io
import random
import resource
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

from archsim.cli.main import main

HANG_S, COMPILE_S = 10, 900


class Found(NamedTuple):
    """A mutant that crashed, hung, or was refused without its place. said: a traceback or the output."""

    target: str
    number: int
    file: str
    command: str
    said: str
    content: bytes


class Report(NamedTuple):
    """Of one target: how many mutants a command took, how many it refused, and what was found."""

    accepted: int
    refused: int
    found: list[Found]
    most_bytes: int


class Hang(BaseException):
    """Raised by the alarm; not an Exception, so that nothing takes it for a failed run."""


def fuzz(name, target, folder: Path, seed: int, first: int, count: int) -> Report:
    """Try mutants ``first`` to ``first + count`` of a target, each decided by (seed, target, number) alone.

    Raises ValueError if a file is refused before it is spoilt.
    """
    good = {file: file.read_bytes() for file in target.make(folder)}
    chosen = {number: random.Random(f"{seed} {name} {number}") for number in range(first, first + count)}
    spoilt = {number: rng.choice(list(good)) for number, rng in chosen.items()}
    for file in sorted(set(spoilt.values())):  # compiles what mutants use, too
        status, said = _tried(target.command(file.relative_to(folder)), folder, COMPILE_S)
        if status != 0:
            raise ValueError(f"{name}: {file.name} is refused as it is: {said}")
    accepted, found = 0, []
    for number, file in spoilt.items():
        content = target.spoil(good[file], chosen[number])
        file.write_bytes(content)
        command = target.command(file.relative_to(folder))
        status, said = _tried(command, folder, HANG_S)
        file.write_bytes(good[file])
        placed = status == 0 or (status in (1, 2) and (not target.shown or file.name in said))
        judged = target.law and placed
        broken = target.law(file, good[file], content, said if status else None) if judged else ""
        if broken or not placed:
            found.append(Found(name, number, file.name, command, f"{said}{broken}", content))
        elif status == 0:
            accepted += 1
    return Report(accepted, count - accepted - len(found), found, _peak_bytes())


def _tried(command: str, folder: Path, most_s: int) -> tuple[int | None, str]:
    """(status, or None for a crash or a hang; what was printed to stderr, or the traceback)."""
    out, said = io.StringIO(), io.StringIO()
    signal.signal(signal.SIGALRM, _hang)
    signal.alarm(most_s)
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                status = main(command.split())
    except (Hang, Exception):
        return None, f"{said.getvalue()}{traceback.format_exc()}"
    except SystemExit as ended:
        status = ended.code
    finally:
        signal.alarm(0)
    return status if isinstance(status, int) else None, said.getvalue()


def _hang(*_) -> None:
    raise Hang("took too long")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
