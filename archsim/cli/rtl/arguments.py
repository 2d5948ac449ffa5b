"""What the commands on RTL share: the extra that they need, blocks and parameters."""

import argparse
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from archsim.base.errors import ArchsimError, SpecError
from archsim.base.nearest import did_you_mean


def benches() -> Mapping[str, Any]:
    """The table of blocks with their components. Raises ArchsimError without the extra ``rtl``."""
    from microarch.rtl import missing

    if (lacking := missing()) is not None:
        raise ArchsimError(lacking)
    from microarch.rtl.lockstep import BENCHES

    return BENCHES


def known_block(name: str) -> str:
    """The block, if it has a component. Raises SpecError."""
    if name not in benches():
        raise SpecError(f"no RTL of {name!r}{did_you_mean(name, benches())} (there is: {', '.join(benches())})")
    return name


def add_parameters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set", dest="changes", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
        help="a parameter of the component, such as lanes=4; lanes=1,4 runs each",
    )  # fmt: skip


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run", dest="recorded", metavar="FILE",
        help="take the stimulus of a run of this experiment, simulated by engine: interpreted",
    )  # fmt: skip


def recorded_in(file: str, block: str, events: int) -> Any:
    """``archsim.studies.silicon.recording.recorded`` in the runs of an experiment."""
    from archsim.runs.plan import select
    from archsim.runs.simulator import Simulator
    from archsim.specs.loading.library import load_planned
    from archsim.studies.silicon.recording import recorded

    selection = select(load_planned(file, []))
    runs = list(selection.maker.runs(map(selection.plan.point, selection.kept)))
    return recorded(block, runs, Simulator(selection.maker.traces).replay, events)


def combinations(block: str, given: list[str], default: Mapping[str, tuple]) -> Iterator[dict[str, Any]]:
    """Every combination of the values that ``--set`` gives, else of the default. Raises SpecError for an unknown key
    or a value of another type.
    """
    shipped = benches()[block][1]
    fields = {each.name: getattr(shipped, each.name) for each in dataclasses.fields(shipped)}
    axes: dict[str, tuple] = dict(default)
    for each in given:
        key, _, values = each.partition("=")
        if key not in fields:
            raise SpecError(
                f"{block} has no parameter {key!r}{did_you_mean(key, fields)} (it has: {', '.join(fields)})"
            )
        axes[key] = tuple(_read(key, value, type(fields[key])) for value in values.split(","))
    for chosen in itertools.product(*axes.values()):
        yield dict(zip(axes, chosen, strict=True))


def _read(key: str, value: str, kind: type) -> int | bool:
    if kind is bool and value in ("true", "false"):
        return value == "true"
    if kind is int and value.isascii() and value.isdigit():
        return int(value)
    raise SpecError(f"{key}={value}: expected {'true or false' if kind is bool else 'a whole number'}")


def parameters_of(block: str, changes: Mapping[str, Any]) -> Any:
    """The shipped parameters with ``changes``. Raises SpecError for what cannot be built."""
    try:
        return dataclasses.replace(benches()[block][1], **changes)
    except ValueError as error:
        raise SpecError(f"{block}: {error}") from None


def built(block: str, changes: Mapping[str, Any]) -> Any:
    """The component. Raises SpecError for parameters that cannot be built."""
    return benches()[block][0].component(parameters_of(block, changes))
