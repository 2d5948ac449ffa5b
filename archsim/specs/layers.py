"""Sets of layers of a model: spaced evenly, or listed."""

from typing import Annotated, Any

from pydantic import ValidationInfo, field_validator, model_serializer, model_validator

from archsim.base.text.fields import KeyProblem, Spec, count


class LayerSet(Spec):
    """Layers ``first``, ``first + every``, … up to ``last``, or a list of layers; layer ids start at 0."""

    first: Annotated[int, count(0, 9999)]
    last: Annotated[int, count(0, 9999)]
    every: Annotated[int, count(1, 9999)] = 1
    # The layers themselves, in order, where they are not spaced evenly.
    listed: tuple[int, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, given: Any) -> Any:
        return cls.keys_of(given) if isinstance(given, list | tuple) else given

    @field_validator("last")
    @classmethod
    def _not_before_first(cls, last: int, info: ValidationInfo) -> int:
        first = info.data.get("first", 0)
        if last < first:
            raise ValueError(f"last layer {last} is before the first, {first}")
        return last

    @staticmethod
    def keys_of(ids: Any) -> dict[str, Any]:
        """The keys of the set of these layers: evenly spaced where they are."""
        for at, each in enumerate(ids):
            if type(each) is not int or not 0 <= each <= 9999:
                raise KeyProblem((at,), f"expected a layer, 0 to 9999, not {each!r}")
        ordered = sorted(set(ids))
        if len(ordered) != len(ids):
            raise ValueError("a layer is listed twice")
        if not ordered:
            return {"first": 0, "last": 0, "listed": ()}
        every = ordered[1] - ordered[0] if len(ordered) > 1 else 1
        spaced = {"first": ordered[0], "last": ordered[-1], "every": every}
        return spaced if ordered == list(range(ordered[0], ordered[-1] + 1, every)) else spaced | {
            "every": 1, "listed": tuple(ordered)
        }  # fmt: skip

    @property
    def ids(self) -> tuple[int, ...]:
        """The layers, in order."""
        return tuple(range(self.first, self.last + 1, self.every)) if self.listed is None else self.listed

    @model_serializer
    def _as_written(self) -> Any:
        if self.listed is not None:
            return list(self.listed)
        return {"first": self.first, "last": self.last, "every": self.every}
