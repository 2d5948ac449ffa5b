"""A paper with two claims, small enough to run."""


def small() -> dict:
    """A paper with a sweep, a rule and an answer, a second to run."""
    experiment = {
        "name": "small", "systems": ["dojo"], "models": ["olmoe-1b-7b"], "policies": ["base", "allo"],
        "workload": {"context": 0, "batch": [64, 128], "decode_steps": 2, "layers": 1}
        | {"trace": {"synthetic": {"prompt_tokens": 0}}},
        "assumptions": [{"set": "physical", "capacity": "unbounded"}], "engine": "analytical",
    }  # fmt: skip
    claim = {
        "what": "speed-up", "run": "one", "quantity": "throughput_tokens_per_s / other.throughput_tokens_per_s",
        "unit": "×", "at": {"policy": "allo"}, "against": {"policy": "base"}, "within_percent": 10, "why": "because",
        "spread": "three runs",
        "guess": 100, "guessed": "a hundred times",
        "rows": [{"id": "h001", "published": 1000.0}, {"id": "h002", "published": [0.0, 50.0], "at": {"batch": 64}}],
    }  # fmt: skip
    answer = {key: claim[key] for key in ("run", "at", "quantity", "unit")}
    answer |= {"question": "Worth it?", "by": "batch", "against": {"base": {"policy": "base"}}}
    answer["says"] = "It is {paper_base}, in the mean {paper_base_mean}; honestly {physical_base}"
    rule = {"name": "as published", "why": "its simulator", "runs": {"one": ["assumptions=[published]"]}}
    return {
        "paper": "small", "title": "Small & new", "source": "nowhere", "numbers": ["h001-h003"],
        "setup": {"GPUs": {"is": "25 dies", "place": "1"}}, "runs": {"one": {"sweep": experiment}}, "rules": [rule],
        "names": {"batch": {"64": "few requests"}},
        "claims": [claim], "answers": [answer], "outside": [{"ids": ["h003"], "why": "an accuracy"}],
    }  # fmt: skip
