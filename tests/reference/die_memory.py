"""What dies remember from step to step, as lists and ordered dictionaries."""

from collections import OrderedDict


class DieMemory:
    """LLCs as lists of keys, oldest first; copies and what ATUs know as ordered dictionaries, oldest first."""

    def __init__(self, memory, slice_bytes):
        self.sets = memory.llc_tags.shape[1]
        self.ways = memory.llc_tags.shape[2]
        self.llc = [[[int(key) for key in line if key >= 0] for line in die] for die in memory.llc_tags]
        self.copies = [OrderedDict.fromkeys(ring_order(ring)) for ring in memory.copies.ring]
        self.limit = [int(room["limit_bytes"]) for room in memory.copies.room]
        self.slice_bytes = slice_bytes
        self.atu_entries = memory.atu.entries
        self.known = [OrderedDict.fromkeys(ring_order(ring)) for ring in memory.atu.ring]

    def in_llc(self, die, expert, key):
        return key in self.llc[die][expert % self.sets]

    def store(self, die, expert, key):
        line = self.llc[die][expert % self.sets]
        if self.ways == 0:
            return
        if key in line:
            line.remove(key)
        elif len(line) == self.ways:
            line.pop(0)
        line.append(key)

    def keep(self, die, key):
        copies = self.copies[die]
        if self.slice_bytes > self.limit[die] and key not in copies:
            return
        if key not in copies:
            while (len(copies) + 1) * self.slice_bytes > self.limit[die]:
                copies.popitem(last=False)
        copies[key] = None
        copies.move_to_end(key)

    def translate(self, die, expert):
        """Whether the ATU knows the expert; from now on it does."""
        known = self.known[die]
        knew = expert in known
        known[expert] = None
        known.move_to_end(expert)
        if len(known) > self.atu_entries:
            known.popitem(last=False)
        return knew


def ring_order(ring):
    """Keys of an LRU ring, oldest first."""
    head = len(ring) - 1
    at, keys = int(ring[head]["newer"]), []
    while at != head:
        keys.append(at)
        at = int(ring[at]["newer"])
    return keys
