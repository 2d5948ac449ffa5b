"""Small traces in both layouts, for tests to write and corrupt."""

import json

import numpy as np

from archsim.model.spec import ModelSpec

TOY = ModelSpec(
    name="toy",
    source="made up",
    layers=5,
    moe_layers={"first": 1, "last": 4},
    hidden=8,
    expert_ffn=8,
    experts=6,
    top_k=2,
)


def json_request(experts, iteration, layer_ids, layers):
    """A request in the raw layout, from experts [token, layer, k]."""
    steps = []
    for t in range(iteration.max() + 1):
        rows = experts[iteration == t]
        routed = {int(layer): rows[:, column].tolist() for column, layer in enumerate(layer_ids)}
        steps.append({str(layer): routed.get(layer) for layer in range(layers)})
    return steps


def write_tree(root, requests, layer_ids, layers):
    """requests: {'subject/n': (experts, iteration)} below root/org/model/set."""
    for name, (experts, iteration) in requests.items():
        file = root / f"org/toy/set/{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(json_request(experts, iteration, layer_ids, layers)))
    return root


def toy_requests(names, layers=4, experts=6, top_k=2):
    rng = np.random.default_rng(0)
    requests = {}
    for size, name in enumerate(names):
        iteration = np.r_[np.zeros(size + 1, int), np.arange(1, 4)]
        routing = rng.random((len(iteration), layers, experts)).argsort(axis=2)[:, :, :top_k]
        requests[name] = (routing.astype(np.int16), iteration)
    return requests


def save_npz(path, requests, layer_ids, **more):
    experts, iteration = (np.concatenate([request[part] for request in requests.values()]) for part in (0, 1))
    lengths = [len(request[1]) for request in requests.values()]
    members = {
        "experts": experts.astype(np.int16),
        "request_offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        "iteration": iteration.astype(np.int16),
        "layer_ids": np.array(layer_ids, np.int16),
    }
    np.savez(path, **{**members, **more})
    return path
