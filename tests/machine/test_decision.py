"""Of archsim.machine.decision."""

import numpy as np

from archsim.machine.decision import FirmwareSpec, FsmSpec
from microarch.blocks import global_cp
from microarch.blocks.global_cp import DecisionWork


def test_more_of_anything_never_takes_longer():
    """More lanes, comparators, wider ports or a quicker clock: no state takes longer."""
    counts = DecisionWork(25, 256, True, 200, 200, np.full(200, 7), np.full(200, 3), 400, 200, 30)
    base = global_cp.fsm_ns(counts, FsmSpec())
    for field, value in (
        ("lanes", 16),
        ("comparators", 64),
        ("heatmap_port_bits", 1024),
        ("prediction_port_bits", 32),
        ("table_port_bits", 144),
        ("clock_hz", 4e9),
    ):
        better = global_cp.fsm_ns(counts, FsmSpec().model_copy(update={field: value}))
        assert (better <= base).all() and (field == "table_port_bits" or better.sum() < base.sum())
    firmware = FirmwareSpec.model_validate({"core": "a76"})
    slower = FirmwareSpec.model_validate({"core": "a72"})
    assert (global_cp.firmware_ns(counts, firmware) <= global_cp.firmware_ns(counts, slower)).all()
