"""Which MoE layers of each model ran, in words."""

from collections.abc import Mapping

Parts = Mapping[str, tuple[tuple[int, ...], int]]  # as of ``archsim.runs.results.layers_that_ran``


def partial(parts: Parts) -> Parts:
    """The models of which some run had fewer layers than the model has."""
    return {model: (ran, every) for model, (ran, every) in parts.items() if ran != (every,)}


def told(parts: Parts) -> str:
    """``3 of 58 MoE layers of deepseek-v3, all MoE layers of qwen3``; ``MoE layers of …`` if every run had all
    of them.
    """
    if not partial(parts):
        return f"MoE layers of {', '.join(parts)}"
    return ", ".join(f"{_part(*parts[model])} MoE layers of {model}" for model in parts)


def _part(ran: tuple[int, ...], every: int) -> str:
    if ran == (every,):
        return "all"
    *rest, last = map(str, ran)
    return f"{', '.join(rest)} or {last} of {every}" if rest else f"{last} of {every}"
