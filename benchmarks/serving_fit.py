"""Fits the constants of configs/serving/hosts.yaml to the groups of measurements that it names (``fitted_on``).

Gauss-Newton on the logarithms of TTFT and TPOT with weights that lessen outliers; derivatives are differences of whole
simulations. Begins at the constants of the file; prints its rows. With an engine, only its host is fitted, and with a
number, ``first_after`` is that: the one with the least error is shipped.

.venv/bin/python benchmarks/serving_fit.py ../shared/data/serving/silicon_agg.csv [engine [first_after]]
"""

import sys
from pathlib import Path

import numpy as np

from archsim.base.errors import ArchsimError
from archsim.iteration import layers
from archsim.iteration.layers import has_experts
from archsim.serving import tables
from archsim.serving.deployment import with_host
from archsim.serving.hosts import host_file
from archsim.serving.tables import Host, captured
from archsim.studies.serving.accuracy import Case, case_of, host_of_case, judged_rows, times_of

ROUNDS = 3
MOST_CLIENTS, MOST_OF_LONG, LONG = 128, 16, 8192  # points with more (of long outputs) take long, and are judged, too
# Of iteration, sequence, eager layer, request, front end, experts, products
STEPS = np.array([0.3e6, 0.01e6, 0.05e6, 5e6, 0.2e6, 0.1, 0.1])
OF_HOST, EXPERTS, PRODUCTS = range(5), 5, 6
DRAWN = (0, 1, 2, 4)  # to the engine's other kind of models; its time of a request differs twentyfold
OUTLIER = 0.2  # errors above count less and less (Cauchy's loss)
# Spread of ln of the factors before anything is measured, against which a group counts; of 0.4, 1 and endless, by two
# folds of the fitted groups
OF_A_LAW = 1.0
LEAST = 0.2  # of a factor
NO_KEYS = {(None, EXPERTS), (None, PRODUCTS)}
Key = tuple[str, bool]
Factor = tuple[str, str]


class Fit:
    """Constants by engine and kind of model, and factors of experts and products by GPU and dtype."""

    def __init__(self, cases: list[Case], moves: range, first_after: int = 0):
        self.cases, self.moves = cases, moves
        self.pools = [with_host(case.laws, case.notes, case.engine, case.scheduler, Host(), 1).pool for case in cases]
        self.keys = [(case.rows[0]["backend"], has_experts(case.engine.model)) for case in cases]
        precisions = [(case.engine.calibration.gpu, case.engine.precision) for case in cases]
        self.dtypes = {
            EXPERTS: [(gpu, precision.experts) for gpu, precision in precisions],
            PRODUCTS: [(gpu, precision.products) for gpu, precision in precisions],
        }
        self.hosts = {
            (row.engine, row.experts): np.array(
                [row.iteration, row.sequence, row.eager_layer, row.request, row.front_end]
            )
            for row in host_file().hosts
        }
        self.streams = {(row.engine, row.experts): first_after or row.first_after for row in host_file().hosts}
        self.factors = {
            move: {(row.gpu, row.dtype): row.factor for row in rows}
            for move, rows in ((EXPERTS, host_file().experts), (PRODUCTS, host_file().products))
        }

    def key(self, at: int, move: int) -> Key | Factor | None:
        """Whose constant ``move`` of STEPS is for a case; None where it has none."""
        if move in OF_HOST:
            return self.keys[at]
        dtype = self.dtypes[move][at]
        return dtype if dtype in self.factors[move] and (self.keys[at][1] or move == PRODUCTS) else None

    def errors(self, at: int, move: int | None = None) -> np.ndarray:
        """float64[row, 2]: ln (simulated / measured) of TTFT and TPOT of a case; ``move``: of STEPS."""
        case, pool = self.cases[at], self.pools[at]
        values = np.array([*self.hosts[self.keys[at]], *(self._factor(at, move) for move in self.factors)])
        if move is not None:
            values[move] += STEPS[move]
        iteration, sequence, eager, request, front_end, experts, products = values
        prompt = eager * case.engine.model.layers
        late = self.streams[self.keys[at]]
        host = host_of_case(case)._replace(request_ns=request, front_end_ns=front_end, first_after=late)
        graph = captured(host, case.scheduler.max_num_seqs)
        table = pool.table._replace(
            host=np.array([iteration, sequence, prompt, graph]),
            experts=pool.table.experts + (experts - 1) * case.laws.ns(layers.EXPERTS),
            local=pool.table.local + (products - 1) * case.laws.ns(*tables.PRODUCTS),
            decode_up=products * pool.table.decode_up,
            prefill_up=products * pool.table.prefill_up,
        )
        found = [times_of(case, pool._replace(table=table), host, row) for row in case.rows]
        real = [(row["ttft_ms"], row["tpot_ms"]) for row in case.rows]
        return np.log(np.array(found) / np.array(real))

    def _factor(self, at: int, move: int) -> float:
        key = self.key(at, move)
        return 1.0 if key is None else self.factors[move][key]

    def _prior(self, columns: list) -> tuple[np.ndarray, np.ndarray]:
        """Rows that draw factors to 1, and constants to those of the engine's other kind of models: their derivatives
        and ln, in units of the error of a group.
        """
        rows, off = np.zeros((len(columns), len(columns))), np.zeros(len(columns))
        for i, (where, move) in enumerate(columns):
            if move in DRAWN:
                own = max(self.hosts[where][move], STEPS[move])
                other = max(self.hosts[where[0], not where[1]][move], STEPS[move])
                rows[i, i], off[i] = STEPS[move] / own, np.log(own / other) / 2
            elif move not in OF_HOST:
                factor = self.factors[move][where]
                rows[i, i], off[i] = STEPS[move] / factor, np.log(factor)
        return rows * OUTLIER / OF_A_LAW, off * OUTLIER / OF_A_LAW

    def round(self) -> dict[Key, float]:
        """One step; returns the mean loss before it."""
        columns = sorted(
            {(self.key(at, move), move) for at in range(len(self.cases)) for move in self.moves} - NO_KEYS,
            key=lambda column: (column[1], column[0]),
        )
        number = {column: i for i, column in enumerate(columns)}
        rows, right = [], []
        for at in range(len(self.cases)):
            now = self.errors(at)
            block = np.zeros((now.size, len(columns)))
            for move in self.moves:
                column = number.get((self.key(at, move), move))
                if column is not None:
                    block[:, column] = (self.errors(at, move) - now).ravel()
            rows.append(block)
            right.append(now.ravel())
        # a group counts once, however many rows it has
        each = np.concatenate([np.full(len(now), len(now) ** -0.5) for now in right])
        matrix, off = np.concatenate(rows), np.concatenate(right)
        weight = each / np.sqrt(1 + (off / OUTLIER) ** 2)
        ridge = 0.002 * np.eye(len(columns)) * np.sqrt(len(self.cases))
        prior, is_off = self._prior(columns)
        step = np.linalg.lstsq(
            np.concatenate([matrix * weight[:, None], ridge, prior]),
            np.concatenate([-off * weight, np.zeros(len(columns)), -is_off]), rcond=None,
        )[0]  # fmt: skip
        for (where, move), change in zip(columns, step, strict=True):
            if move in OF_HOST:
                self.hosts[where][move] = max(0.0, self.hosts[where][move] + change * STEPS[move])
            else:
                self.factors[move][where] = max(LEAST, self.factors[move][where] + change * STEPS[move])
        loss = np.log1p((off / OUTLIER) ** 2)
        keys = sorted(set(self.keys))
        owner = np.concatenate(
            [np.full(len(each), keys.index(key)) for each, key in zip(right, self.keys, strict=True)]
        )
        return {key: float(loss[owner == i].mean()) for i, key in enumerate(keys)}


def main(path: str, engine: str = "", first_after: str = "0") -> None:
    groups: dict[str, list] = {}
    for row in judged_rows(Path(path)):
        most = MOST_OF_LONG if row["osl_tokens"] >= LONG else MOST_CLIENTS
        if row["group"] in host_file().fitted_on and row["concurrency"] <= most and engine in row["backend"]:
            groups.setdefault(row["group"], []).append(row)
    cases = []
    for rows in groups.values():
        try:
            cases.append(case_of(rows))
        except ArchsimError:
            continue
    fit = Fit(cases, OF_HOST if engine else range(len(STEPS)), int(first_after))
    for number in range(ROUNDS):
        losses = ", ".join(f"{key}: {loss:.3f}" for key, loss in fit.round().items())
        print(f"# round {number}: {losses}", flush=True)
    graphs = {row.engine: row.captured for row in host_file().hosts}
    for (engine, experts), (iteration, sequence, eager, request, front_end) in sorted(fit.hosts.items()):
        print(
            f"  - {{engine: {engine}, experts: {str(experts).lower()}, iteration: {iteration / 1e6:.3f} ms, sequence: "
            f"{sequence / 1e6:.4f} ms, eager_layer: {eager / 1e6:.4f} ms, request: {request / 1e6:.1f} ms, "
            f"front_end: {front_end / 1e6:.3f} ms, captured: {graphs[engine]}, "
            f"first_after: {fit.streams[engine, experts]}}}"
        )
    for name, move in (("experts", EXPERTS), ("products", PRODUCTS)):
        print(f"{name}:")
        for (gpu, dtype), factor in sorted(fit.factors[move].items()):
            print(f"  - {{gpu: {gpu}, dtype: {dtype}, factor: {factor:.2f}}}")


if __name__ == "__main__":
    main(*sys.argv[1:])
