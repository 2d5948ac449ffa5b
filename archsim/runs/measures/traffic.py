"""What moved through HBM and between dies, and the copies that dies keep."""

# ruff: noqa: E501  (one row a column: a table is read across)

from __future__ import annotations

from typing import Any

from archsim.base.tables import INTEGER
from archsim.runs.finished import Column, Finished, measures

MESSAGES, BYTES = 0, 1  # columns of Tally.hops

TRAFFIC: tuple[Column, ...] = (
    Column("hop_messages", INTEGER, "message hops", "messages multiplied by their hops (dies that they enter); the assumption hops says which of them count", "hops, messages"),
    Column("hop_bytes", INTEGER, "byte hops", "bytes of these messages multiplied by their hops", "hops, bytes"),
    Column("local_hbm_read_bytes", INTEGER, "bytes", "what dies read from their own HBM", "local HBM reads"),
    Column("remote_hbm_read_bytes", INTEGER, "bytes", "what dies read from the HBM of other dies", "remote HBM reads"),
    Column("local_hbm_write_bytes", INTEGER, "bytes", "what is written to HBM as cached copies", "HBM writes of copies"),
    Column("activation_bytes", INTEGER, "bytes", "hidden vectors that are sent from die to die",
           "activations between dies"),
    Column("replicas_max_bytes_per_die", INTEGER, "bytes", "largest size of the cached copies on a die", "copies on the fullest die"),
    Column("hop_request_messages", INTEGER, "message hops", "requests for slices, multiplied by their hops"),
    Column("hop_data_messages", INTEGER, "message hops", "slices, multiplied by their hops"),
    Column("hop_activation_messages", INTEGER, "message hops", "messages of hidden vectors, multiplied by their hops"),
    Column("replicas_evicted", INTEGER, "replicas", "cached copies that were evicted"),
    *(
        Column(f"copies_{name}_bytes", INTEGER, "bytes", meaning)
        for name, meaning in (
            ("saved", "slices of other dies' experts that a die found among its cached copies, and did not read remotely"),
            ("evicted_unused", "cached copies that were evicted without having been read"),
            ("evicted_used", "cached copies that were evicted after having been read"),
            ("held", "cached copies on all dies at the end of the run"),
        )
    ),
    Column("atu_misses", INTEGER, "misses", "misses of the address translation units"),
    Column("dispatch_bytes", INTEGER, "bytes", "hidden vectors that are sent from die to die, to their experts",
           "dispatched between dies", after="activation_bytes"),
    Column("combine_bytes", INTEGER, "bytes", "results of experts that are sent from die to die, back to their tokens",
           "combined between dies", after="dispatch_bytes"),
    Column("copy_room_bytes", INTEGER, "bytes", "left for cached copies on the die with least; empty where capacity is unbounded", optional=True),
)  # fmt: skip


@measures(TRAFFIC)
def traffic(run: Finished) -> dict[str, Any]:
    """What moved through HBM and between dies, and the copies that dies keep."""
    from archsim.engine.state import DATA_MESSAGES, HIDDEN, REQUESTS

    outcome, tally, room = run.outcome, run.outcome.tally, run.outcome.memory.copies.room
    counted = [REQUESTS] if run.run.assumptions.hops == "requests" else [REQUESTS, DATA_MESSAGES, HIDDEN]
    slice_bytes = outcome.machine.slice_bytes
    return {
        "hop_messages": tally.hops[counted, MESSAGES].sum(),
        "hop_bytes": tally.hops[counted, BYTES].sum(),
        "hop_request_messages": tally.hops[REQUESTS, MESSAGES],
        "hop_data_messages": tally.hops[DATA_MESSAGES, MESSAGES],
        "hop_activation_messages": tally.hops[HIDDEN, MESSAGES],
        "local_hbm_read_bytes": tally.dies["local_read_bytes"].sum(),
        "remote_hbm_read_bytes": tally.dies["remote_read_bytes"].sum(),
        "local_hbm_write_bytes": tally.dies["write_bytes"].sum(),
        "activation_bytes": tally.moved_bytes.sum(),
        "dispatch_bytes": tally.moved_bytes[0],
        "combine_bytes": tally.moved_bytes[1],
        "replicas_max_bytes_per_die": room["peak_bytes"].max(),
        "replicas_evicted": room["evictions"].sum(),
        "copies_saved_bytes": room["hits"].sum() * slice_bytes,
        "copies_evicted_unused_bytes": room["unused"].sum() * slice_bytes,
        "copies_evicted_used_bytes": (room["evictions"] - room["unused"]).sum() * slice_bytes,
        "copies_held_bytes": room["used_bytes"].sum(),
        "copy_room_bytes": room["limit_bytes"].min() if run.run.assumptions.capacity == "finite" else None,
        "atu_misses": outcome.memory.atu.misses.sum(),
    }
