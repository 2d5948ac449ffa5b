"""Validates a tree into a spec, and reports every problem as file:line: key.path: problem."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError

from archsim.base import errors, yaml
from archsim.base.fields import KeyProblem, Spec
from archsim.base.quantities import describe

S = TypeVar("S", bound=Spec)
_OF_UNITS = frozenset({"bytes", "per", "s", "ns", "hz", "flop", "bits", "w", "j", "mm2", "usd", "gb", "tb"})
_MISSING = "required key is missing"
_TAG = re.compile(r"\[key\]|<.*>|(dict|list|tuple|literal)\[.*\]|function-.*|is-instance\[.*\]")
_TOO_SHORT = "needs at least one item"


def validate(
    kind: type[S],
    tree: yaml.Tree,
    keys: yaml.Keys = (),
    problems: Mapping[yaml.Keys, str] = MappingProxyType({}),
    *,
    code: bool = True,
) -> S:
    """The spec in ``tree`` at ``keys``. Raises SpecError with one line per problem.

    problems: found earlier, at these keys; reported with the others, and replace any other problem at these keys.
    code: import the users' own functions that are named; without, they may be gone, as results outlive files.
    """
    lines = list(problems.values())
    try:
        context = {"from_yaml": True} if code else None
        spec = kind.model_validate(tree.get(keys), context=context, by_alias=True, by_name=False)
    except ValidationError as error:
        found = list(_problems(kind, error))
        shown = [(keys + at, problem) for at, problem in found if not _follows(at, problem, found)]
        lines += [
            f"{tree.place(at)}: {problem}"
            for at, problem in shown
            if not any(at[: len(bad)] == bad for bad in problems)
        ]
    if lines:
        raise errors.SpecError("\n".join(dict.fromkeys(lines))) from None
    return spec


def _follows(at: yaml.Keys, problem: str, found: list[tuple[yaml.Keys, str]]) -> bool:
    """Whether a problem follows from another: a missing key that is misspelt, a short list of bad items."""
    if problem == _MISSING:
        return any(other[:-1] == at[:-1] and text.endswith(f"did you mean {at[-1]!r}?") for other, text in found)
    return problem == _TOO_SHORT and any(len(other) > len(at) and other[: len(at)] == at for other, _ in found)


def _problems(kind: type[Spec], error: ValidationError) -> Iterator[tuple[yaml.Keys, str]]:
    listed = error.errors(include_url=False)
    # Tags of unions, <like this> or of pydantic's own, are not keys.
    places = [tuple(key for key in each["loc"] if not _is_tag(key)) for each in listed]
    # A word in place of a mapping: whoever wrote a mapping hears of the mapping alone, anybody else of both.
    words = {
        at: each["ctx"]["expected"].replace("'", "")
        for at, each in zip(places, listed, strict=True)
        if each["type"] == "literal_error" and _is_tag(each["loc"][-1])
    }
    for at, each in zip(places, listed, strict=True):
        cause = each.get("ctx", {}).get("error")
        if isinstance(cause, KeyProblem):
            yield at + cause.keys, str(cause)
        elif isinstance(cause, ValueError):
            yield at, str(cause)
        elif each["type"] == "literal_error" and _is_tag(each["loc"][-1]):
            if all(other is each or other_at[: len(at)] != at for other_at, other in zip(places, listed, strict=True)):
                yield at, _problem(kind, at, each)
        elif each["type"] != "default_factory_not_called":
            yield at, _problem(kind, at, each, words.get(at, ""))


def _is_tag(key: object) -> bool:
    return isinstance(key, str) and _TAG.fullmatch(key) is not None


def _problem(kind: type[Spec], at: yaml.Keys, error: Any, word: str = "") -> str:
    """pydantic's errors in archsim's wording. word: what may stand in place of a mapping, such as none."""
    found = error["input"]
    match error["type"]:
        case "extra_forbidden":
            known = keys_of(_type_at(kind, at[:-1]))
            ways, key = getattr(_type_at(kind, at[:-1]), "WAYS", {}), str(at[-1])
            if ":" in key and key.partition(":")[0] in known:
                return f"unknown key; write a space after the colon: '{key.replace(':', ': ', 1)}'"
            if other := next((each for each in (f"{key}s", key.removesuffix("s")) if each in known), ""):
                return f"unknown key; did you mean {other!r}?"
            near, words = errors.nearest(key, known), key.casefold().split("_")
            if getattr(_type_at(kind, at[:-1]), "WHOLE", False):
                words = []
            # Of a compound, the last that is known, also in plural; a near key that is one of its words is no typo,
            # unless all others are those of a unit.
            besides = {*words} - {near, (near or "").removesuffix("s")}
            words = [] if near and (len(besides) == len({*words}) or besides <= _OF_UNITS) else words[::-1]
            terms = [key, *(form for word in words for form in (word, f"{word}s"))]
            if way := next((ways[each] for each in terms if each in ways), ""):
                return f"unknown key; {way}"
            rest = f"; {ways['']}" if "" in ways and not near else ""
            listed = f" (known: {', '.join(known)})" if known else ""
            return f"unknown key; did you mean {near!r}?" if near else f"unknown key{listed}{rest}"
        case "missing":
            return _MISSING
        case "literal_error":
            valid = _literals(_type_at(kind, at))
            return f"unknown value {found!r}{errors.did_you_mean(str(found), valid)} (valid: {', '.join(valid)})"
        case "string_type":
            quoted = f"; put it in quotes: '{found}'" if isinstance(found, int | float) else ""
            return f"expected text, not {describe(found)}{quoted}"
        case "tuple_type" | "list_type":
            keys = keys_of(_type_at(kind, (*at, 0)))
            listed = f" of mappings with the keys {', '.join(keys)}" if keys and not isinstance(found, str) else ""
            hint = f"; write [{found}]" if isinstance(found, str) else ""
            return f"expected a list{listed}, not {describe(found)}{hint}"
        case "model_type" | "model_attributes_type" | "dict_type":
            keys = keys_of(_type_at(kind, at))
            listed = f" with the keys {', '.join(keys)}" if keys else ""
            missing = yaml.NO_COLON.fullmatch(found) if isinstance(found, str) else None
            hint = f"; write '{missing['key']}: {missing['rest']}'" if missing and missing["key"] in keys else ""
            file = next((key for key in ("trace", "file") if key in keys), None)
            if not hint and file and isinstance(found, str) and "." in found:
                hint = f"; of a file, write {{{file}: {found}}}"
            elif not hint and not word and keys and at and isinstance(at[-1], str) and not isinstance(found, list):
                ways = getattr(_type_at(kind, at[:-1]), "WAYS", {}) if isinstance(found, str) else {}
                way = ways.get(at[-1], "")  # of a word in place of the mapping
                alone = f"one of them alone is {at[-1]}.{keys[0]}, and so on"
                hint = f"; {alone if not way or way.endswith(f'.{at[-1]}') else way}"
            return f"expected a mapping{listed}{f', or {word}' if word else ''}, not {describe(found)}{hint}"
        case "too_short":
            return _TOO_SHORT
        case "string_too_short":
            return "is empty text"
        case "expected":
            return f"{error['msg']}, not {describe(found)}"
        case _:
            return str(error["msg"])


def _literals(kind: Any) -> list[str]:
    """The values of a literal type, also of one that may be null."""
    parts = [part for each in get_args(kind) for part in (get_args(each) or (each,))]
    return [str(part) for part in parts if part is not type(None)]


def keys_of(kind: Any) -> list[str]:
    """The YAML keys of a spec class, in order (none for anything else)."""
    if not (isinstance(kind, type) and issubclass(kind, Spec)):
        return []
    return [field.alias or name for name, field in kind.model_fields.items()]


def _type_at(kind: Any, keys: yaml.Keys) -> Any:
    """The declared type at ``keys`` below a spec class, or None."""
    for key in keys:
        if isinstance(kind, type) and issubclass(kind, Spec):
            fields = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
            kind = _plain(fields.get(str(key)))
        elif get_origin(kind) in (tuple, dict):
            kind = _plain(get_args(kind)[0 if get_origin(kind) is tuple else 1])
        else:
            return None
    return kind


def _plain(kind: Any) -> Any:
    """A type without annotations; for a union, the spec class in it."""
    while hasattr(kind, "__metadata__"):
        kind = kind.__origin__
    specs = [part for part in map(_plain, get_args(kind)) if isinstance(part, type) and issubclass(part, Spec)]
    return specs[0] if specs and get_origin(kind) not in (tuple, dict) else kind
