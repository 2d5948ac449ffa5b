"""What pages say of the traffic that runs had."""

from archsim.specs.workload import OF_MODEL, PROMPT_TOKENS, SyntheticSpec, WorkloadSpec

THREE_NUMBERS = (
    "The routing is not that of these models. It is generated from three numbers (popularity, taste and stickiness), "
    "which are medians over recorded traces of other models. Speed-ups come out too high: the busiest die has 1.6 to "
    "1.8 times the mean load, where recorded routing gives 2.5 to 3.0 times. `like: model` takes the traffic preset of "
    "each model instead."
)


def traffic_notes(workload: WorkloadSpec) -> list[str]:
    """Sentences about the traffic of an experiment; none for recorded routing."""
    if isinstance(workload.trace, str):
        return []
    synthetic = workload.trace.synthetic
    if synthetic.like is None:
        return [THREE_NUMBERS]
    return [prefill_note(synthetic)] if synthetic.prompt_tokens is None else []


def prefill_note(synthetic: SyntheticSpec) -> str:
    tokens, like = synthetic.prompt_tokens, synthetic.like
    if tokens == 0:
        return "There is no prefill (`prompt_tokens: 0`)."
    if tokens is not None or like is None:
        return f"Every request begins with a prefill of {PROMPT_TOKENS if tokens is None else tokens} prompt tokens."
    whose = "each model's preset" if like == OF_MODEL else f"the preset {like}"
    return (
        f"Every request begins with a prefill, whose length is sampled from {whose}. `prompt_tokens: N` sets one "
        "length, and `prompt_tokens: 0` leaves the prefill out."
    )
