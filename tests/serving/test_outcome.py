"""What comes of serving a file, and what a reader has to know of it."""

from archsim.iteration.constants import ResidualRow, host_file
from archsim.serving.outcome import range_of
from archsim.serving.serving import serve
from archsim.specs.serving_files import load_serving


def test_every_run_says_the_range_of_its_times():
    file = {
        "system": "h100_node", "model": "gpt-oss-120b", "parallel": {"attention": {"tp": 8}}, "engine": "vllm",
        "requests": {"concurrency": 2, "count": 4, "input": {"fixed": 64}, "output": {"fixed": 4}},
    }  # fmt: skip
    serving = load_serving(file)
    outcome = serve(serving)
    assert any(note.startswith("With 80 % probability, the measured mean TTFT would be ") for note in outcome.notes)
    assert range_of(load_serving(file | {"host": {"iteration": "1 ms"}}), outcome.measures) == ""
    rows = host_file().residuals
    assert all(isinstance(each, ResidualRow) and each.tpot[0] < each.tpot[1] for each in rows) and rows
