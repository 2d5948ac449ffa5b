"""One door for comparisons: what sides are, and who compares them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from archsim.base import errors
from archsim.base.quantities import as_written
from archsim.base.verbs import caller_name, known_value
from archsim.search import options
from archsim.search.limits import limits_of
from archsim.search.options import Requests, Side
from archsim.show.units import listing
from archsim.specs.file_kinds import SERVE


@dataclass(frozen=True)
class Question:
    """What is asked beside the sides, as on the command line."""

    model: str | None = None
    tpot: str | None = None
    ttft: str | None = None
    rate: float | str | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    equal: str | None = None
    vary: Mapping[str, tuple[Any, ...]] | None = None
    prices: Mapping[str, float] | None = None
    samples: int | None = None

    @property
    def asks(self) -> bool:
        """Whether anything is asked that only options answer."""
        given = (self.tpot, self.ttft, self.rate, self.input_tokens, self.output_tokens, self.equal, self.vary)
        return any(each is not None for each in given)


def compare_options(
    sides: Sequence[Side], question: Question, pinned: Mapping[str, Any], overrides: Sequence[str] = (),
    jobs: int = 1, say: Callable[[str], None] = lambda text: None, folder: Path | None = None, watcher: Any = None,
) -> Any:  # fmt: skip
    """An `OptionComparison` of machines and experiments, or a `DeploymentComparison`. Raises SpecError for an unknown
    budget, and for sides that cannot be compared.
    """
    equal, vary = question.equal or "machines", question.vary or {}
    known_value("equal", equal, options.EQUALS)
    served = [side for side in sides if side.kind == SERVE]
    if served and (other := next((side for side in sides if side.kind not in (SERVE, options.SYSTEM)), None)):
        raise errors.SpecError(
            f"{served[0].name} is a deployment, and {other.name} is an experiment: give a file of archsim serve, or a "
            "system, which serves the requests of the deployment"
        )
    if served:
        from archsim.search.deployments import compare_deployments

        if question.samples == 0:
            said = "a comparison of deployments rests on samples. Give 16 or more"
            raise errors.SpecError(f"{caller_name('samples')} 0: {said}")
        changes = [*overrides]
        changes += [
            f"slo.{name}={value}" for name, value in (("ttft", question.ttft), ("tpot", question.tpot)) if value
        ]
        if question.rate:
            changes.append(f"requests.arrivals.rate={str(question.rate).removesuffix('/s')}/s")
        if len(served) < len(sides):
            from archsim.search.beside import deployment_on

            sides = [side if side.kind == SERVE else deployment_on(side, served[0], changes, say) for side in sides]
        return compare_deployments(
            sides, vary, changes, equal, question.prices or {}, question.samples, folder, jobs, watcher
        )
    from archsim.search.answer import answer
    from archsim.search.compare import SAMPLES as WORLDS
    from archsim.search.compare import Varied, compare_machines
    from archsim.search.reasons import reasons

    limits = limits_of(question.tpot, question.ttft, question.rate)
    prompts = any((question.ttft, question.rate, question.input_tokens, question.output_tokens))
    requests = Requests(
        question.input_tokens or options.PROMPT, question.output_tokens or options.OUTPUT, bool(prompts)
    )
    varied, designs, every = None, [side.system for side in sides], list(sides)
    if vary:
        if any(side.system is None for side in sides):
            raise errors.SpecError(
                f"--vary {next(iter(vary))}: give machines (systems), or a file with sweep: to archsim sweep"
            )
        if len(vary) > 1 and len(sides) > 1:
            raise errors.SpecError("--vary: give one machine with several keys, or one key of several machines")
        every = [variant for side in sides for key, values in vary.items() for variant in _variants(side, key, values)]
        values = tuple(value for own in vary.values() for value in own)
        keys = tuple(key.removeprefix("system.") for key, own in vary.items() for _ in own)
        if len(set(keys)) > 1:  # each beside the machine as it is
            every, equal = [sides[0], *every], "usd" if equal == "machines" else equal
            varied = Varied(listing(dict.fromkeys(keys)), ("as it is", *values), (), ("", *keys))
        else:
            varied = Varied(keys[0], values, tuple(_numbers(values)))
        designs = [side.system for side in sides for _ in varied.values]
    elif len(sides) < 2 and not limits.given:
        raise errors.SpecError(
            f"{sides[0].name}: one side has nothing beside it. Give another, a limit, or --vary{_inside(sides[0])}"
        )
    samples = WORLDS if question.samples is None else question.samples
    found = compare_machines(
        every, question.model, limits, requests, equal, pinned, samples, jobs, say,
        designs if all(each is not None for each in designs) else (), varied,
    )  # fmt: skip
    return replace(found, sentence=answer(found), reasons=tuple(reasons(found)))


def _inside(side: Side) -> str:
    """How systems or policies of the one experiment that was named are compared; '' where it has no two."""
    for named in (side.experiment.systems, side.experiment.policies) if side.experiment is not None else ():
        if len(named) > 1:
            one, other = named[0].name, named[1].name
            return f". To compare two apart: archsim compare {one} {other} --in {side.source}"
    return ""


def _variants(side: Side, key: str, values: Sequence[Any]) -> list[Side]:
    import json

    own = key.removeprefix("system.")
    found = []
    for value in values:
        written = value if isinstance(value, str) else json.dumps(value)
        try:
            system = options.load_system(side.source, [f"{own}={written}"])
        except errors.SpecError as error:
            raise errors.SpecError(re.sub(r"^.*?--set [^:]*", f"--vary {key}", str(error))) from None
        found.append(side._replace(name=f"{side.name} with {own} {value}", system=system))
    return found


def _numbers(values: Sequence[Any]) -> list[float]:
    found = []
    for value in values:
        if isinstance(value, bool):
            return []
        written = as_written(value) if isinstance(value, str) else None
        if written is not None:
            found.append(written.number * float(written.dimension.units[written.unit] if written.unit else 1.0))
        elif isinstance(value, int | float):
            found.append(float(value))
        else:
            return []
    return found
