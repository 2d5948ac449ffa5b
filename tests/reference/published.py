"""A slow, obvious re-telling of the published simulator's rules (design notes, machine section 4), in plain Python.

One object a stage, ``heapq`` for the three orders. It is the oracle of ``archsim.engine.event.reserved`` and is run on
small inputs only (about 0.15 million events a second).
"""

import heapq
from dataclasses import dataclass, field
from math import ceil

import numpy as np


class Stage:
    """A step of a request chain: what it needs, how long it takes, and what follows when it is processed."""

    __slots__ = ("time", "latency", "resources", "then", "priority", "arrival", "admitted")

    def __init__(self, time, latency, resources, then, priority):
        self.time, self.latency, self.resources, self.then = time, latency, resources, then
        self.priority, self.arrival, self.admitted = priority, 0, False

    def __lt__(self, other):
        return self.time < other.time


@dataclass(eq=False)
class Resource:
    claimed: bool = False
    free_at: int = 0
    queue: list = field(default_factory=list)


class Waiting:
    """Entry of a resource's queue: (-priority, time read now, arrival)."""

    __slots__ = ("stage",)

    def __init__(self, stage):
        self.stage = stage

    def __lt__(self, other):
        a, b = self.stage, other.stage
        return (-a.priority, a.time, a.arrival) < (-b.priority, b.time, b.arrival)


class Calendar:
    """Book-ahead by one on exclusive resources."""

    def __init__(self):
        self.events, self.arrivals, self.processed, self.now, self.latest = [], 0, 0, 0, 0

    def create(self, time, latency, resources, then, priority):
        stage = Stage(time, latency, resources, then, priority)
        if all(not r.claimed for r in resources):
            self._admit(stage, max([time] + [r.free_at for r in resources]))
        else:
            stage.arrival = self.arrivals
            self.arrivals += 1
            for r in resources:
                heapq.heappush(r.queue, Waiting(stage))

    def _admit(self, stage, start):
        for r in stage.resources:
            r.claimed = True
        stage.time, stage.admitted = start, True
        heapq.heappush(self.events, stage)

    def run(self):
        while self.events:
            stage = heapq.heappop(self.events)
            self.processed += 1
            if callable(stage.latency):
                stage.latency, stage.then = stage.latency()
            end = stage.time + stage.latency
            self.latest = max(self.latest, end)
            if stage.then is not None:
                stage.then(stage, end)
            for r in stage.resources:
                r.free_at, r.claimed = end, False
            self._offer(stage.resources, end)

    def _offer(self, resources, end):
        offers = []
        for r in resources:
            while r.queue and r.queue[0].stage.admitted:
                heapq.heappop(r.queue)
            if r.queue:
                heapq.heappush(offers, r.queue[0].stage)
        while offers:
            stage = heapq.heappop(offers)
            if stage.admitted:
                continue
            if all(not r.claimed for r in stage.resources):
                self._admit(stage, max([stage.time, end] + [r.free_at for r in stage.resources]))


class PublishedSimulator:
    """Steps of one batch, one after the other.

    ``model``: hidden, ffn, experts, u (share of HBM bandwidth), v ([(bound of tokens or None, share of peak), ...]).
    """

    def __init__(self, model, mesh_x, mesh_y, strategy, dtype_bytes=2, hbm=3350.0, d2d=1741 * 0.9):
        self.m = model
        self.X, self.Y, self.D = mesh_x, mesh_y, mesh_x * mesh_y
        self.predict = "pred" in strategy
        self.plan_rule = "allo" if "allo" in strategy else ("ep" if strategy == "ep" else "base")
        m = self.m
        self.slice_bytes = m["hidden"] * m["ffn"] * dtype_bytes
        self.dtype_bytes, self.hbm, self.d2d = dtype_bytes, hbm, d2d
        self.ports = [Resource() for _ in range(self.D)]
        self.hbms = [Resource() for _ in range(self.D)]
        self.computes = [Resource() for _ in range(self.D)]
        self.edges = {}
        self.llc_sets = max(1, 64 * 2**20 // (2 * self.slice_bytes))
        self.llc = [dict() for _ in range(self.D)]
        self.copies = set()
        self.count = dict(hop_messages=0, local_hbm_read_bytes=0, remote_hbm_read_bytes=0, local_hbm_write_bytes=0)
        self.calendar = Calendar()

    # geometry
    def home(self, e):
        q = self.m["experts"] // self.D
        return e // q if e < q * self.D else e % self.D

    def xy(self, d):
        return d // self.Y, d % self.Y

    def hops(self, a, b):
        (ax, ay), (bx, by) = self.xy(a), self.xy(b)
        return abs(ax - bx) + abs(ay - by)

    def path(self, a, b):
        (cx, cy), (tx, ty) = self.xy(a), self.xy(b)
        out = []
        while (cx, cy) != (tx, ty):
            nx, ny = (cx + (1 if tx > cx else -1), cy) if cx != tx else (cx, cy + (1 if ty > cy else -1))
            key = tuple(sorted([(cx, cy), (nx, ny)]))
            out.append(self.edges.setdefault(key, Resource()))
            cx, cy = nx, ny
        return out

    # LLC and copies
    def llc_hit(self, die, key):
        return key in self.llc[die].get(key[1] % self.llc_sets, ())

    def llc_store(self, die, key):
        ways = self.llc[die].setdefault(key[1] % self.llc_sets, [])
        if key in ways:
            ways.remove(key)
        elif len(ways) == 2:
            ways.pop(0)
        ways.append(key)

    def holds(self, die, key):
        return self.home(key[1]) == die or (die, key) in self.copies

    # a chain
    def start_chain(self, now, layer, e, die, s, tokens, predicted):
        key, home = (layer, e, s), self.home(e)
        prio = 0 if die == home else 1
        make = self.calendar.create
        hbm_read_ns = 300 + ceil(self.slice_bytes / (self.hbm * self.m["u"]))
        flop = 2 * self.m["hidden"] * self.m["ffn"] * tokens
        compute_ns = ceil(flop / (1e6 * self.utilisation(tokens)))
        hops = self.hops(die, home)

        def compute(stage, end):
            make(end, compute_ns, [self.computes[die]], finish, prio)

        def finish(stage, end):
            make(end, 0, [], None, prio)

        def store_llc(at):
            def stored(stage, end):
                self.llc_store(at, key)
                finish(stage, end)

            return stored

        def local_read(stage, end):
            make(end, 30, [self.ports[die]], store_llc(die), prio)
            compute(stage, end)

        def looked_local_hbm(stage, end):
            read = self.slice_bytes + tokens * (self.m["hidden"] + self.m["ffn"]) * self.dtype_bytes
            self.count["local_hbm_read_bytes"] += read
            make(end, 300 + ceil(read / (self.hbm * self.m["u"])), [self.hbms[die]], local_read, prio)

        def data_back(stage, end):
            if self.predict and predicted(die, e):
                make(end, hbm_read_ns, [self.hbms[die]], copied, prio)
            compute(stage, end)

        def copied(stage, end):
            self.copies.add((die, key))
            self.count["local_hbm_write_bytes"] += self.slice_bytes
            finish(stage, end)

        def send_data(stage, end):
            make(end, 200 * hops + ceil(self.slice_bytes / self.d2d), self.path(home, die), data_back, prio)

        def remote_read(stage, end):
            make(end, 30, [self.ports[home]], store_llc(home), prio)
            send_data(stage, end)

        def request(arrived):
            def looked_away(stage, end):
                self.count["hop_messages"] += hops
                make(end, 200 * hops + ceil(16 / self.d2d), self.path(die, home), arrived, prio)

            return looked_away

        def to_remote_llc(stage, end):
            make(end, 100, [self.ports[home]], send_data, prio)

        def to_remote_hbm(stage, end):
            self.count["remote_hbm_read_bytes"] += self.slice_bytes
            make(end, hbm_read_ns, [self.hbms[home]], remote_read, prio)

        def look_up():  # chooses one of the four ways, to its end
            local = die == home or self.predict
            if local and self.llc_hit(die, key):
                return 100, compute
            if local and self.holds(die, key):
                return 110, looked_local_hbm
            return 110, request(to_remote_llc if self.llc_hit(home, key) else to_remote_hbm)

        make(now, look_up, [self.ports[die]], None, prio)

    def utilisation(self, n):
        for bound, value in self.m["v"]:
            if bound is None or n <= bound:
                return value

    # strategies: (expert, die, tokens), ordered by expert id
    def plan(self, layer, tokens, first_seen):
        if self.plan_rule == "base":
            entries = [(e, (i + 7) % self.D, int(tokens[e])) for i, e in enumerate(first_seen)]
        elif self.plan_rule == "ep":
            entries = [(e, self.home(e), int(tokens[e])) for e in range(len(tokens)) if tokens[e]]
        else:
            entries = self.allocate(layer, tokens)
        return sorted(entries, key=lambda entry: entry[0])

    def allocate(self, layer, tokens):
        m, D = self.m, self.D
        W = 3 * self.slice_bytes
        R = 300 + W / (3350 * 0.9)
        active = [e for e in range(len(tokens)) if tokens[e]]
        cl, cr, hl, hr, din = ([0.0] * D for _ in range(5))
        for e in active:
            hl[self.home(e)] += R
        mean = sum(int(tokens[e]) for e in active) / len(active)

        def C(n):
            return ceil(6 * m["hidden"] * m["ffn"] * n / (1e6 * 0.7))

        def die_time(d):
            return max(cl[d], hl[d] + hr[d], din[d]) + cr[d]

        out = []
        for e in sorted(active, key=lambda e: (int(tokens[e]), e)):
            n, home = int(tokens[e]), self.home(e)
            holders = [d for d in range(D) if any(self.holds(d, (layer, e, s)) for s in range(3))]
            cands = [(die_time(d), d, True) for d in holders]
            for d in range(D):
                if self.hops(d, home) == 1 and d not in holders:
                    cands.append((die_time(d) + 2 * 200 + W / self.d2d, d, False))
            cands.sort(key=lambda c: (c[0], c[1]))
            keep = max(5, int(n // max(mean, 512)))
            cands = cands[:keep]
            blocks = [512] * (n // 512)
            if blocks:
                blocks[-1] += n % 512
            else:
                blocks = [n]
            paid, given = set(), {}
            for b in blocks:
                best = None
                for i, (_, d, local) in enumerate(cands):
                    if local:
                        after = max(cl[d] + C(b), hl[d] + hr[d], din[d]) + cr[d]
                        worst = after
                    else:
                        tin = 2 * 200 + W / self.d2d
                        after = max(cl[d], hl[d] + hr[d], din[d] + tin) + cr[d] + C(b)
                        extra = 0 if d in paid else R
                        src = max(cl[home], hl[home] + hr[home] + extra, din[home]) + cr[home]
                        worst = max(after, src)
                    rank = (worst, 0 if local else 1, i)
                    if best is None or rank < best[0]:
                        best = (rank, d, local)
                _, d, local = best
                if local:
                    cl[d] += C(b)
                else:
                    cr[d] += C(b)
                    din[d] += 2 * 200 + W / self.d2d
                    if d not in paid:
                        hr[home] += R
                        paid.add(d)
                given[d] = given.get(d, 0) + b
            out += [(e, d, given[d]) for _, d, _ in cands if d in given]
        return out

    def step(self, now, layer, tokens, first_seen, top):
        """Time at which (iteration, layer) ends; ``top`` is None in the prefill, else top[i] = set of experts."""
        plan = self.plan(layer, tokens, first_seen)
        lists = [sorted(e for e, d, _ in plan if d == die) for die in range(self.D)]
        for die in range(self.D):
            if die in lists[die]:
                lists[die] = lists[die][: lists[die].index(die) + 1]

        def predicted(die, e):
            return top is not None and any(e in top[i] for i in lists[die])

        self.calendar.latest = now
        for e, die, n in plan:
            for s in range(3):
                self.start_chain(now, layer, e, die, s, n, predicted)
        self.calendar.run()
        return self.calendar.latest


def routing_by_iteration(experts, request_offsets, iteration, decode_steps):
    """(iteration, request of each row, experts of each row) for every iteration that has rows."""
    request = np.repeat(np.arange(len(request_offsets) - 1), np.diff(request_offsets))
    for t in range(decode_steps + 1):
        rows = np.flatnonzero(iteration == t)
        if len(rows):
            yield t, request[rows], experts[rows]


def add_pairs(heat, before, after):
    """Count all pairs (expert of a token, expert of the next) in every layer; ``before``, ``after``: [layer, k]."""
    for layer in range(len(heat)):
        for i in before[layer]:
            for j in after[layer]:
                heat[layer, i, j] += 1


def simulate(model, mesh_x, mesh_y, strategy, experts, request_offsets, iteration, decode_steps):
    """(prefill_ns, decode_ns, counters and events) of a trace: int[token, layer, k], int[request + 1], int[token]."""
    sim = PublishedSimulator(model, mesh_x, mesh_y, strategy)
    layers, count = experts.shape[1], model["experts"]
    heat = np.zeros((layers, count, count), np.int64)
    keep, now, prefill, last = ceil(0.2 * count), 0, 0, {}
    for t, request, rows in routing_by_iteration(experts, request_offsets, iteration, decode_steps):
        is_prefill = t == 0 and (request == request[-1]).sum() > 1
        for row, r in zip(rows, request.tolist(), strict=True):
            at, before = last.get(r, (None, None))
            if (t == 0 and at == 0) or (t >= 2 and at == t - 1):
                add_pairs(heat, before, row)
            last[r] = t, row
        for layer in range(layers):
            chosen = rows[:, layer, :].ravel().tolist()
            tokens = np.bincount(chosen, minlength=count)
            top = None
            if t >= 1:
                top = [set(np.argsort(heat[layer, i], kind="stable")[-keep:].tolist()) for i in range(count)]
            now = sim.step(now, layer, tokens, list(dict.fromkeys(chosen)), top if sim.predict else None)
        if is_prefill:
            prefill = now
    return prefill, now - prefill, sim.count | {"events": sim.calendar.processed}
