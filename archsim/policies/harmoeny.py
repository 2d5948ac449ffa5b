"""HarMoEny: overloaded GPUs move tokens in batches large enough to pay for fetching an expert.

Doucet et al., HarMoEny, Algorithm 2, and its published code; described in Libra, section 2.
Every expert starts on its home GPU e // (experts / GPUs). A destination fetches the experts that it does not hold.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from archsim.policies.load import checked_count, checked_name, checked_tokens


class TokenSchedule(NamedTuple):
    load: np.ndarray  # int64[gpu]
    moves: np.ndarray  # int64[move, 5] in order: source, expert, from, to, tokens


def harmoeny(
    tokens: ArrayLike, gpus: int, threshold: int, rule: str = "released", home: ArrayLike | None = None
) -> TokenSchedule:
    """Balance ``tokens[source, expert]`` towards floor(total / gpus) by moves from the most to the least loaded GPU.

    A destination never ends above that average, so the largest load never grows. It stops when the destination has no
    room for ``threshold`` tokens or fewer remain to be moved. ``rule``: what moves next. "released": the expert with
    most tokens on the GPU over all senders, as in the published code; "paper": the sender with most tokens there and
    its largest expert (Algorithm 2). Ties to the lowest index. ``home[expert]``: GPUs on which experts start, by
    default e // (experts / gpus). ValueError: a number of experts that is not a multiple of the GPUs, without ``home``.
    """
    tokens = checked_tokens(tokens, ("source", "expert"))
    checked_count(gpus, "gpus")
    checked_count(threshold, "threshold", least=0)
    checked_name(rule, "rule", ("released", "paper"))
    sources, experts = tokens.shape
    if home is None and experts % gpus:
        raise ValueError(f"{experts} experts do not divide among {gpus} GPUs")
    on = np.zeros((gpus, sources, experts), np.int64)  # tokens of a sender for an expert, by the GPU that runs them
    home = np.arange(experts) // max(1, experts // gpus) if home is None else np.asarray(home)
    if home.shape != (experts,) or (experts and not 0 <= home.min() <= home.max() < gpus):
        raise ValueError(f"home has shape {home.shape}; expected a GPU 0..{gpus - 1} for each of {experts} experts")
    on[home, :, np.arange(experts)] = tokens.T
    load, moves = on.sum(axis=(1, 2)), []
    average = int(load.sum()) // gpus
    portions = _moves_off if rule == "released" else _paper
    while load.max() > average:
        origin, destination = int(load.argmax()), int(load.argmin())
        if load[destination] + threshold > average:
            break
        chosen = portions(on[origin], int(load[origin]) - average, average - int(load[destination]), threshold)
        if not chosen:
            break
        for source, expert, moved in chosen:
            on[origin, source, expert] -= moved
            on[destination, source, expert] += moved
            load[origin] -= moved
            load[destination] += moved
            moves.append((source, expert, origin, destination, moved))
    return TokenSchedule(load, np.array(moves, np.int64).reshape(-1, 5))


def _moves_off(here: np.ndarray, surplus: int, room: int, threshold: int) -> list[tuple[int, int, int]]:
    """(source, expert, tokens) to move: the largest expert, its largest senders first, while surplus and room last."""
    expert = int(here.sum(axis=0).argmax())
    left = here[:, expert].copy()
    chosen: list[tuple[int, int, int]] = []
    if left.sum() < threshold:
        return chosen
    while surplus > 0 and room > 0 and left.max() > 0:
        source = int(left.argmax())
        moved = min(int(left[source]), room)
        chosen.append((source, expert, moved))
        left[source] -= moved
        surplus -= moved
        room -= moved
    return chosen


def _paper(here: np.ndarray, surplus: int, room: int, threshold: int) -> list[tuple[int, int, int]]:
    source = int(here.sum(axis=1).argmax())
    expert = int(here[source].argmax())
    moved = min(int(here[source, expert]), room)
    return [(source, expert, moved)] if here[source, expert] >= threshold and moved > 0 else []
