"""How engines are started as a deployment says: a script that runs vLLM, SGLang or TensorRT-LLM, with a router where
there are several.

Sources, by engine:

- vLLM 0.11 to 0.25: ``vllm/engine/arg_utils.py``; docs.vllm.ai, *NixlConnector Usage Guide* (a side channel has a port
  for each rank of data-parallel attention, from ``VLLM_NIXL_SIDE_CHANNEL_PORT`` on), *Data Parallel Deployment*,
  *Parallelism and Scaling* (``--nnodes``: 0.12 and later); github.com/vllm-project/router for ``vllm-router``.
- SGLang 0.5: ``server_args.py``. ``--tp-size`` is of all ranks, and so are ``--max-running-requests`` and
  ``--chunked-prefill-size``. Pull request sgl-project/sglang#41818 replaces ``--enable-dp-attention --dp-size`` by
  ``--attn-dp-size``; the script asks the engine which of them it knows. Ports that follow ``--dist-init-addr``:
  ``PortArgs.init_new``. Pools and their router: docs.sglang.io, *PD Disaggregation*.
- TensorRT-LLM 1.0 to 1.2: ``trtllm-serve``, ``llm_args.py``; ``examples/disaggregated/README.md``; *trtllm-serve* for
  several nodes (``trtllm-llmapi-launch``).
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from archsim.iteration.layers import has_experts
from archsim.machine.system import SystemSpec
from archsim.model.spec import ModelSpec
from archsim.show.units import count_of
from archsim.specs.deployment import ParallelSpec, Precision

BOTH, PREFILL, DECODE = "both", "prefill", "decode"
ROUTER_PORT, PORTS_OF_ENGINE = 8000, 200  # what clients ask; an engine has so many ports, of which it uses the offsets:
RENDEZVOUS, BOOTSTRAP, SIDE_CHANNEL = 1, 99, 100  # SGLang: ranks and 20 from the first; NIXL: ranks from the last
OPTIONS_OF = "trtllm_{role}.yaml"  # file of TensorRT-LLM's further options
GPUS_OF_SERVER, GPUS_OF_TRAY = 8, 4  # NVIDIA: HGX baseboards; compute trays of GB200, GB300 and VR NVL72
_CHECKPOINT = re.compile(r"[\w.-]+/[\w.-]+")
# Values of --kv-cache-dtype, and of kv_cache_config.dtype.
_KV = {"vllm": {"bf16": "auto", "fp8": "fp8"}, "sglang": {"bf16": "auto", "fp8": "fp8_e4m3"},
       "trtllm": {"bf16": "auto", "fp8": "fp8"}}  # fmt: skip


class Started(NamedTuple):
    """Engines that are started with the same arguments."""

    engine: str  # vllm, sglang or trtllm
    model: ModelSpec
    parallel: ParallelSpec  # of one of them
    precision: Precision
    instances: int
    max_num_seqs: int  # requests of a rank of data-parallel attention
    max_num_batched_tokens: int  # tokens of a rank's iteration
    role: str = BOTH  # of BOTH, PREFILL and DECODE
    chunked_prefill: bool = True
    utilisation: float | None = None  # share of HBM; None: as the engine does by itself
    checkpoint: str = ""  # as the user named it; '': that of the model's source
    drafts: int = 0  # tokens that a head of the checkpoint drafts (MTP)


def published_name(model: ModelSpec) -> str:
    """The checkpoint's name at Hugging Face, from the source of the model file; else the model's name."""
    found = _CHECKPOINT.match(model.source or "")
    return found[0] if found else model.name


class Placed(NamedTuple):
    """An engine, the first of its ports, and its GPUs: (number of the host, those on it) for each of its hosts."""

    started: Started
    instance: int
    port: int
    gpus: tuple[tuple[int, tuple[int, ...]], ...]


def gpus_of_host(system: SystemSpec) -> int:
    """GPUs of one host of a machine: the innermost group, or of a rack that is one group, a tray."""
    inner = system.fabric.levels[0].size if system.fabric is not None and system.fabric.levels else system.dies
    return inner if inner <= GPUS_OF_SERVER else GPUS_OF_TRAY


def placements(every: Sequence[Started], of_host: int) -> list[Placed]:
    """Every engine on its own GPUs: the largest first, on the first host with room, or over whole hosts."""
    free: list[int] = []  # GPUs that are left on each host
    instances = [(started, instance) for started in every for instance in range(started.instances)]
    found: dict[int, Placed] = {}
    for number, (started, instance) in sorted(enumerate(instances, 1), key=lambda each: -each[1][0].parallel.devices):
        ranks = started.parallel.devices
        hosts = -(-ranks // of_host)
        first = next((host for host, left in enumerate(free) if hosts == 1 and left >= ranks), len(free))
        free += [of_host] * (first + hosts - len(free))
        gpus = []
        for host in range(first, first + hosts):
            begin, mine = of_host - free[host], -(-ranks // hosts)
            free[host] = free[host] - mine if hosts == 1 else 0
            gpus.append((host, tuple(range(begin, begin + mine))))
        port = ROUTER_PORT + PORTS_OF_ENGINE * number if len(instances) > 1 else ROUTER_PORT
        found[number] = Placed(started, instance, port, tuple(gpus))
    return [found[number] for number in sorted(found)]


def arguments(started: Started) -> list[str]:
    return {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[started.engine](started)


def options_file(started: Started) -> str:
    """TensorRT-LLM's file of further options, as YAML; '' for other engines."""
    if started.engine != "trtllm":
        return ""
    kv = {"dtype": _KV["trtllm"][started.precision.kv]}
    if started.utilisation is not None:
        kv["free_gpu_memory_fraction"] = f"{started.utilisation:g}"
    lines = [
        f"enable_attention_dp: {str(started.parallel.attention.dp > 1).lower()}",
        f"enable_chunked_prefill: {str(started.chunked_prefill).lower()}",
        "kv_cache_config:",
        *(f"  {key}: {value}" for key, value in kv.items()),
    ]
    if started.drafts:
        lines += ["speculative_config:", "  decoding_type: MTP", f"  num_nextn_predict_layers: {started.drafts}"]
    if started.role == PREFILL:
        lines.append("disable_overlap_scheduler: true")  # context servers cannot overlap yet
    if started.role != BOTH:
        lines += ["cache_transceiver_config:", "  backend: DEFAULT"]
    return "\n".join([*lines, ""])


def script(every: Sequence[Started], of_host: int = GPUS_OF_SERVER) -> str:
    """A shell script that starts every engine on GPUs of its own, and a router in front of several. ``of_host``: GPUs
    of a host. It says what is missing, and ends, where a program is not installed or the hosts are not named.
    """
    first, engines = every[0], placements(every, of_host)
    hosts = 1 + max(host for each in engines for host, _ in each.gpus)
    tools = [*_TOOLS[first.engine], *(_router_tools(first) if len(engines) > 1 else ())]
    if first.engine == "trtllm" and any(len(each.gpus) > 1 for each in engines):
        tools.append("mpirun")
    lines = [
        "#!/usr/bin/env bash",
        f"# {first.model.name}: {count_of(len(engines), 'engine')} on {count_of(hosts, 'host')} of {of_host} GPUs. "
        f"Clients ask port {ROUTER_PORT}{' of the first host' * (hosts > 1)}.",
        f"# The checkpoint has GEMMs in {first.precision.products}"
        + (f" and experts in {first.precision.experts}" if has_experts(first.model) else "")
        + f"{first.precision.kept_words}; set MODEL to it.",
        f"MODEL=${{MODEL:-{first.checkpoint or published_name(first.model)}}}",
        f'missing() {{ echo "start.sh: $1 is missing: {_VERSIONS[first.engine]}" >&2; exit 2; }}',
        *(f"{_check(tool)} || missing {shlex.quote(tool)}" for tool in tools),
    ]
    if hosts > 1:
        lines += [
            "HOSTS=(${HOSTS:-})  # their addresses",
            "HOST=${HOST:-}  # the number of this host among them, from 0; run this script on each",
            f'[ ${{#HOSTS[@]}} -eq {hosts} ] && [[ "$HOST" =~ ^[0-9]+$ ]] || '
            f"missing \"HOSTS='A B ...' ({hosts} addresses) or HOST=0, 1, ... (which of them this is)\"",
        ]
    else:
        lines += ["HOSTS=(127.0.0.1)", "HOST=0"]
    lines += attention_lines(every)
    lines += ["trap 'kill $(jobs -p) 2> /dev/null' EXIT", ""]
    for each in engines:
        lines += _lines_of(each, hosts)
    if len(engines) > 1:
        lines += _router(engines)
    return "\n".join([*lines, "wait", ""])


def attention_lines(every: Sequence[Started]) -> list[str]:
    """Lines of a shell that ask SGLang which flag of data-parallel attention it knows; none where no engine has it."""
    if every[0].engine != "sglang" or all(each.parallel.attention.dp == 1 for each in every):
        return []
    return [
        "# Newer versions have another flag (sgl-project/sglang#41818).",
        f"ATTENTION='{' '.join(_DP_ATTENTION)}'",
        "if python -m sglang.launch_server --help | grep -q -e --attn-dp-size; then ATTENTION=--attn-dp-size; fi",
    ]


MODEL = "$MODEL"
_DP_ATTENTION = ("--enable-dp-attention", "--dp-size")  # of SGLang before sgl-project/sglang#41818
_VERSIONS = {
    "vllm": "it needs vLLM 0.11 or later (0.12 for an engine of several hosts), vllm-router and nixl for pools, nginx "
            "for several identical engines",
    "sglang": "it needs SGLang 0.5 or later, with sglang-router for several engines",
    "trtllm": "it needs TensorRT-LLM 1.0 or later, nginx for identical engines, mpirun for one of several hosts",
}  # fmt: skip
_TOOLS = {"vllm": ("vllm",), "sglang": ("sglang",), "trtllm": ("trtllm-serve",)}


def _router_tools(first: Started) -> tuple[str, ...]:
    if first.engine == "sglang":
        return ("sglang_router", "curl")
    if first.role == BOTH:
        return ("nginx", "curl")
    return ("vllm-router", "nixl", "curl") if first.engine == "vllm" else ("curl",)


def _check(tool: str) -> str:
    if tool in ("sglang", "sglang_router", "nixl"):
        return f"python -c 'import {tool}'"
    return f"command -v {tool} > /dev/null"


def shell(words: Sequence[str]) -> str:
    """Words of a command. Variables are left for the shell, and so is which flag of attention SGLang knows."""
    quoted = (f'"{each}"' if "$" in each else shlex.quote(each) for each in words)
    return " ".join(quoted).replace(" ".join(_DP_ATTENTION), "$ATTENTION")


def _lines_of(engine: Placed, hosts: int) -> Iterator[str]:
    started, of = engine.started, engine.started.role
    name = "engine" if of == BOTH else f"engine that does {of} alone"
    yield f"# {name}, {engine.instance + 1} of {started.instances}: {count_of(started.parallel.devices, 'GPU')}"
    for rank, (host, gpus) in enumerate(engine.gpus):
        if rank and started.engine == "trtllm":  # mpirun of the first host starts the others
            continue
        set_first = [f"CUDA_VISIBLE_DEVICES={','.join(map(str, gpus))}"]
        words = words_of(engine, rank)
        if started.engine == "vllm" and of != BOTH:
            set_first.append(f"VLLM_NIXL_SIDE_CHANNEL_PORT={engine.port + SIDE_CHANNEL}")
            set_first.append(f'VLLM_NIXL_SIDE_CHANNEL_HOST="${{HOSTS[{host}]}}"')
        words += ["--host", "0.0.0.0" if hosts > 1 or engine.port == ROUTER_PORT else "127.0.0.1"]
        command = f"{' '.join(set_first)} {shell([*words, '--port', str(engine.port)])} &"
        yield f'[ "$HOST" != {host} ] || {command}' if hosts > 1 else command


def words_of(engine: Placed, rank: int) -> list[str]:
    """The command of an engine on the ``rank``-th of its hosts, without the address that it listens at."""
    words = _with_hosts(engine, arguments(engine.started), rank)
    if engine.started.engine == "sglang" and engine.started.role == PREFILL:
        words += ["--disaggregation-bootstrap-port", str(engine.port + BOOTSTRAP)]
    return words


def _with_hosts(engine: Placed, words: list[str], rank: int) -> list[str]:
    """The command of an engine with ports of its own for its ranks to meet at, on the ``rank``-th of its hosts."""
    started, hosts = engine.started, len(engine.gpus)
    address, port = f"${{HOSTS[{engine.gpus[0][0]}]}}", str(engine.port + RENDEZVOUS)
    dp = started.parallel.attention.dp
    if started.engine == "sglang":
        words = [*words, "--dist-init-addr", f"{address}:{port}"]
        return [*words, "--nnodes", str(hosts), "--node-rank", str(rank)] if hosts > 1 else words
    if started.engine == "trtllm":
        if hosts == 1:
            return words
        slots = ",".join(f"${{HOSTS[{host}]}}:{len(gpus)}" for host, gpus in engine.gpus)
        return ["mpirun", "-n", str(started.parallel.devices), "-H", slots, "-x", "CUDA_VISIBLE_DEVICES",
                "trtllm-llmapi-launch", *words]  # fmt: skip
    headless = ["--headless"] if rank else []
    if hosts > 1 and dp % hosts:
        return [*words, *headless, "--nnodes", str(hosts), "--node-rank", str(rank), "--master-addr", address,
                "--master-port", port]  # fmt: skip
    if dp > 1:
        words = [*words, "--data-parallel-rpc-port", port]
    if hosts > 1:
        words += ["--data-parallel-size-local", str(dp // hosts), "--data-parallel-address", address, *headless]
        words += ["--data-parallel-start-rank", str(rank * dp // hosts)] if rank else []
    return words


def _router(engines: Sequence[Placed]) -> Iterator[str]:
    """The lines that wait for all engines and start what clients ask, on the first host."""
    first = engines[0].started
    addresses = [f"${{HOSTS[{each.gpus[0][0]}]}}:{each.port}" for each in engines]
    by_role = {role: [address for each, address in zip(engines, addresses, strict=True) if each.started.role == role]
               for role in (PREFILL, DECODE)}  # fmt: skip
    yield '[ "$HOST" = 0 ] || { wait; exit; }'
    yield f"for engine in {shell(addresses)}; do  # until their models are loaded"
    yield '    curl -fs --retry 720 --retry-delay 5 --retry-all-errors "http://$engine/health" > /dev/null || exit 1'
    yield "done"
    listen = ["--host", "0.0.0.0", "--port", str(ROUTER_PORT)]
    if first.engine == "sglang":
        words = ["python", "-m", "sglang_router.launch_router"]
        if first.role == BOTH:
            words += ["--worker-urls", *(f"http://{each}" for each in addresses)]
        else:
            words.append("--pd-disaggregation")
        for each, address in zip(engines, addresses, strict=True):
            if each.started.role == PREFILL:
                words += ["--prefill", f"http://{address}", str(each.port + BOOTSTRAP)]
            elif each.started.role == DECODE:
                words += ["--decode", f"http://{address}"]
        yield f"{shell([*words, *listen])} &"
    elif first.role == BOTH:  # neither vLLM nor TensorRT-LLM has a router of its own for these
        servers = " ".join(f"server {each};" for each in addresses)
        yield "cat > nginx.conf << END"
        yield "events {}"
        yield "http {"
        yield f"    upstream engines {{ least_conn; {servers} }}"
        yield (f"    server {{ listen {ROUTER_PORT}; location / {{ proxy_pass http://engines; proxy_buffering off; "
               "proxy_read_timeout 1h; } }")  # fmt: skip
        yield "}"
        yield "END"
        yield "nginx -c \"$PWD/nginx.conf\" -g 'daemon off;' &"
    elif first.engine == "vllm":
        words = ["vllm-router", "--vllm-pd-disaggregation", "--policy", "round_robin"]
        for role, found in by_role.items():
            words += [word for each in found for word in (f"--{role}", f"http://{each}")]
        yield f"{shell([*words, *listen])} &"
    else:
        yield "cat > trtllm_router.yaml << END"
        yield f"hostname: 0.0.0.0\nport: {ROUTER_PORT}\nbackend: pytorch"
        for key, found in zip(("context_servers", "generation_servers"), by_role.values(), strict=True):
            yield f"{key}:\n  num_instances: {len(found)}\n  urls: [{', '.join(found)}]"
        yield "END"
        yield "trtllm-serve disaggregated -c trtllm_router.yaml &"


def _vllm(started: Started) -> list[str]:
    attention, experts = started.parallel.attention, started.parallel.experts
    found = ["vllm", "serve", MODEL, "--tensor-parallel-size", str(attention.tp)]
    if attention.dp > 1:
        found += ["--data-parallel-size", str(attention.dp)]
    if experts is not None and experts.ep > 1:
        found += ["--enable-expert-parallel"]
    found += ["--pipeline-parallel-size", str(started.parallel.pp)] if started.parallel.pp > 1 else []
    found += ["--decode-context-parallel-size", str(attention.context)] if attention.context > 1 else []
    if started.drafts:
        found += ["--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": started.drafts})]
    found += ["--max-num-seqs", str(started.max_num_seqs)]
    found += ["--max-num-batched-tokens", str(started.max_num_batched_tokens)]
    found += ["--kv-cache-dtype", _KV["vllm"][started.precision.kv]]
    if started.utilisation is not None:
        found += ["--gpu-memory-utilization", f"{started.utilisation:g}"]
    if started.role != BOTH:
        connector = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        found += ["--kv-transfer-config", json.dumps(connector)]
    return found


def _sglang(started: Started) -> list[str]:
    attention, experts = started.parallel.attention, started.parallel.experts
    found = ["python", "-m", "sglang.launch_server", "--model-path", MODEL, "--tp-size", str(started.parallel.ranks)]
    if attention.dp > 1:
        found += [*_DP_ATTENTION, str(attention.dp)]
    if experts is not None and experts.ep > 1:
        found += ["--ep-size", str(experts.ep)]
    found += ["--pp-size", str(started.parallel.pp)] if started.parallel.pp > 1 else []
    if started.drafts:
        found += ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", str(started.drafts)]
        found += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(started.drafts + 1)]
    found += ["--max-running-requests", str(started.max_num_seqs * attention.dp)]
    found += ["--chunked-prefill-size", str(started.max_num_batched_tokens * attention.dp)]
    found += ["--kv-cache-dtype", _KV["sglang"][started.precision.kv]]
    if started.utilisation is not None:
        found += ["--mem-fraction-static", f"{started.utilisation:g}"]
    if started.role != BOTH:
        found += ["--disaggregation-mode", started.role]
    return found


def _trtllm(started: Started) -> list[str]:
    experts = started.parallel.experts
    found = ["trtllm-serve", MODEL, "--tp_size", str(started.parallel.ranks)]
    found += ["--pp_size", str(started.parallel.pp)] if started.parallel.pp > 1 else []
    if experts is not None:
        found += ["--ep_size", str(experts.ep)]
    found += ["--max_batch_size", str(started.max_num_seqs), "--max_num_tokens", str(started.max_num_batched_tokens)]
    return [*found, "--extra_llm_api_options", OPTIONS_OF.format(role=started.role)]
