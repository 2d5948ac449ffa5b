"""Deployments for tests of serving: step times of a few lines, without laws."""

import numpy as np

from archsim.serving.clock import StepTable
from archsim.serving.requests import Requests, without_hashes
from archsim.serving.simulate import Pool

MS = 1e6


def table(base_ns: float = 2e6, token_ns: float = 1e4, attention_ns: float = 1e3) -> StepTable:
    """``base_ns`` an iteration, ``token_ns`` a token, ``attention_ns`` a decode or prompt."""
    tokens = np.arange(4097) * token_ns
    none = np.zeros(4097)
    flat = np.log(attention_ns)
    return StepTable(
        tokens,
        none,
        none,
        none,
        none,
        none,
        none,
        np.full((40, 80), flat),
        np.full((40, 70, 60), flat),
        np.array([base_ns, 0, 0, 0, 1, 1]),
    )


def pool(blocks: int = 200, instances: int = 1, ranks: int = 1, **times: float) -> Pool:
    return Pool(instances, ranks, blocks, table(**times))


def closed(sizes: list[tuple[int, int]], clients: int) -> Requests:
    """(input, output) of requests of a closed loop."""
    prompt, output = np.array(sizes).T
    return without_hashes(np.zeros(len(sizes)), prompt, output, clients)


def opened(rows: list[tuple[float, int, int]]) -> Requests:
    """(arrival ms, input, output)."""
    arrival, prompt, output = np.array(rows, float).T
    return without_hashes(np.sort(arrival) * MS, prompt, output)
