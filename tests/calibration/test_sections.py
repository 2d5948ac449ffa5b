"""Sections of error by law, and what no law reads."""

import numpy as np
from support.made_up_measurements import gemm, written

from archsim.cli.main import main
from archsim.laws.transfers import nodes_away
from archsim.studies.validation.cases import moved
from archsim.studies.validation.page import Judged, sections, unread
from archsim.studies.validation.page import main as write_shipped
from calibration.measurements.reading import Measurements, read_measurements

HEADER = (
    "gpu,nodes,num_gpus,hidden_size,topk,num_experts,comm_sms,tokens_per_rank,dispatch_transmit_us,dispatch_notify_us,"
    "combine_transmit_us,combine_notify_us\n"
)


def test_four_nodes_without_a_table_are_judged(tmp_path):
    """As fast as NICs of 44 GB/s behind 90 us: within a fifth of what the engine takes."""
    away = nodes_away(4, 8, 256) * np.array([7392, 14336])
    rows = [
        f"H100-SXM5-80GB,4,32,7168,8,256,24,{tokens},{40 + tokens * away[0] / 44e3:.2f},46,"
        f"{60 + tokens * away[1] / 42e3:.2f},50"
        for tokens in (1024, 4096)
    ]
    (tmp_path / "four.csv").write_text(HEADER + "\n".join(rows) + "\n")
    found = list(moved("h100", read_measurements(tmp_path / "four.csv"), "h100"))
    assert [(each.of["op"], each.of["nodes"]) for each in found] == [("combine", 4), ("dispatch", 4)]
    assert all(np.abs(each.error).max() < 0.2 for each in found)


def test_sections_pool_and_unread_lists():
    found = [
        Judged("attention", "gqa", "trtllm", 2, np.array([0.1, -0.3])),
        Judged("attention", "gqa", "trtllm", 2, np.array([0.0, 0.2])), Judged("attention", "gqa", "vllm 1", 7, None),
    ]
    (row,) = sections(found).itertuples()
    assert (row.points, row.worst, row.within_25) == (4, 0.3, 0.75)
    assert unread(found, Measurements(skipped={"odd.csv": "why"})) == [
        "attention gqa of vllm 1 (7 points)", "odd.csv: why",
    ]  # fmt: skip


def test_the_page_of_shipped_calibrations(tmp_path, capsys):
    folder = written(tmp_path / "mine", gemm=gemm())
    write_shipped([str(folder), str(tmp_path / "page.md"), "h100"])
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "## h100" in page and "| law | points |" in page
    assert main(["validate", "--quick", "--with", "h100", str(folder), "--out", str(tmp_path / "out")]) in (0, 3)
