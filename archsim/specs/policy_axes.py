"""A parameter of a policy as an axis: ``policies: {name: craft, replicas: [1, 2, 4, 8]}`` are four policies, named such
as ``craft-replicas-4``. It stands beside a preset's name, or in the part whose rule has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from typing import Any

from archsim.base.errors import did_you_mean
from archsim.base.quantities import describe
from archsim.base.yaml import Keys, Tree
from archsim.specs.policies import PRESETS, RULE_TYPES, RULES

KEYS = ("name", "preset", *RULE_TYPES)


def spread_policies(tree: Tree) -> None:
    """Write the policies of an experiment or deployment as a list with one value of each parameter. Raises SpecError
    for a parameter that no rule of a preset has, or that several have, and for a list without values.
    """
    given = tree.data.get("policies") if isinstance(tree.data, dict) else None
    if isinstance(given, dict):
        tree.wrap(("policies",))
        given = tree.data["policies"]
    if not isinstance(given, list) or not any(isinstance(each, dict) for each in given):
        return
    for index, each in enumerate(given):
        if isinstance(each, dict):
            _into_parts(tree, ("policies", index), each)
    made: list[Any] = []
    origins: list[int] = []
    for index, each in enumerate(given):
        for policy in _each(tree, ("policies", index), each):
            made.append(policy)
            origins.append(index)
    if len(made) != len(given):
        kept = {at: place for at, place in tree.places.items() if at[:1] != ("policies",) or len(at) == 1}
        below = {at: place for at, place in tree.places.items() if at[:1] == ("policies",) and len(at) > 1}
        for number, index in enumerate(origins):
            kept |= {("policies", number, *at[2:]): place for at, place in below.items() if at[1] == index}
        tree.data["policies"], tree.places = made, kept


def _into_parts(tree: Tree, keys: Keys, policy: dict[str, Any]) -> None:
    preset = policy.get("preset", policy.get("name"))
    loose = [key for key in policy if key not in KEYS]
    if not loose or not isinstance(preset, str) or preset not in PRESETS:
        return
    rules = {part: _rule_of(policy, part) or PRESETS[preset][part] for part in RULE_TYPES}
    owners = {
        key: [part for part, rule in rules.items() if rule in RULES[part] and key in RULES[part][rule].parameters]
        for key in loose
    }
    known = {key for part, rule in rules.items() if rule in RULES[part] for key in RULES[part][rule].parameters}
    for key, parts in owners.items():
        if not parts:
            listed = f" (parameters of {preset}: {', '.join(sorted(known))})" if known else ""
            raise tree.error((*keys, key), f"unknown parameter of {preset}{did_you_mean(key, known)}{listed}")
        if len(parts) > 1:
            raise tree.error((*keys, key), f"is a parameter of {' and of '.join(parts)}. Give it there")
    policy.setdefault("preset", preset)
    policy.setdefault("name", preset)
    for key, (part,) in owners.items():
        if not isinstance(policy.get(part), dict):
            policy[part] = {"name": rules[part]}
        policy[part][key] = policy.pop(key)
        tree.places[(*keys, part, key)] = tree.place((*keys, key))


def _rule_of(policy: dict[str, Any], part: str) -> str | None:
    rule = policy.get(part)
    name = rule.get("name") if isinstance(rule, dict) else rule
    return name if isinstance(name, str) else None


def _each(tree: Tree, keys: Keys, policy: Any) -> Iterator[Any]:
    axes = [
        (part, key, values)
        for part in RULE_TYPES
        if isinstance(policy, dict) and isinstance(policy.get(part), dict) and ":" not in str(policy[part].get("name"))
        for key, values in policy[part].items()
        if isinstance(values, list)
    ]
    if not axes:
        yield policy
        return
    for part, key, values in axes:
        if not values:
            raise tree.error((*keys, part, key), "needs at least one value")
        if any(isinstance(value, dict | list) for value in values):
            raise tree.error((*keys, part, key), f"expected values, not {describe(values)}")
    for chosen in product(*(values for *_, values in axes)):
        one = deepcopy(policy)
        name = str(policy.get("name", policy.get("preset", "policy")))
        for (part, key, _), value in zip(axes, chosen, strict=True):
            one[part][key] = value
            name += f"-{key}-{re.sub('[^A-Za-z0-9.]+', '_', str(value))}"
        yield one | {"name": name}
