"""Notes of runs read as people speak, for one run and for several."""

from support.tables import read_beside

from archsim.runs.calibration_notes import GemmSource, calibration_notes
from archsim.runs.notes import drawn_notes, layer_notes, memory_notes, result_notes
from archsim.runs.policy_notes import policy_notes
from archsim.runs.roofline_notes import roofline_notes
from archsim.runs.traffic_notes import prefill_note, traffic_notes
from archsim.specs.workload import SyntheticSpec, WorkloadSpec


def test_notes_of_many_batches_are_few():
    rows = [{"batch": batch, "drawn_from": 5 if batch > 5 else None} for batch in range(20)]
    notes = drawn_notes(rows)
    assert (
        len(notes) == 5
        and notes[0].startswith("The 6 requests")
        and notes[-1] == "10 other batches are larger than the trace, too (column drawn_from)."
    )
    assert drawn_notes(rows[:6]) == []


TOLD = read_beside(__file__, "tables.yaml")


ROW = {
    "system": "dojo", "model": "deepseek-v3", "policy": "allo", "batch": 4096, "assumptions": "physical",
    "over_roofline": 9.24, "decode_step_ns": 91.1e6, "mfu": 0.001, "hbm_bandwidth_utilisation": 0.108,
    "load_max_over_mean": 1.61, "bound_link": 0.84, "bound_hbm": 0.16, "bound_llc": 0.002,
}  # fmt: skip


NOTES = {each.__name__: each for each in (roofline_notes, policy_notes, drawn_notes, layer_notes)}


def test_notes_are_sentences():
    for case in TOLD["notes"]:
        rows = [ROW | row if case.get("like") == "run" else row for row in case["rows"]]
        assert NOTES[case["of"]](rows) == [case["said"]]


def test_every_note_begins_and_ends_as_a_sentence():
    """What a note says of several runs with everything that can be said of them."""
    rows = [
        ROW | {
            "policy": policy, "speedup_vs_ep": 0.5, "gemm_extrapolated": 0.3, "copies_extrapolated": 1.0,
            "drawn_from": 5, "stand_ins": "GEMMs take the times of h100, scaled to the die's peak and HBM",
            "uncharged": "mine:f", "plans_by_speeds": 1, "throttled_share": 0.2, "clock": 0.9, "held_by": "power",
            "layers": 1, "model_layers": 58, "context_tokens": 0, "approximate": "x is not read", "hbm_all_counted": 0,
        }
        for policy in "abcdefg"
    ]  # fmt: skip
    notes = [*result_notes(rows, []), *traffic_notes(WorkloadSpec(trace={"synthetic": {}}, batch=1))]
    notes.append(prefill_note(SyntheticSpec(like="kimi-k2")))
    assert len(notes) > 10 and [each for each in notes if each[0].islower() or each[-1] != "." or ";" in each] == []


PLAIN = GemmSource(None, None, "bf16", 989e12, 3.35e12)


def test_notes_name_systems_without_a_calibration_and_runs_that_extrapolate():
    rows = [{"system": "mine", "gemm_extrapolated": share} for share in (0.0, 0.25)] + [
        {"system": "old", "gemm_extrapolated": None}
    ]
    notes = calibration_notes(rows, [("mine", PLAIN), ("old", PLAIN)])
    assert notes == [
        "No compute.calibration is given for mine. GEMMs take the times of h100, scaled to the die's peak and HBM "
        "bandwidth.",
        "1 of 2 runs uses the GEMM calibration outside the measured sizes, for up to 25.0% of the GEMM time "
        "(column gemm_extrapolated).",
    ]
    assert calibration_notes(rows[:1], [("mine", PLAIN._replace(calibration="h100"))]) == []
    numbered = [rows[0] | {"system": "dojo.0123456789", "point": at} for at in (4, 6)]
    assert "for dojo (point 4)." in calibration_notes(numbered, [("dojo.0123456789", PLAIN)])[0]
    odd = {"system": "dojo.0123456789", "stand_ins": "copies take others"}
    (note,) = calibration_notes([odd | {"point": 7}, odd | {"point": 9}, odd], [])
    assert note.startswith("On dojo (point 7), copies take others.")  # named once
    other = {"system": "dojo.0123456780", "stand_ins": "copies take others", "point": 8}
    assert calibration_notes([odd | {"point": 7}, other], [])[0].startswith("On dojo (points 7 and 8), copies")
    many = [{"system": f"s{number}", "gemm_extrapolated": 0.0} for number in range(11)]
    assert (
        "s0, s1" in (note := calibration_notes(many, [(f"s{number}", PLAIN) for number in range(11)])[0])
        and "s7 and 3 others." in note
    )
    assert "s7 and 1 other." in calibration_notes(many[:9], [(f"s{number}", PLAIN) for number in range(9)])[0]


def test_notes_name_runs_whose_slices_are_outside_of_the_measured_copies():
    rows = [{"system": "mine", "gemm_extrapolated": None, "copies_extrapolated": share} for share in (0.0, 1.0, None)]
    assert calibration_notes(iter(rows), [("mine", PLAIN)]) == [
        "1 of 2 runs copies slices of a size that the calibration named in d2d did not measure (column "
        "copies_extrapolated)."
    ]
    assert calibration_notes([rows[0], rows[2]], [("mine", PLAIN)]) == []


def test_notes_say_where_times_hold_the_quantisation_of_activations():
    row = {"system": "mine", "gemm_extrapolated": 0.0}
    block, plain = (PLAIN._replace(calibration="h100", dtype=dtype) for dtype in ("fp8_block", "fp8"))
    assert calibration_notes([row], [("mine", block)]) == [
        "On mine, the fp8_block GEMM times of calibration h100 include the quantisation of activations."
    ]
    gone, other = block._replace(calibration="gone.yaml"), block._replace(calibration="a100")
    assert calibration_notes([row], [("mine", plain), ("not run", block), ("mine", gone), ("mine", other)]) == []


def test_policies_that_are_slower_than_ep_are_told():
    def row(policy, batch, gain, **more):
        return {"policy": policy, "batch": batch, "speedup_vs_ep": gain, "system": "s", "model": "m",
                "assumptions": "physical"} | more  # fmt: skip

    ep, slow = {"bound_hbm": 0.9, "bound_link": 0.1}, {"bound_hbm": 0.4, "bound_link": 0.6}
    (told,) = policy_notes([row("ep", 1, 1.0, **ep), row("base", 1, 0.5, **slow)])
    assert told.endswith("physical). Most of the added time there goes to moving weights over links.")
    rows = [row("ep", 1, 1.0), row("allo", 1, 1.2), row("allo", 2, 0.7), row("allo", 4, 0.9), row("pred", 1, 0.995)]
    (note,) = policy_notes(rows)
    assert note.startswith("Policy allo is slower than ep in 2 of 3 runs. At worst, its throughput is 0.70×")
    assert "(m on s at batch 2, physical)" in note
    assert "(m on s at batch 1 (point 7), physical)" in policy_notes([row("allo", 1, 0.5, point=7)])[0]
    many = [row(name, 1, 0.5) for name in "abcdef"]
    assert policy_notes(many)[-1] == "Policies e and f are slower than ep in some runs, too (column speedup_vs_ep)."
    assert policy_notes([row("allo", 1, None), row("allo", 1, 1.0)]) == []


def test_a_note_says_what_a_speed_up_is_worth():
    rows = [
        {"system": "w", "model": "m", "batch": 8, "policy": "allo", "assumptions": label, "speedup_vs_base": speedup}
        for label, speedup in (("physical", 1.5), ("physical+endpoint=as_measured", 2.5))
    ]
    (note,) = policy_notes(rows)
    assert note.startswith("The largest speed-up over base under physical is 1.50×") and "It is 2.50× if" in note
    assert policy_notes(rows[:1]) == []


def test_notes_of_pages():
    rows = [
        {"model": "a", "hbm_all_counted": 1, "context_tokens": 0},
        {"model": "b", "hbm_all_counted": 0, "context_tokens": None},
        {"model": "c", "hbm_all_counted": None, "context_tokens": None},
    ]
    first, second = memory_notes(rows)
    assert "workload.context is 0" in first and second.startswith("Only the experts of b are counted in HBM.")
    assert memory_notes(rows[2:]) == []
