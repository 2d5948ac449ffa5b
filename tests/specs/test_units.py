"""Units that are not those of a quantity, and digits that are none: refused, with what to write instead."""

import numpy as np
import pytest

from archsim.base.errors import SpecError
from archsim.base.fields import BANDWIDTH, COMPUTE, SIZE, TIME, parse_quantity
from archsim.specs.axes import read_range
from archsim.specs.library import load_experiment
from archsim.specs.serving_files import load_serving


@pytest.mark.parametrize(("text", "dimension", "told"), [
    ("12 Tb/s", BANDWIDTH, "these are bits: write '1.5 TB/s', or '12 TB/s' if bytes"),
    ("80 Gb", SIZE, "these are bits: write '10 GB', or '80 GB' if bytes"), ("400 Gbps", BANDWIDTH, "write '50 GB/s'"),
    ("400 Gbit/s", BANDWIDTH, "write '50 GB/s'"), ("64 Mibit", SIZE, "write '8 MiB'"), ("8 Gib", SIZE, "write '1 GiB'"),
    ("100 GBps", BANDWIDTH, "write '100 GB/s'"), ("3 kilobits", SIZE, "write '375 B', or '3 kB'"),
    ("1 Tbit/sec", BANDWIDTH, "write '125 GB/s'"), ("12 gigabytes", SIZE, "write '12 GB'"),
    ("80 gb", SIZE, "'10 GB', or '80 GB'"),
    ("12 Tb", BANDWIDTH, "expected a bandwidth"), ("12 Tb/s", TIME, "expected a time"),
    ("900 TFLOPS", COMPUTE, "did you mean 'TFLOP/s'"),
    ("８0 GB", SIZE, "８: write digits as 0 to 9"), ("٣ ns", TIME, "٣: write digits as 0 to 9"),
])  # fmt: skip
def test_a_unit_of_bits_is_refused_with_the_bytes_to_write(text, dimension, told):
    with pytest.raises(ValueError) as refused:
        parse_quantity(text, dimension)
    assert told in str(refused.value)


SERVE = {"system": "h200_node", "model": "qwen3-235b-a22b"}
LENGTHS = {"input": {"fixed": 8}, "output": {"fixed": 8}}


@pytest.mark.parametrize("read", [
    lambda: load_serving(SERVE | {"requests": LENGTHS | {"arrivals": {"rate": "４/s"}}}),
    lambda: load_serving(SERVE | {"requests": LENGTHS | {"concurrency": "４"}}),
    lambda: load_serving("serve_h200", ["requests.count=４"]), lambda: load_serving("serve_h200", ["slo.ttft=４ s"]),
    lambda: load_experiment("dojo", ["systems.0.mesh=５x5"]),
    lambda: load_experiment("dojo", ["workload.batch=[６４]"]),
    lambda: load_experiment("dojo", ["systems.0.hbm.capacity=３２ GB"]),
    lambda: load_experiment("dojo", ["systems.0.hbm.reserved=１０ %"]),
])  # fmt: skip
def test_full_width_digits_are_refused_alike(read):
    with pytest.raises(SpecError, match="[０-９]: write digits as 0 to 9"):
        read()


RANGES = [
    {"from": "1 TB/s", "to": "4 TB/s"}, {"from": "50 ns", "to": "240 ns", "scale": "log"}, {"from": 1, "to": 64},
    {"from": -0.001, "to": 0.002}, {"from": 0.25, "to": 1e6, "scale": "log"}, {"from": "1 KiB", "to": "3 MiB"},
    {"from": 1, "to": 4096, "scale": "log"},
]  # fmt: skip


@pytest.mark.parametrize("given", RANGES, ids=str)
def test_numbers_of_a_sample_are_those_of_its_values_one_by_one(given):
    of, shares = read_range(given), np.append(np.random.default_rng(1).random(300), [0.0, 1 / 3, 0.5, 0.9999999])
    found, alone = of.numbers(shares), [of.number(share) for share in shares.tolist()]
    assert list(map(repr, found)) == list(map(repr, alone))
