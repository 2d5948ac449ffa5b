"""What the machine is asked to do: a routing trace (or synthetic traffic), batch sizes and decode steps."""

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, field_validator

from archsim.specs.base import Spec, count, number, refuse_duplicates

# Iterations are int16 in traces; iteration 0 is the prefill.
DecodeSteps = count(1, 32766)
BatchSize = count(1, 10_000_000)
Seed = count(0, 2**63 - 1)


class SyntheticSpec(Spec):
    """Generated routing: popular experts, tastes of requests, experts that stay from one token to the next.

    How the parameters act, and the recorded routing from which their defaults were measured: archsim.workload.synthetic.
    """

    # Number of requests; null: as many as the largest batch asks for.
    requests: count(1, 10_000_000, none=True) = None
    prompt_tokens: count(0, 1_000_000) = 16
    # Decode steps of every request; null: as many as the workload asks for.
    decode_steps: count(1, 32766, none=True) = None
    seed: Seed = 0
    # Standard deviation of the log-popularity of a layer's experts; 0: all alike.
    popularity_skew: number(0, 10) = 0.7
    # Probability that a request refuses an expert it does not prefer; 0: requests are alike.
    request_taste: number(0, 1) = 0.75
    # Probability that a token keeps an expert of the token before it.
    stickiness: number(0, 1) = 0.15


class SyntheticTrace(Spec):
    """``trace: {synthetic: {...}}``."""

    synthetic: SyntheticSpec


def _kind_of_trace(value: Any) -> str | None:
    if isinstance(value, str):
        return "<path>"
    return "<synthetic>" if isinstance(value, dict | SyntheticTrace) else None


class WorkloadSpec(Spec):
    """Which requests are served, and how many at a time."""

    # The path of an .npz file or of a directory in the data set's JSON layout, or synthetic traffic.
    trace: Annotated[
        Annotated[str, Field(min_length=1), Tag("<path>")] | Annotated[SyntheticTrace, Tag("<synthetic>")],
        Discriminator(
            _kind_of_trace,
            custom_error_type="expected",
            custom_error_message="expected the path of a trace, or {synthetic: {...}}",
        ),
    ]
    # The first N requests in file order; beyond the end of the trace, drawn with replacement.
    batch: tuple[BatchSize, ...] = Field(min_length=1)
    # At most; requests that end earlier stop contributing. 127 after the prefill, as in the published simulator.
    decode_steps: DecodeSteps = 127
    # Of the draw with replacement.
    seed: Seed = 0

    @field_validator("batch", mode="before")
    @classmethod
    def _one_or_several(cls, batch: Any) -> Any:
        return batch if isinstance(batch, list | tuple) else (batch,)

    @field_validator("batch")
    @classmethod
    def _each_once(cls, batch: tuple[int, ...]) -> tuple[int, ...]:
        refuse_duplicates("batch", list(batch))
        return batch
