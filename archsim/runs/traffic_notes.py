"""Notes on generated traffic: what it is not, and the prefill that a preset brings."""

from collections.abc import Mapping
from typing import Any

from archsim.specs.workload import OF_MODEL, PROMPT_TOKENS

THREE_NUMBERS = (
    "the routing is generated from three numbers (popularity, taste, stickiness: medians of recorded traces of other "
    "models) and is not that of these models: the busiest die has 1.6 to 1.8 times the mean load where recorded "
    "routing has 2.5 to 3.0, so speed-ups come out too high; `like: model` takes the traffic preset of each model"
)


def traffic_notes(trace: str | Mapping[str, Any]) -> list[str]:
    """Sentences about ``workload.trace``, as it stands in a resolved experiment; none for recorded routing."""
    if isinstance(trace, str):
        return []
    synthetic = trace["synthetic"]
    if synthetic.get("like") is None:
        return [THREE_NUMBERS]
    return [prefill_told(synthetic)] if synthetic.get("prompt_tokens") is None else []


def prefill_told(synthetic: Mapping[str, Any]) -> str:
    """What generated requests begin with."""
    tokens, like = synthetic.get("prompt_tokens"), synthetic.get("like")
    if tokens == 0:
        return "no prefill: `prompt_tokens: 0`"
    if tokens is not None or like is None:
        return f"every request begins with a prefill of {PROMPT_TOKENS if tokens is None else tokens} prompt tokens"
    whose = "of each model's preset" if like == OF_MODEL else f"of the preset {like}"
    return (
        f"every request begins with a prefill, of the prompt lengths {whose}: `prompt_tokens: N` sets one length, "
        "`prompt_tokens: 0` leaves the prefill out"
    )
