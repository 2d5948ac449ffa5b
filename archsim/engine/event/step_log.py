"""What happened in one step, stage by stage: the log from which timelines are drawn.

============ ================= ======================================================================
column       dtype[stage]      meaning
============ ================= ======================================================================
``kind``     int64             ``microarch.blocks.request.State``
``unit``     int64             ``microarch.blocks.request.Unit`` that served it (NONE: left out of the log)
``die``      int64             where; -1 for a route
``src, dst`` int64             ends of the route; -1 elsewhere
``expert``   int64             -1 for hidden vectors
``slice``    int64             0 gate, 1 up, 2 down; -1 for hidden vectors
``tokens``   int64             of the sub-kernel; -1 for hidden vectors
``start_ns`` float64           from the start of the step
``end_ns``   float64
``bytes``    int64             of the slice or the bundle; -1 for requests, look-ups and products
``critical`` int64             place on the critical path, 0 first; -1 off it
============ ================= ======================================================================
"""

import numpy as np

from archsim.engine.state import StepWork
from microarch.blocks.catalogue import UNIT
from microarch.blocks.hbm import SLICES
from microarch.blocks.request import State, Unit

AT_HOME = (State.REMOTE_LLC, State.REMOTE_HBM)
CARRY = (State.LOCAL_HBM, State.REMOTE_LLC, State.REMOTE_HBM, State.DATA, State.LLC_FILL, State.COPY)
ROUTES = (State.REQUEST, State.DATA, State.ACT_MOVE)


def step_log(stages: np.ndarray, work: StepWork, begin_ns: float, waits_for_copies: bool) -> dict[str, np.ndarray]:
    """Columns of the table above, of a pool's ``stages``; ``waits_for_copies``: whether a step ends with its copies."""
    critical = _critical(stages, waits_for_copies)
    filled_at_home = (stages["kind"] == State.LLC_FILL) & (stages["kind"][stages["parent"]] == State.REMOTE_HBM)
    served = (UNIT[stages["kind"]] != Unit.NONE) & (stages["item"] >= 0)  # copies of the step before are left out
    stages, filled_at_home, critical = stages[served], filled_at_home[served], critical[served]
    kind, item = stages["kind"], stages["item"]
    hidden = kind >= State.ACT_READ
    entries = work.entries[np.where(hidden, 0, item // SLICES)]
    moves = work.moves.ravel()
    move = moves[np.where(hidden, item, 0)] if len(moves) else np.zeros(len(kind), work.moves.dtype)
    src = np.where(hidden, move["src"], np.where(kind == State.REQUEST, entries["die"], entries["home"]))
    dst = np.where(hidden, move["dst"], np.where(kind == State.REQUEST, entries["home"], entries["die"]))
    on_route = np.isin(kind, ROUTES)
    place = np.where(np.isin(kind, AT_HOME) | filled_at_home, entries["home"], entries["die"])
    place = np.where(kind == State.ACT_READ, move["src"], np.where(kind == State.ACT_WRITE, move["dst"], place))
    return {
        "kind": kind,
        "unit": UNIT[kind],
        "die": np.where(on_route, -1, place),
        "src": np.where(on_route, src, -1),
        "dst": np.where(on_route, dst, -1),
        "expert": np.where(hidden, -1, entries["expert"]),
        "slice": np.where(hidden, -1, item % SLICES),
        "tokens": np.where(hidden, -1, entries["tokens"]),
        "start_ns": stages["time"] - begin_ns,
        "end_ns": stages["end"] - begin_ns,
        "bytes": np.where(hidden, move["bytes"], np.where(np.isin(kind, CARRY), entries["read_bytes"], -1)),
        "critical": critical,
    }


def _critical(stages: np.ndarray, waits_for_copies: bool) -> np.ndarray:
    """int64[stage]: place on the path of causes that ends with the last stage; -1 off it."""
    place = np.full(len(stages), -1)
    ends = np.where((stages["kind"] == State.COPY) & (not waits_for_copies), -np.inf, stages["end"])
    path = [int(ends.argmax())] if len(stages) else []
    while path and stages["cause"][path[-1]] >= 0:
        path.append(int(stages["cause"][path[-1]]))
    place[path[::-1]] = np.arange(len(path))
    return place
