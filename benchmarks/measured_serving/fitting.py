"""Constants of serving engines from measured closed loops, by groups of measurements that are fitted or judged.

Under the schedule that a simulation finds, mean TTFT and TPOT are sums of parts, each in proportion to some constants:
one simulation of a point gives all their derivatives, and constants of folds cost no further one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from archsim.base.units import NS_PER_MS
from archsim.iteration.constants import FactorRow, HostFile, host_file, shape_of
from archsim.serving.simulate import Pool, Served
from measured_serving.accuracy import SYSTEMS, Case, case_dtype, host_of_case, pool_of, serve_point

# ms of kernels other than routed experts and of these, in iterations without and with prompts; of the host's constants;
# and of links, which no constant changes.
TIMES = ("rest_decodes", "rest_prompts", "routed_decodes", "routed_prompts")
HOST = ("iteration", "layer", "sequence", "eager_layer", "request", "front_end")
PARTS = (*TIMES, *HOST, "links")
SCALED = {"decodes": (0, 2), "prompts": (1, 3), "routed": (2, 3)} | {n: (i,) for i, n in enumerate(HOST, len(TIMES))}
ENGINE, GPU, CELL = ("engine", "experts"), ("experts", "gpu", "dtype"), ("engine", "experts", "gpu", "dtype")
FOLDS = 5
OUTLIER = 0.15  # errors above count less and less (Cauchy's loss)
ROUNDS, MOST_STEP, CLOSE = 20, 0.5, 1e-3  # of Gauss-Newton, in ln of constants
LEAST_MS = 1e-6


class Term(NamedTuple):
    """A constant for each value of ``keys``. ``spread``: of its ln before anything is measured, around ln ``start``
    (ms, or 1); of 0.1 to 1, by folds of the groups, and of what these tell no difference the least.
    """

    name: str
    keys: tuple[str, ...]
    spread: float
    start: float = 1.0


TERMS = (
    Term("iteration", ENGINE, 0.7, 0.6),
    Term("layer", ENGINE, 1.0, 0.005),
    Term("sequence", ENGINE, 0.7, 0.015),
    Term("eager_layer", ENGINE, 0.7, 0.35),
    Term("request", ENGINE, 1.0, 20.0),
    Term("request", (*ENGINE, "shape"), 1.5),
    Term("front_end", ENGINE, 0.7, 0.6),
    Term("routed", GPU, 0.4),
    Term("decodes", ENGINE, 0.3),
    Term("prompts", ENGINE, 0.1),
    *(Term(name, CELL, 0.2) for name in ("decodes", "prompts")),
    Term("decodes", (*CELL, "shape"), 0.2),
    Term("prompts", (*CELL, "shape"), 0.4),
)
OF_HOSTS = tuple((name, ENGINE) for name in HOST)  # terms that are constants; others are factors
Constant = tuple[Term, tuple]


class Means(NamedTuple):
    """A measured point. ``parts``: float64[2, part] ms of its TTFT and TPOT for constants of 1 (ms); ``measured``:
    float64[2] ms.
    """

    keys: Mapping[str, str | bool]
    group: str
    parts: np.ndarray
    measured: np.ndarray


def fold_of(groups: Iterable[str]) -> dict[str, int]:
    """Every fifth group in order of their names."""
    return {group: at % FOLDS for at, group in enumerate(sorted(set(groups)))}


def means_of(case: Case, known: HostFile | None = None) -> Iterator[Means]:
    """All points of a case. ``known``: constants under which the schedule is found."""
    first, model = case.rows[0], case.engine.model
    host = host_of_case(case, known)
    pool = pool_of(case, host)
    keys = {"engine": first["backend"], "experts": bool(first["is_moe"]), "gpu": SYSTEMS[first["system"]][0],
            "dtype": case_dtype(first), "shape": shape_of(model)}  # fmt: skip
    laws = np.array([host.decodes, host.prompts, host.decodes * host.experts, host.prompts * host.experts])
    for row in case.rows:
        served = serve_point(pool, host, row, logged=True)
        parts = _parts(served, pool, model.layers, host.request_ns + host.front_end_ns)
        parts[:, : len(TIMES)] /= laws
        yield Means(keys, row["group"], parts, np.array([row["ttft_ms"], row["tpot_ms"]]))


def _parts(served: Served, pool: Pool, layers: int, before_ns: float) -> np.ndarray:
    """float64[2, part] ms, of TTFT and TPOT, of what runs while requests wait and decode."""
    log, found = served.log, served.requests
    begin, end, chunks = log["begin_ns"], log["end_ns"], log["chunks"] > 0
    requests = np.ceil((log["decodes"] + log["chunks"]) / pool.ranks)
    tokens = np.ceil((log["decodes"] + log["chunk_tokens"]) / pool.ranks)
    iteration_ns, sequence_ns, eager_ns, graph = pool.table.host[:4]
    eager = (tokens > graph) & (chunks | (graph > 0))
    linked, routed = log["linked_ns"] + log["moved_ns"], log["experts_ns"] - log["moved_ns"]
    rest = end - begin - routed - linked - iteration_ns - requests * sequence_ns - eager * eager_ns
    once = np.full(len(log), NS_PER_MS)
    columns = (rest * ~chunks, rest * chunks, routed * ~chunks, routed * chunks, once, once * layers,
               once * requests, once * eager * layers, linked)  # fmt: skip
    edges, sums = np.stack([begin, end], axis=1).ravel(), np.zeros((2 * len(log), len(columns)))
    sums[1::2] = np.cumsum(np.stack(columns, axis=1), axis=0)
    sums[2::2] = sums[1:-1:2]

    def until(at: np.ndarray) -> np.ndarray:
        return np.stack([np.interp(at, edges, each) for each in sums.T], axis=1)

    arrival, first, last = found["arrival_ns"], found["first_ns"], found["last_ns"]
    waited = until(first) - until(np.minimum(arrival + before_ns, first))
    decoded = (until(last) - until(first)) / np.maximum(found["output"] - 1, 1)[:, None]
    own = np.array([[1.0, _turn(arrival)], [0.0, 0.0]])
    ran = np.stack([waited.mean(axis=0), decoded.mean(axis=0)]) / NS_PER_MS
    return np.concatenate([ran[:, :-1], own, ran[:, -1:]], axis=1)


def _turn(arrival: np.ndarray) -> float:
    """Mean place among requests that come at once: the front end takes one after the other."""
    _, many = np.unique(arrival, return_counts=True)
    return float((many * (many + 1) / 2).sum() / many.sum())


def fitted(means: Sequence[Means]) -> HostFile:
    """The constants: Gauss-Newton on ln of TTFT and TPOT; a group counts once, however many points it has."""
    constants: dict[Constant, int] = {}
    owned = [
        [constants.setdefault((term, tuple(each.keys[key] for key in term.keys)), len(constants)) for term in TERMS]
        for each in means
    ]
    start = np.log([term.start for term, _ in constants])
    spread = np.array([term.spread for term, _ in constants])
    at, parts = np.array(owned), np.stack([each.parts for each in means])
    real = np.log([each.measured for each in means])
    names = [each.group for each in means]
    count = dict(zip(*np.unique(names, return_counts=True), strict=True))
    weight = np.array([count[name] for name in names])[:, None] ** -0.5
    found = start.copy()
    for _ in range(ROUNDS):
        off, slopes = _off(found[at], parts, real)
        weights = weight / np.sqrt(1 + (off / OUTLIER) ** 2)
        matrix = np.zeros((*off.shape, len(found)))
        for term in range(len(TERMS)):
            matrix[np.arange(len(at)), :, at[:, term]] += slopes[:, :, term] * weights
        flat = matrix.reshape(-1, len(found))
        right = flat.T @ (off * weights).ravel() + (OUTLIER / spread) ** 2 * (found - start)
        step = np.linalg.solve(flat.T @ flat + np.diag((OUTLIER / spread) ** 2), -right)
        found += np.clip(step, -MOST_STEP, MOST_STEP)
        if np.abs(step).max() < CLOSE:
            break
    return _file(dict(zip(constants, np.exp(found), strict=True)), len(count))


def _off(ln: np.ndarray, parts: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ln (simulated / measured) float64[point, 2], and its derivatives by ln of the constants float64[point, 2, term];
    ``ln``: of constants float64[point, term].
    """
    scale = np.zeros((len(ln), len(PARTS)))
    for at, term in enumerate(TERMS):
        scale[:, SCALED[term.name]] += ln[:, at : at + 1]
    each = parts * np.exp(scale)[:, None]
    total = np.maximum(each.sum(axis=2), LEAST_MS)
    slopes = np.stack([each[:, :, SCALED[term.name]].sum(axis=2) for term in TERMS], axis=2) / total[:, :, None]
    return np.log(total) - real, slopes


def _file(values: Mapping[Constant, float], groups: int) -> HostFile:
    """The shipped file with other constants; engines that were not measured keep theirs."""
    shipped, factors = host_file(), {}
    hosts = []
    for row in shipped.hosts:
        own = {term.name: ns * NS_PER_MS for (term, key), ns in values.items()
               if (term.name, term.keys) in OF_HOSTS and key == (row.engine, row.experts)}  # fmt: skip
        hosts.append(row.model_copy(update=own))
    for (term, key), value in values.items():
        routed_of_dense = term.name == "routed" and not dict(zip(term.keys, key, strict=True))["experts"]
        if (term.name, term.keys) not in OF_HOSTS and not routed_of_dense:
            factors.setdefault((term.keys, key), {})[term.name] = value
    rows = tuple(FactorRow(**dict(zip(keys, key, strict=True)), **own) for (keys, key), own in factors.items())
    return shipped.model_copy(update={"groups": groups, "hosts": tuple(hosts), "factors": rows})
