"""Generated routing beside recorded routing that is not in its fit: ``python benchmarks/routing.py TRACES [NAME…]``.

``--subjects``: fitted to all subjects but every FOLDSth, and judged by those, as an unseen subject.

TRACES: the folder of recorded traces. Traffic is fitted to one half of the requests of each, and generated with the
lengths of the requests of the other. Figures of decode steps (of all tokens, where there are none), means over layers
and DRAWS seeds: recorded (the half judged), of the half fitted, generated, and the difference of the generated from the
recorded in %. Decode times are those of the event engine on LAYERS layers of Dojo under the assumptions of `physical`:
of as many requests as are recorded, and of LARGE, for which both are redrawn.
"""

import sys
from pathlib import Path

import numpy as np

from archsim.traffic import statistics

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.small_runs import replay

from archsim.engine.demand import build_run_demand
from archsim.policies.registry import build_policy
from archsim.specs.library import load_assumptions, load_model, load_system
from archsim.specs.policies import PRESETS, PolicySpec
from archsim.traffic import open_trace
from archsim.traffic.layer_subset import some_layers
from archsim.traffic.subjects import collect, traffic_of
from archsim.traffic.traffic_adjust import simulate
from archsim.traffic.traffic_fit import fit_subjects, fit_trace, known_tasks

TRACES = {
    "llama-4-maverick": "llama4-maverick/mmlu_abstract_algebra_anatomy.npz",
    "gpt-oss-20b": "gpt-oss-20b/mmlu_decode.npz",
    "deepseek-v2-lite": "deepseek-v2-lite/esft_vanilla_lite_4tasks.npz",
}
FOLDS = 4
LAGS, STEPS = (1, 2, 4, 8, 16), (1, 2, 3, 4, 8, 16, 64)
DRAWS, LAYERS, LARGE, DECODE_STEPS = 3, 4, 4096, 127
DIES = 25


def halves(name, folder):
    """The half that is fitted, the one that judges, and traffic like the latter, one for each of DRAWS seeds."""
    one, other = statistics.halves(open_trace(str(Path(folder) / TRACES[name]), load_model(name)))
    model = fit_trace(one, name, "")
    names, task = known_tasks(other)
    task = np.array([model.task_names.index(names[each]) for each in task])
    return one, other, [simulate(model, other.lengths, task, seed) for seed in range(1, DRAWS + 1)]


def unseen(name, folder):
    """For each of FOLDS: the subjects that judge, and traffic of unseen names from a fit to the others."""
    whole = open_trace(str(Path(folder) / TRACES[name]), load_model(name))
    folds = min(FOLDS, len(whole.subject_names))
    for fold in range(folds):
        judges = whole.request_subject % folds == fold
        other = statistics.subset(whole, np.flatnonzero(judges))
        model = fit_subjects(statistics.subset(whole, np.flatnonzero(~judges)), name, "")
        seeds = range(1, DRAWS + 1)
        drawn = [traffic_of(model, other.requests, seed, {f"unseen {seed}": 1}, other.lengths) for seed in seeds]
        yield other, [collect(each) for each in drawn]


def judge_unseen(name, folder):
    """Print how far every figure of unseen subjects is off, in %, beside how far subjects are apart."""
    pairs = [(measure(other, name), [measure(each, name) for each in made]) for other, made in unseen(name, folder)]
    print(f"{name:42s} {'recorded':>9s} {'spread %':>9s} {'off %':>7s}  by fold")
    for key in pairs[0][0]:
        recorded = np.array([each[key] for each, _ in pairs])
        made = np.array([np.mean([each[key] for each in drawn]) for _, drawn in pairs])
        off, spread = 100 * (made / recorded - 1), 100 * recorded.std(ddof=1) / recorded.mean()
        numbers = " ".join(f"{each:+.1f}" for each in off)
        print(f"  {key:40s} {recorded.mean():9.3f} {spread:9.1f} {off.mean():+7.1f}  {numbers}", flush=True)


def figures(trace):
    """{figure: number}, means over layers."""
    decode = trace.iteration > 0
    rows = statistics.rows_of(trace, decode) if decode.any() else trace
    loads = statistics.loads(rows)
    found = {"bits across layers": statistics.mutual_information(statistics.cross_layer(rows)).mean()}
    for lag in LAGS:
        found[f"repeated at lag {lag}"] = statistics.same_expert(rows, lag).mean()
    found["largest over mean load"] = statistics.max_over_mean(loads).mean()
    found["Gini of loads"] = statistics.gini(loads).mean()
    if decode.any():
        for step in STEPS:
            found[f"active at step {step}"] = active(trace, step)
        found["busiest die over mean"] = np.mean([imbalance(trace, step) for step in range(1, 128)])
    return found


def active(trace, step):
    return (statistics.loads(trace, trace.iteration == step) > 0).sum(axis=1).mean()


def imbalance(trace, step):
    """Tokens of the busiest of DIES dies over the mean, experts placed in turn."""
    loads = statistics.loads(trace, trace.iteration == step)
    dies = np.stack([np.bincount(np.arange(loads.shape[1]) % DIES, each, DIES) for each in loads])
    return statistics.max_over_mean(dies).mean()


def times(trace, name):
    """{figure: ms}: simulated decode times."""
    model, system, found = load_model(name), load_system("dojo"), {}
    source = some_layers(trace, LAYERS)
    for policy in (PolicySpec(name=each, **PRESETS[each]) for each in ("ep", "pred")):
        for batch in (trace.requests, LARGE):
            steps = DECODE_STEPS if batch < LARGE else 16
            predictor = build_policy(policy).predictor
            demand = build_run_demand(source, batch, steps, 0, origin_dies=system.dies, predictor=predictor)
            requests = np.random.default_rng(0).integers(trace.requests, size=batch)
            stream = source.steps(requests, steps)
            run = replay(system, model, policy, load_assumptions("physical"), demand, stream).run()
            drawn = "as recorded" if batch < LARGE else f"{batch} requests"
            found[f"ms under {policy.name}, {drawn}, {steps} steps"] = run.decode_ns / 1e6
    return found


def measure(trace, name):
    """{figure: number} of a trace, with decode times where it has decode steps."""
    return figures(trace) | (times(trace, name) if (trace.iteration > 0).any() else {})


def main():
    folder, *names = (each for each in sys.argv[1:] if each != "--subjects")
    for name in names or TRACES:
        if "--subjects" in sys.argv:
            judge_unseen(name, folder)
            continue
        one, other, drawn = halves(name, folder)
        fitted, recorded, *made = (measure(each, name) for each in (one, other, *drawn))
        generated = {key: np.mean([each[key] for each in made]) for key in recorded}
        print(f"{name:42s} {'fitted':>9s} {'recorded':>9s} {'generated':>9s} {'%':>7s} {'% fitted':>8s}")
        for key, number in recorded.items():
            off, halves_off = (100 * (each[key] / number - 1) for each in (generated, fitted))
            numbers = f"{fitted[key]:9.3f} {number:9.3f} {generated[key]:9.3f}"
            print(f"  {key:40s} {numbers} {off:+7.1f} {halves_off:+8.1f}", flush=True)


if __name__ == "__main__":
    main()
