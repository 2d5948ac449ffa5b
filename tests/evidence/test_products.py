"""Groups of measured layers, and what they must meet."""

import pandas as pd
from support.made_up_layers import layers

from archsim.api import calibrate
from archsim.evidence import products
from calibration.measurements.reading import Measurements


def test_rows_are_judged_by_the_table_of_their_kernel():
    rows = pd.concat([layers().assign(kernel="a"), layers().assign(kernel="b")], ignore_index=True)
    rows.loc[rows["kernel"] == "b", "latency_us_median"] *= 2
    fitted = calibrate(Measurements({"moe": rows}), peaks={"bf16": 1e15}, hbm=3e12)
    cases = products.moe_cases(fitted["h100"].calibration, Measurements({"moe": rows}))
    assert len(cases) == len(rows) and cases["error"].abs().max() < 0.01


def test_groups_say_what_is_met():
    cases = products.rank_out_cases(Measurements({"moe": layers()}), "h100")
    (group,) = products.layer_groups(cases).to_dict("records")
    assert (group["met"], group["aim"], group["cases"]) == ("yes", products.AIM_OF["DeepSeek-V3"], 70)
    far = products.layer_groups(cases.assign(error=0.5)).to_dict("records")[0]
    near = products.layer_groups(cases.assign(error=0.07, floor=0.08)).to_dict("records")[0]
    assert (far["met"], near["met"]) == ("no", "floor")
    assert not len(products.layer_groups(cases.iloc[:0]))


def test_the_stricter_aim_is_for_a_model_however_its_name_is_written():
    cases = products.rank_out_cases(Measurements({"moe": layers()}), "h100")
    two = pd.concat(
        [cases.assign(model=name) for name in ("deepseek-v3", "DeepSeek-V3", "Own", "own")], ignore_index=True
    )
    found = products.layer_groups(two).set_index("model")
    assert list(found["cases"]) == [140, 140]
    assert dict(found["aim"]) == {"DeepSeek-V3": products.AIM_OF["DeepSeek-V3"], "Own": products.AIM}
