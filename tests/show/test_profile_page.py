"""The profile page of a trace, with pictures, numbers, definitions and insights, as one self-contained HTML file."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from archsim.show.profile_page import _by_layer
from archsim.specs.library import load_model
from archsim.traffic.formats.readers import open_trace


def test_curves_of_layers_are_over_the_layers_of_the_model(shared):
    """Llama 4's MoE layers are every second; statistics of two layers have one value less."""
    trace = open_trace(shared / "data/traces/gpt-oss-20b/mmlu_decode.npz", load_model("gpt-oss-20b"))
    some = replace(trace, layer_ids=trace.layer_ids * 2 + 1)
    found = SimpleNamespace(trace=some, layers={"gini": np.arange(24.0), "cross_layer_top20": np.arange(23.0)})
    assert _by_layer(found, "gini") == [(2 * at + 1, float(at)) for at in range(24)]
    assert [layer for layer, _ in _by_layer(found, "cross_layer_top20")] == list(range(1, 46, 2))
