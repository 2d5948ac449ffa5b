"""Binary heaps of stage numbers that work exactly as Python's ``heapq`` does.

Push sifts up from the end; pop puts the last element at the root, sifts it down to a leaf and then back up. Keys are
read from the stages' records when two entries are compared, not stored when they are pushed: the published simulator's queues
depend on both (equal keys are everywhere, and the time of a waiting stage may change while it waits).

Two orders exist:

* *calendar*: by ``time``, then ``tie``. With ``tie`` all zero, equal times keep the heap's own order
  (``ties: heapq``); with ``tie`` = creation number they are served first come first served (``ties: sequence``).
* *queue*: those who wait for a resource, by ``-priority``, then ``time``, then ``arrival``.
"""

from __future__ import annotations

from archsim.engine.state import inner


@inner
def _sooner(stages, a, b):
    return stages[a].time < stages[b].time or (stages[a].time == stages[b].time and stages[a].tie < stages[b].tie)


@inner
def _served_before(stages, a, b):
    if stages[a].priority != stages[b].priority:
        return stages[a].priority > stages[b].priority
    return stages[a].time < stages[b].time or (stages[a].time == stages[b].time and stages[a].arrival < stages[b].arrival)


def _heap_of(before):
    """(push, pop) of the heap whose order is ``before(stages, a, b)``."""

    @inner
    def rise(heap, at, item, stages):
        while at > 0:
            parent = (at - 1) >> 1
            if not before(stages, item, heap[parent]):
                break
            heap[at] = heap[parent]
            at = parent
        heap[at] = item

    @inner
    def push(heap, size, item, stages):
        """Add ``item`` to ``heap: int64[> size]``. Returns the new size."""
        rise(heap, size, item, stages)
        return size + 1

    @inner
    def pop(heap, size, stages):
        """Take the first item off. Returns (item, new size)."""
        first, size = heap[0], size - 1
        item = heap[size]
        at, child = 0, 1
        while child < size:
            right = child + 1
            if right < size and not before(stages, heap[child], heap[right]):
                child = right
            heap[at] = heap[child]
            at, child = child, 2 * child + 1
        rise(heap, at, item, stages)
        return first, size

    return push, pop


calendar_push, calendar_pop = _heap_of(_sooner)
queue_push, queue_pop = _heap_of(_served_before)
