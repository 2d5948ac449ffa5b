"""``archsim trace profile``, ``fit`` and ``synth``: measure routing, estimate the parameters of a generator, generate."""

from __future__ import annotations

import argparse
from pathlib import Path

from archsim.cli.arguments import natural, positive

OK = 0


def add_pattern_commands(commands: argparse._SubParsersAction) -> None:
    """The parsers of this module, below ``archsim trace``."""
    profile = commands.add_parser("profile", help="measure the patterns of recorded routing; a page and a CSV")
    profile.add_argument("source", metavar="SRC", help="store, .npz or directory of JSON requests")
    profile.add_argument("--model", required=True, metavar="NAME", help="model by name or file")
    profile.add_argument("--out", required=True, metavar="DIR", help="folder of the page")
    profile.set_defaults(command=_profile)

    fit = commands.add_parser("fit", help="estimate the parameters of generated routing from recorded routing")
    fit.add_argument(
        "source", metavar="SRC", help="store, .npz or directory of JSON requests; or .npz of loads (counts, layer_ids)"
    )
    fit.add_argument("--model", required=True, metavar="NAME", help="model by name or file")
    fit.add_argument("--out", required=True, metavar="FILE", help=".yaml to write; its tables go beside it as .npz")
    fit.add_argument("--seed", type=natural, default=0, metavar="N")
    fit.set_defaults(command=_fit)

    synth = commands.add_parser("synth", help="generate routing like that of a model; a token-level .npz")
    preset = synth.add_mutually_exclusive_group(required=True)
    preset.add_argument(
        "preset", nargs="?", metavar="PRESET", help="name of configs/traffic, or a .yaml of archsim trace fit"
    )
    preset.add_argument("--like", metavar="PRESET", help="the same")
    synth.add_argument("--model", metavar="NAME", help="model by name or file (default: the one that the preset is of)")
    synth.add_argument("--requests", type=positive, default=64, metavar="N", help="(default: 64)")
    synth.add_argument("--seed", type=natural, default=0, metavar="N")
    synth.add_argument("--out", required=True, metavar="FILE", help=".npz to write")
    synth.set_defaults(command=_synth)


def _open(arguments: argparse.Namespace):
    from archsim.specs.loading.library import load_model
    from archsim.workload import open_trace

    return open_trace(arguments.source, load_model(arguments.model))


def _profile(arguments: argparse.Namespace) -> int:
    from archsim.report.profile_page import write_profile
    from archsim.workload.patterns.profile import insights, profile

    found = profile(_open(arguments))
    page = write_profile(found, Path(arguments.out))
    for name in found.layers:
        print(f"{name:<24} {found.mean(name):.3f}")
    for each in insights(found):
        print(f"insight {each.number}: {each.verdict}: {each.measured}")
    print(f"report: {page}")
    return OK


def _fit(arguments: argparse.Namespace) -> int:
    from archsim.specs.loading.library import load_model
    from archsim.workload.generated.fit import fit_trace
    from archsim.workload.generated.load_preset import is_load_matrix, write_load_preset
    from archsim.workload.generated.traffic_model import save_model

    if is_load_matrix(arguments.source):
        print(write_load_preset(Path(arguments.source), load_model(arguments.model), Path(arguments.out)))
        return OK
    trace, out, model = _open(arguments), Path(arguments.out), load_model(arguments.model)
    out.parent.mkdir(parents=True, exist_ok=True)
    source = f"archsim trace fit of {trace.requests} requests, {len(trace.experts)} tokens, digest {trace.digest[:12]}"
    save_model(fit_trace(trace, out.stem, source, seed=arguments.seed), out, of=model.name)
    print(out)
    return OK


def _synth(arguments: argparse.Namespace) -> int:
    import numpy as np

    from archsim.base.errors import TraceError
    from archsim.specs.loading.library import load_model
    from archsim.workload.generated.generative import GenerativeTraffic, collect
    from archsim.workload.generated.traffic_presets import load_traffic, model_of, traffic_file

    like = arguments.preset or arguments.like
    if Path(arguments.out).resolve() == traffic_file(like).with_suffix(".npz").resolve():
        raise TraceError(f"{arguments.out}: holds the tables of {like}; expected another name")
    model = load_model(arguments.model or model_of(like))
    trace = collect(GenerativeTraffic(load_traffic(like, model), arguments.requests, arguments.seed))
    np.savez_compressed(
        arguments.out, experts=trace.experts, request_offsets=trace.request_offsets, iteration=trace.iteration,
        layer_ids=trace.layer_ids, num_experts=model.experts, top_k=model.top_k, num_layers_total=model.layers,
        model=model.name, request_subject=trace.request_subject, subject_names=np.array(trace.subject_names),
    )  # fmt: skip
    print(f"{arguments.out}: {trace.requests} requests, {len(trace.experts)} tokens")
    return OK
