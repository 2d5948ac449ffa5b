"""How long a copy of a slice between two GPUs takes, as it was measured."""

import pytest

from archsim.base.validation import validate
from archsim.base.yaml import Place, Tree
from archsim.machine.copy_law import CopyLaw


def read(kind, **keys):
    return validate(kind, Tree(keys, {(): Place("here")}))


def test_no_copy_is_faster_than_the_link_and_no_latency_negative():
    law = CopyLaw(
        from_bytes=(1.0, 1e6), latency_ns=(-50.0, 10.0), ns_per_byte=(0.5, 0.001), bandwidth_bytes_per_s=100e9
    )
    assert law.link(1000) == (0.0, pytest.approx(0.01 / 0.45))  # the rate of the whole copy: 450 ns
    assert law.link(10**6) == (0.0, 1.0)
    with pytest.raises(ValueError, match="equally many numbers"):
        CopyLaw(from_bytes=(1.0,), latency_ns=(1.0, 2.0), ns_per_byte=(1.0,), bandwidth_bytes_per_s=100e9)


def test_links_of_older_manifests_do_not_say_what_was_measured():
    law = {"from_bytes": "1024", "latency_ns": "10", "ns_per_byte": "1", "bandwidth": "450 GB/s"}
    assert read(CopyLaw, **law).extrapolates(4096) is None
    sizes = read(CopyLaw, **law, first_bytes=2048, last_bytes=4096)
    assert [sizes.extrapolates(size) for size in (2047, 2048, 4096, 4097)] == [True, False, False, True]
