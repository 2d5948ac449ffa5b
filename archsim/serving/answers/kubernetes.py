"""Engines of a recommendation on Kubernetes, with the arguments of the script (`archsim.serving.answers.start`).

Engines that do both are a Deployment, or a LeaderWorkerSet where one takes several hosts, behind a Service. Pools of
vLLM are values of llm-d's chart, which routes among them. Nothing is written of what these cannot say: MPI between the
hosts of an engine of TensorRT-LLM, and routers of pools of SGLang and TensorRT-LLM, which list addresses.

Sources: kubernetes.io for Deployment and Service; docs.vllm.ai, *LWS*, for LeaderWorkerSet v1, whose pods have
``LWS_LEADER_ADDRESS`` and ``LWS_WORKER_INDEX``; llm-d-modelservice, ``values.yaml``, for its chart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from archsim.serving.answers import start
from archsim.serving.answers.start import BOTH, DECODE, OPTIONS_OF, PREFILL, ROUTER_PORT, Placed, Started

IMAGES: Mapping[str, str] = {
    "vllm": "vllm/vllm-openai:latest", "sglang": "lmsysorg/sglang:latest",
    "trtllm": "nvcr.io/nvidia/tensorrt-llm/release:latest",
}  # fmt: skip
_OPTIONS = "/etc/engine"  # where TensorRT-LLM's options are mounted
_PORTS = {PREFILL: 8000, DECODE: 8200}  # of llm-d's chart (routing.servicePort, routing.proxy.targetPort)


def manifests(every: Sequence[Started], of_host: int) -> list[dict[str, Any]]:
    """The objects of ``kubernetes.yaml``; none for pools, and for TensorRT-LLM on several hosts. ``of_host``: GPUs."""
    (only, *pools), hosts = every, -(-every[0].parallel.devices // of_host)
    if pools or (only.engine == "trtllm" and hosts > 1):
        return []
    labels = {"app": _name(only)}
    meta = {"name": _name(only), "labels": labels}
    pods = [{"metadata": {"labels": labels}, "spec": _pod(only, hosts, rank)} for rank in range(min(hosts, 2))]
    found: list[dict[str, Any]] = []
    if options := start.options_file(only):
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta,
                      "data": {OPTIONS_OF.format(role=only.role): options}})  # fmt: skip
    if hosts == 1:
        spec = {"replicas": only.instances, "selector": {"matchLabels": labels}, "template": pods[0]}
        found.append({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})
    else:
        sets = {"size": hosts, "leaderTemplate": pods[0], "workerTemplate": pods[1]}
        spec = {"replicas": only.instances, "leaderWorkerTemplate": sets}
        kind = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        found.append({**kind, "metadata": meta, "spec": spec})
        labels = {**labels, "leaderworkerset.sigs.k8s.io/worker-index": "0"}  # clients ask leaders
    found.append({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {
        "selector": labels, "ports": [{"port": ROUTER_PORT, "targetPort": ROUTER_PORT}]}})  # fmt: skip
    return found


def llm_d_values(every: Sequence[Started], of_host: int) -> dict[str, Any]:
    """Values of the chart ``llm-d-modelservice``; none but for vLLM with engines of one host."""
    first = every[0]
    if first.engine != "vllm" or any(each.parallel.devices > of_host for each in every):
        return {}
    model = _model(first)
    found: dict[str, Any] = {"modelArtifacts": {"uri": f"hf://{model}", "name": model}, PREFILL: {"create": False}}
    for each in every:
        role, words = PREFILL if each.role == PREFILL else DECODE, start.arguments(each)
        container: dict[str, Any] = {
            "name": "vllm", "image": IMAGES["vllm"], "modelCommand": "custom", "command": words[:2],
            "args": [model, *words[3:], "--port", str(_PORTS[role])], "resources": _gpus(each, 1),
        }  # fmt: skip
        if each.role != BOTH:
            container["env"] = [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": {
                "fieldRef": {"fieldPath": "status.podIP"}}}]  # fmt: skip
        parallel = {"tensor": each.parallel.attention.tp, "data": each.parallel.attention.dp}
        found[role] = {"create": True, "replicas": each.instances, "parallelism": parallel, "containers": [container]}
    return found


def _pod(started: Started, hosts: int, rank: int) -> dict[str, Any]:
    """The engine on the first of its hosts, or (rank 1) on any other, whose number is that of its pod."""
    gpus = tuple((host, ()) for host in range(hosts))
    words = start.words_of(Placed(started, 0, ROUTER_PORT, gpus), rank)
    command = start.shell([*words, "--host", "0.0.0.0", "--port", str(ROUTER_PORT)])
    command = command.replace("${HOSTS[0]}", "$LWS_LEADER_ADDRESS" if hosts > 1 else "127.0.0.1")
    if rank:
        local = started.parallel.attention.dp // hosts
        command = command.replace("--node-rank 1", "--node-rank $LWS_WORKER_INDEX")
        command = re.sub(r"(--data-parallel-start-rank) \d+", rf"\1 $((LWS_WORKER_INDEX * {local}))", command)
    container: dict[str, Any] = {
        "name": started.engine, "image": IMAGES[started.engine],
        "command": ["bash", "-c", "\n".join([*start.attention_lines([started]), f"exec {command}"])],
        "env": [{"name": "MODEL", "value": _model(started)}], "ports": [{"containerPort": ROUTER_PORT}],
        "resources": _gpus(started, hosts), "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }  # fmt: skip
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if not rank:  # an hour, as the script waits for a model to be loaded
        container["startupProbe"] = {
            "httpGet": {"path": "/health", "port": ROUTER_PORT}, "periodSeconds": 5, "failureThreshold": 720,
        }  # fmt: skip
    if start.options_file(started):
        container["workingDir"] = _OPTIONS
        container["volumeMounts"].append({"name": "options", "mountPath": _OPTIONS})
        volumes.append({"name": "options", "configMap": {"name": _name(started)}})
    return {"containers": [container], "volumes": volumes}


def _gpus(started: Started, hosts: int) -> dict[str, Any]:
    return {"limits": {"nvidia.com/gpu": str(-(-started.parallel.devices // hosts))}}


def _model(started: Started) -> str:
    return started.checkpoint or start.published_name(started.model)


def _name(started: Started) -> str:
    return re.sub(r"[^a-z0-9]+", "-", started.model.name.lower()).strip("-")
