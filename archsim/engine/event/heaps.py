"""Binary heaps of stage numbers that work exactly as Python's ``heapq`` does.

Push sifts up from the end; pop puts the last element at the root, sifts it down to a leaf and then back up. There are
three heaps:

* *calendar*: by ``time``, then ``tie``. With ``tie`` all zero, equal times keep the heap's own order
  (``ties: heapq``); with ``tie`` = creation number they are served first come first served (``ties: sequence``).
* *bookings*: the same order, for stages whose time is final: the heap holds the keys beside the stage.
* *queue*: those who wait for a resource, by ``-priority``, then ``time``, then ``arrival``.

Calendar and queue read keys from the stages' records when two entries are compared: the published simulator's queues
depend on it (equal keys are everywhere, and the time of a waiting stage may change while it waits).
"""

from __future__ import annotations

import numpy as np

from archsim.engine.state import inner

BOOKING = np.dtype([("time", "f8"), ("tie", "i8"), ("stage", "i8")], align=True)


@inner
def _booking(heap, at):
    return heap[at].time, heap[at].tie, heap[at].stage


@inner
def _book(heap, at, item):
    heap[at].time, heap[at].tie, heap[at].stage = item


@inner
def _booked_before(stages, a, b):
    return (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))


@inner
def _stage(heap, at):
    return heap[at]


@inner
def _enter(heap, at, item):
    heap[at] = item


@inner
def _sooner(stages, a, b):
    return stages[a].time < stages[b].time or (stages[a].time == stages[b].time and stages[a].tie < stages[b].tie)


@inner
def _served_before(stages, a, b):
    if stages[a].priority != stages[b].priority:
        return stages[a].priority > stages[b].priority
    return stages[a].time < stages[b].time or (
        stages[a].time == stages[b].time and stages[a].arrival < stages[b].arrival
    )


def _heap_of(get, put, before):
    """(push, pop) of the heap whose order is ``before(stages, a, b)`` and whose entries ``get`` reads and ``put``
    writes.
    """

    @inner
    def rise(heap, at, item, stages):
        while at > 0:
            parent = (at - 1) >> 1
            above = get(heap, parent)
            if not before(stages, item, above):
                break
            put(heap, at, above)
            at = parent
        put(heap, at, item)

    @inner
    def push(heap, size, item, stages):
        """Add ``item`` to ``heap[> size]``. Returns the new size."""
        rise(heap, size, item, stages)
        return size + 1

    @inner
    def pop(heap, size, stages):
        """Take the first item off. Returns (item, new size)."""
        first, size = get(heap, 0), size - 1
        item = get(heap, size)
        at, right = 0, 2
        while right < size:
            child = right - np.int64(before(stages, get(heap, right - 1), get(heap, right)))
            put(heap, at, get(heap, child))
            at, right = child, 2 * child + 2
        if right == size:
            put(heap, at, get(heap, right - 1))
            at = right - 1
        rise(heap, at, item, stages)
        return first, size

    return push, pop


bookings_push, bookings_pop = _heap_of(_booking, _book, _booked_before)
calendar_push, calendar_pop = _heap_of(_stage, _enter, _sooner)
queue_push, queue_pop = _heap_of(_stage, _enter, _served_before)
