"""The Global CP in plain Python: a decision's counts, the time of each state, and a walk through its table.

The rules are those of ``docs/decisions.md``, told again. Plans come from the policy functions, of which there is one
copy; times come from nowhere but here: mesh and rates from the system, the length of a step from the interpreter of
requests.
"""

from math import ceil, log2

from archsim.engine.interpreted.interpreter import walk
from microarch.blocks.global_cp import TABLE, Event, State

NS = 1e9


class SlowGlobalCP:
    """Global CP of a system that runs a model. ``mesh``: its links and routes."""

    def __init__(self, system, model, mesh, charged):
        hops = mesh.hops.tolist()
        self.spec, self.d2d, self.charged = system.decision, system.d2d, charged
        self.dies, self.experts = len(hops), model.experts
        farthest = [max(row) for row in hops]
        self.die = farthest.index(min(farthest))
        links = [system.topology.classes[number] for number in mesh.link_class]
        ns = [system.d2d.hop_latency_ns if link.hop_latency_ns is None else link.hop_latency_ns for link in links]
        self.farthest_ns = max(sum(ns[link] for link in mesh.route(self.die, die)) for die in range(self.dies))
        rates = [link.bandwidth_bytes_per_s or system.d2d.bandwidth_bytes_per_s for link in links]
        leaving = sum(rate for rate, src in zip(rates, mesh.link_src, strict=True) if src == self.die)
        self.bytes_per_ns = leaving * system.d2d.efficiency / NS

    def lasts(self, plan, rows, copies):
        """{state: ns}: what each state takes by itself."""
        ns = dict.fromkeys(State, 0.0)
        if not self.charged:
            return ns
        executor = {"fsm": self.fsm_ns, "firmware": self.firmware_ns, "host": self.host_ns}[self.spec.executor]
        for part in (self.messages_ns(plan, rows, copies), executor(plan, rows, copies)):
            for state, more in part.items():
                ns[state] += more
        return ns

    def messages_ns(self, plan, rows, copies):
        def travel(n_bytes):
            return self.farthest_ns + n_bytes / self.bytes_per_ns

        ns = {State.DISPATCH: travel(16 * len(plan.expert)), State.COLLECT: travel(16 * (self.dies + copies))}
        if plan.effort.global_demand:
            ns[State.RECEIVE] = travel(2 * self.dies * self.experts)
        if rows:
            ns[State.WRITE] = travel(self.dies * self.experts / 8)
        return ns

    def fsm_ns(self, plan, rows, copies):
        fsm, effort = self.spec.fsm, plan.effort
        each = list(zip(effort.candidates.tolist(), effort.blocks.tolist(), strict=True))
        cycles = {
            State.RECEIVE: ceil(self.dies * self.experts / fsm.lanes) if effort.global_demand else 0,
            State.READ: len(each) * ceil(72 / fsm.table_port_bits),
            State.ORDER: self.sorting(effort.sorted_experts, fsm.sorter, fsm.comparators),
            State.GENERATE: sum(candidates for candidates, _ in each),
            State.EVALUATE: sum(
                n * (ceil(c / fsm.lanes) + ceil(log2(min(c, fsm.lanes))) + fsm.pipeline) for c, n in each
            ),
            State.MERGE: len(plan.expert) if each else 0,
            State.ROWS: rows * ceil(16 * self.experts / fsm.heatmap_port_bits),
            # a fetch; a pass a bit of a count, one to mark
            State.SELECT: rows * (1 + 17 * ceil(self.experts / fsm.comparators)),
            State.WRITE: ceil(self.experts / fsm.prediction_port_bits) if rows else 0,
            State.UPDATE: copies,
        }
        return {state: n * NS / fsm.clock_hz for state, n in cycles.items()}

    def firmware_ns(self, plan, rows, copies):
        core, effort = self.spec.firmware, plan.effort
        each = list(zip(effort.candidates.tolist(), effort.blocks.tolist(), strict=True))
        instructions = {
            State.RECEIVE: self.dies * self.experts * core.per_table_entry if effort.global_demand else 0,
            State.READ: len(each) * core.per_table_entry,
            State.ORDER: self.comparisons(effort.sorted_experts) * core.per_comparison,
            State.GENERATE: sum(candidates for candidates, _ in each) * core.per_candidate,
            State.EVALUATE: sum(candidates * blocks for candidates, blocks in each) * core.per_evaluation,
            State.MERGE: len(plan.expert) * core.per_plan_entry if each else 0,
            State.ROWS: rows * self.experts * core.per_heatmap_entry,
            State.SELECT: rows * self.experts * core.per_heatmap_entry,
            State.WRITE: self.dies * self.experts / 32 * core.per_table_entry if rows else 0,
            State.UPDATE: copies * core.per_table_entry,
        }
        return {state: n / core.ipc * NS / core.clock_hz for state, n in instructions.items()}

    def host_ns(self, plan, rows, copies):
        host = self.spec.host
        if not plan.effort.global_demand and not rows:
            return {}
        there = 16 * len(plan.expert) + (self.dies * self.experts / 8 if rows else 0)
        back = 2 * self.dies * self.experts + 16 * copies
        return {
            State.RECEIVE: host.sync_ns + host.pcie_latency_ns + back * NS / host.pcie_bandwidth_bytes_per_s,
            State.EVALUATE: host.time_ns,
            State.DISPATCH: host.pcie_latency_ns + there * NS / host.pcie_bandwidth_bytes_per_s + host.launch_ns,
        }

    @staticmethod
    def comparisons(n):
        """Merge sort: n to a level."""
        return n * ceil(log2(n)) if n > 1 else 0

    @staticmethod
    def sorting(n, sorter, comparators):
        """Bitonic: level i has i stages of half the items, padded to a power of two. Merge: passes of 2-way mergers,
        an item a cycle each.
        """
        comparators = 2 ** int(log2(comparators))
        padded, cycles, run = 2 ** ceil(log2(max(n, 1))), 0, 1
        for level in range(1, ceil(log2(max(n, 1))) + 1):
            run *= 2
            merging = ceil(padded // run / comparators) * run
            cycles += merging if sorter == "merge" else level * ceil(padded / 2 / comparators)
        return cycles

    def bits_ready(self, plan, rows):
        """When cp_en bits are there, from when the dies have their commands."""
        if not rows or (self.charged and self.spec.executor == "host"):  # a host sends both together
            return 0.0
        ends = {t.state: t.time for t in walk(TABLE, State.MERGE, self.ends(self.lasts(plan, rows, 0)))}
        return max(0.0, ends[State.WRITE] - ends[State.DISPATCH])

    def decide(self, plan, rows, copies, begin, before_ns, step_ns):
        """Transitions of a decision that begins at ``begin``, whose step takes ``step_ns`` once the dies are told."""
        ns = self.lasts(plan, rows, copies)
        ns[State.READ] = max(0.0, ns[State.READ] - before_ns)
        ns[State.UPDATE] = max(0.0, ns[State.UPDATE] - step_ns)
        ns[State.COLLECT] += step_ns
        if self.charged and self.spec.executor == "host":
            ns[State.WRITE] = ns[State.DISPATCH]
        return walk(TABLE, State.IDLE, self.ends(ns), begin)

    @staticmethod
    def ends(ns):
        return lambda state: (Event.START if state == State.IDLE else Event.READY, ns[state])
