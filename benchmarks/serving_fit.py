"""Fits the constants of configs/serving/hosts.yaml to the groups of measurements that it names (``fitted_on``).

Gauss-Newton on the logarithms of TTFT and TPOT with weights that lessen outliers; derivatives are differences of whole
simulations. ``first_after`` is the best of a few. Prints the rows of the file.

.venv/bin/python benchmarks/serving_fit.py ../shared/data/serving/silicon_agg.csv [engine]
"""

import sys
from pathlib import Path

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.engine.iteration_parts import has_experts
from archsim.serving.deployment import with_host
from archsim.serving.hosts import host_file
from archsim.serving.tables import Host
from archsim.studies.serving.accuracy import Case, case_of, judged_rows, times_of

ROUNDS, STREAMS = 4, (1, 5, 10, 20)
MOST_CLIENTS = 128  # points with more take long, and are judged all the same
STEPS = np.array([0.3e6, 0.01e6, 0.1e6, 10e6, 0.1])  # of iteration, sequence, prompt a layer, request, experts
OUTLIER = 0.15  # errors above count less
Key = tuple[str, bool]
Factor = tuple[str, str]


class Fit:
    """Constants by engine and kind of model, and factors of experts by GPU and dtype."""

    def __init__(self, cases: list[Case]):
        self.cases = cases
        self.pools = [with_host(case.laws, case.notes, case.engine, case.scheduler, Host(), 1).pool for case in cases]
        self.keys = [(case.rows[0]["backend"], has_experts(case.engine.model)) for case in cases]
        self.factors = [(case.engine.calibration.gpu, case.engine.precision.experts) for case in cases]
        self.hosts = {
            (row.engine, row.experts): np.array([row.iteration, row.sequence, row.prompt_layer, row.request])
            for row in host_file().hosts
        }
        self.streams = {(row.engine, row.experts): row.first_after for row in host_file().hosts}
        self.experts = {(row.gpu, row.dtype): row.factor for row in host_file().experts}

    def errors(self, at: int, move: int | None = None) -> np.ndarray:
        """float64[row, 2]: ln (simulated / measured) of TTFT and TPOT of a case; ``move``: of STEPS."""
        case, pool = self.cases[at], self.pools[at]
        values = self.hosts[self.keys[at]].copy()
        factor = self.experts.get(self.factors[at], 1.0) if self.keys[at][1] else 1.0
        if move is not None and move < 4:
            values[move] += STEPS[move]
        elif move is not None:
            factor += STEPS[move]
        host = Host(values[0], values[1], values[2] * case.engine.model.layers, values[3], self.streams[self.keys[at]])
        moe = case.laws.by_tokens[:, -2]
        table = pool.table._replace(
            host=np.array([host.iteration_ns, host.sequence_ns, host.prompt_ns]),
            shared=pool.table.shared + (factor - 1) * moe,
        )
        found = [times_of(case, pool._replace(table=table), host, row) for row in case.rows]
        real = [(row["ttft_ms"], row["tpot_ms"]) for row in case.rows]
        return np.log(np.array(found) / np.array(real))

    def round(self) -> float:
        """One step; returns the mean absolute error before it."""
        columns = [(key, move) for key in sorted(set(self.keys)) for move in range(4)]
        columns += [(factor, 4) for factor in sorted(set(self.factors)) if factor in self.experts]
        number = {column: i for i, column in enumerate(columns)}
        rows, right = [], []
        for at in range(len(self.cases)):
            now = self.errors(at)
            block = np.zeros((now.size, len(columns)))
            for move in range(5):
                column = number.get((self.keys[at] if move < 4 else self.factors[at], move))
                if column is not None and (move < 4 or self.keys[at][1]):
                    block[:, column] = (self.errors(at, move) - now).ravel()
            rows.append(block)
            right.append(now.ravel())
        matrix, off = np.concatenate(rows), np.concatenate(right)
        weight = np.sqrt(1 / np.maximum(np.abs(off) / OUTLIER, 1.0))
        ridge = 0.02 * np.eye(len(columns)) * np.sqrt(len(off)) / 10
        step = np.linalg.lstsq(
            np.concatenate([matrix * weight[:, None], ridge]),
            np.concatenate([-off * weight, np.zeros(len(columns))]), rcond=None,
        )[0]  # fmt: skip
        for (where, move), change in zip(columns, step, strict=True):
            if move < 4:
                self.hosts[where][move] = max(0.0, self.hosts[where][move] + change * STEPS[move])
            else:
                self.experts[where] = max(0.2, self.experts[where] + change * STEPS[move])
        return float(np.abs(off).mean())

    def choose_streams(self) -> None:
        """The best of STREAMS for each engine, by the mean absolute error of TTFT."""
        for key in sorted(set(self.keys)):
            mine = [at for at in range(len(self.cases)) if self.keys[at] == key]
            tried = {}
            for stream in STREAMS:
                self.streams[key] = stream
                tried[stream] = float(np.abs(np.concatenate([self.errors(at)[:, 0] for at in mine])).mean())
            self.streams[key] = min(tried, key=lambda stream: tried[stream])


def main(path: str, engine: str = "") -> None:
    groups: dict[str, list] = {}
    for row in judged_rows(Path(path)):
        if row["group"] in host_file().fitted_on and row["concurrency"] <= MOST_CLIENTS and engine in row["backend"]:
            groups.setdefault(row["group"], []).append(row)
    cases = []
    for rows in groups.values():
        try:
            cases.append(case_of(rows))
        except ArchsimError:
            continue
    fit = Fit(cases)
    for number in range(ROUNDS):
        print(f"# round {number}: {fit.round():.3f}", flush=True)
        if number == 1:
            fit.choose_streams()
    for (engine, experts), (iteration, sequence, prompt, request) in sorted(fit.hosts.items()):
        print(
            f"  - {{engine: {engine}, experts: {str(experts).lower()}, iteration: {iteration / 1e6:.3f} ms, sequence: "
            f"{sequence / 1e6:.4f} ms, prompt_layer: {prompt / 1e6:.4f} ms, request: {request / 1e6:.1f} ms, "
            f"first_after: {fit.streams[engine, experts]}}}"
        )
    for (gpu, dtype), factor in sorted(fit.experts.items()):
        print(f"  - {{gpu: {gpu}, dtype: {dtype}, factor: {factor:.2f}}}")


if __name__ == "__main__":
    main(*sys.argv[1:])
