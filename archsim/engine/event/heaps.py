"""Binary heaps of stage numbers that work exactly as Python's ``heapq`` does.

Push sifts up from the end; pop puts the last element at the root, sifts it down to a leaf and then back up. There are
four heaps:

* *calendar*: by ``time``, then ``tie``, of stages' records. With ``tie`` all zero, equal times keep the heap's own
  order; with ``tie`` = creation number they are served first come first served.
* *bookings*: by time, for stages whose time is final: the heap holds the time beside the stage. Times are held as the
  bits of the float, which compare faster and the same, as no time is negative. Equal times keep the heap's own order
  (``ties: heapq``, ``tie_bits`` = 0) or are served in order of creation (``ties: sequence``, ``tie_bits`` = -1).
* *queue*: those who wait for a resource, by key (``queue_key``: priority, then time), then creation.
* *offers*: stages of queues, in the order of bookings.

Calendar, queue and offers read keys by stage when two entries are compared: the published simulator's queues
depend on it (equal keys are everywhere, and the time of a waiting stage may change while it waits).
"""

import numpy as np

from archsim.base.compiled import inner, unsigned

BOOKING = np.dtype([("time_bits", "i8"), ("stage", "i8")], align=True)
FIRST = np.int64(-(2**63))  # the sign bit
TIME_BITS = np.int64(2**63 - 1)


@inner
def time_bits(time_ns):
    """The bits of a time that is not negative: an integer of the same order."""
    return np.float64(time_ns).view(np.int64)


@inner
def time_of(bits):
    """The time of `time_bits`."""
    return np.int64(bits).view(np.float64)


@inner
def queue_key(time_ns, priority):
    """Of a stage that waits: those of priority 1 before those of priority 0, then by time."""
    return time_bits(time_ns) | (FIRST if priority else np.int64(0))


@inner
def _booking(heap, at, tie_bits):
    booking = heap[unsigned(at)]
    return booking.time_bits, booking.stage


@inner
def _book(heap, at, item):
    booking = heap[unsigned(at)]
    booking.time_bits, booking.stage = item


@inner
def _booked_before(tie_bits, a, b):
    return (a[0] < b[0]) | ((a[0] == b[0]) & ((a[1] & tie_bits) < (b[1] & tie_bits)))


@inner
def _stage(heap, at, stages):
    return heap[unsigned(at)]


@inner
def _enter(heap, at, item):
    heap[unsigned(at)] = item


@inner
def _sooner(stages, a, b):
    return stages[a].time < stages[b].time or (stages[a].time == stages[b].time and stages[a].tie < stages[b].tie)


@inner
def _waiting(heap, at, keys):
    stage = heap[unsigned(at)]
    return keys[unsigned(stage)], stage


@inner
def _wait(heap, at, item):
    heap[unsigned(at)] = item[1]


@inner
def _served_before(keys, a, b):
    return (a[0] < b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))


@inner
def _offer(heap, at, order):
    stage = heap[unsigned(at)]
    return order[0][unsigned(stage)] & TIME_BITS, stage


@inner
def _offered_before(order, a, b):
    return _booked_before(order[1], a, b)


def _heap_of(get, put, before):
    """(push, pop) of the heap whose order is ``before(order, a, b)`` and whose entries ``get`` reads and ``put`` writes."""  # noqa: E501

    @inner
    def rise(heap, at, item, order):
        while at > 0:
            parent = (at - 1) >> 1
            above = get(heap, parent, order)
            if not before(order, item, above):
                break
            put(heap, at, above)
            at = parent
        put(heap, at, item)

    @inner
    def push(heap, size, item, order):
        """Add ``item`` to ``heap[> size]``. Returns the new size."""
        rise(heap, size, item, order)
        return size + 1

    @inner
    def pop(heap, size, order):
        """Take the first item off. Returns (item, new size).

        Goes down two levels at a time while there are two: which grandchild is first is found for either child before
        it is known which child is, so that a processor need not wait for one comparison to begin the next.
        """
        first, size = get(heap, 0, order), size - 1
        item = get(heap, size, order)
        at = 0
        while 4 * at + 6 < size:
            left, below = 2 * at + 1, 4 * at + 3
            is_left = np.int64(before(order, get(heap, left, order), get(heap, left + 1, order)))
            of_left = np.int64(before(order, get(heap, below, order), get(heap, below + 1, order)))
            of_right = np.int64(before(order, get(heap, below + 2, order), get(heap, below + 3, order)))
            child = left + 1 - is_left
            grandchild = below + 3 - of_right + is_left * (of_right - of_left - 2)
            put(heap, at, get(heap, child, order))
            put(heap, child, get(heap, grandchild, order))
            at = grandchild
        right = 2 * at + 2
        while right < size:
            left_item, right_item = get(heap, right - 1, order), get(heap, right, order)
            child = right - np.int64(before(order, left_item, right_item))
            put(heap, at, get(heap, child, order))
            at, right = child, 2 * child + 2
        if right == size:
            put(heap, at, get(heap, right - 1, order))
            at = right - 1
        rise(heap, at, item, order)
        return first, size

    return push, pop


bookings_push, bookings_pop = _heap_of(_booking, _book, _booked_before)
calendar_push, calendar_pop = _heap_of(_stage, _enter, _sooner)
queue_push, queue_pop = _heap_of(_waiting, _wait, _served_before)
offers_push, offers_pop = _heap_of(_offer, _wait, _offered_before)
