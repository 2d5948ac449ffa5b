"""What people and engines call keys of a deployment, and what to write instead; keys of the place come first."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from archsim.base.fields import Spec

REDUNDANT, DRAFTS, OFFLOAD = "redundant_experts", "speculation.draft_tokens", "kv_store"
INTERVAL = "rebalance_interval"  # iterations between two placements by EPLB
# A key → its other names: of flags of vLLM, SGLang and TensorRT-LLM, and what people call it.
_SPOKEN: Mapping[str, str] = MappingProxyType({
    "requests.arrivals.rate": "rate request_rate load qps rps arrival_rate",
    "requests.concurrency": "users clients max_concurrency",
    "requests.input.mean": "input_tokens input_len input_length isl prompt_tokens prompt_length",
    "requests.output.mean": "output_tokens output_len output_length osl",
    "parallel.attention.tp": "tp tensor_parallel_size", "parallel.attention.dp": "dp data_parallel_size",
    "parallel.attention.context": "cp dcp context_parallel decode_context_parallel_size",
    "parallel.experts.ep": "ep expert_parallel_size moe_ep", "parallel.experts.tp": "moe_tp",
    "parallel.pp": "pipeline pipeline_parallel_size", "instances": "replicas", "system": "gpu machine hardware",
    "precision.kv": "kv_cache_dtype kv_cache_precision kv_precision kv_dtype",
    "precision": "quantization quant dtype weights weight_precision", "engine_version": "version",
    "scheduler.prefix_caching": "enable_prefix_caching prefix_cache radix_cache",
    "scheduler.chunked_prefill": "enable_chunked_prefill chunking",
    "scheduler.max_num_batched_tokens": "chunked_prefill_size prefill_chunk chunk chunk_size max_num_tokens",
    "scheduler.max_num_seqs": "max_running_requests max_batch max_batch_size batch_size batch",
    "utilisation": "gpu_memory_utilization mem_fraction_static", "faults": "failures failed_gpus",
    DRAFTS: "num_speculative_tokens speculative_num_steps drafts mtp nextn",
    "speculation": "speculative_decoding spec_decode", "speculation.acceptance": "acceptance_rate",
    OFFLOAD: "kv_offload kv_offloading hicache", "disaggregated": "disagg disaggregation pd",
    "policies": "policy balancer load_balancer load_balancing",
    INTERVAL: "interval eplb_interval eplb_rebalance_num_iterations rebalance_every every_steps",
    REDUNDANT: "num_redundant_experts ep_num_redundant_experts redundant experts.redundant eplb.redundant_experts",
})  # fmt: skip
NAMES: Mapping[str, str] = MappingProxyType({name: key for key, names in _SPOKEN.items() for name in names.split()})
# Terms → what to write, where that is more than a key.
_ROWS: tuple[tuple[str, str], ...] = (
    (
        "num_redundant_experts ep_num_redundant_experts redundant redundant_experts eplb enable_eplb",
        "write policies: [{name: eplb, placement: {name: redundant, slots: 4}, allocation: even}], slots of each rank, "
        "and routing: {like: model}; `--set redundant_experts=32` writes both",
    ),
    (
        "rebalance_interval interval eplb_interval eplb_rebalance_num_iterations rebalance_every every_steps",
        "write policies: [{name: eplb, allocation: even, rebalancing: {name: eplb, every_steps: 1000}}] and routing: "
        "{like: model}, or give `--set rebalance_interval=1000`",
    ),
    (
        "sla limits limit latency p99 ttft_p99 tpot_p99 ttft_ms tpot_ms itl tbt e2el",
        "write slo: {ttft: 2 s, tpot: 50 ms, e2e: 60 s}; goodput is the requests per second within them",
    ),
    (
        "traffic workload",
        "requests are requests: {arrivals: {rate: 4/s}, input: {mean: 1000}, output: {mean: 200}}; which experts "
        "their tokens choose is routing: {like: model}",
    ),
    (
        "gpus n_gpus num_gpus nodes num_nodes",
        "devices follow from the ranks: parallel: {attention: {tp: 8, dp: 2}} are 16 of them, and instances: 2 "
        "are twice as many",
    ),
    (
        "num_prompts num_requests duration",
        "write requests.count, the requests in all: the rate times the seconds",
    ),
    (
        "dataset file",
        "write requests: {trace: FILE}, of recorded requests",
    ),
    (
        "poisson burst",
        "arrivals are Poisson with requests: {arrivals: {rate: 4/s}}, and come in bursts with arrivals.burstiness"
        " below 1",
    ),
    (
        "prefix system_prompt",
        "write requests.prefixes: {tokens: {fixed: 512}, count: 4}",
    ),
    (
        "backend framework",
        "write engine: vllm, sglang, trtllm or none",
    ),
    (
        "max_model_len context_length",
        "the longest request decides: it is the sum of requests.input and requests.output",
    ),
    (
        "attention_backend cuda_graph enforce_eager",
        "kernels and captured graphs follow from engine, engine_version and model, and have no key",
    ),
    (
        "lora adapters",
        "adapters are not modelled; their GEMMs would add to each layer",
    ),
    (
        "router",
        "write scheduler.balance: round_robin, least_loaded, prefix_aware, cache_aware or session",
    ),
    (
        "overlap",
        "the host works beside the GPU as the version of the engine does (engine_version), and has no key for it",
    ),
    (
        "prefill_gpus prefill_instances decode_gpus decode_instances p d ratio",
        "write disaggregated: {prefill: {instances: 2, parallel: ...}, decode: {instances: 4, parallel: ...}}",
    ),
    (
        "kv_transfer network",
        "write disaggregated.transfer: {bandwidth: 50 GB/s, latency: 10 us}; without bandwidth, the links of the "
        "system",
    ),
    (
        "activations",
        "activations have the dtype of the GEMMs, precision.products; write precision: {products: fp8_block}",
    ),
    (
        "attention",
        "GEMMs of attention have the dtype precision.products, but for parts in precision.bf16; its cache has "
        "precision.kv",
    ),
    (
        "quantization quant dtype weights weight_precision",
        "write precision: {products: fp8_block, experts: nvfp4, kv: fp8}, of GEMMs, experts and KV cache",
    ),
    (
        "moe moe_dtype",
        "write precision.experts",
    ),
    (
        "tensor tp_size",
        "write parallel.attention.tp",
    ),
    (
        "data dp_size dp_attention enable_dp_attention",
        "write parallel.attention.dp",
    ),
    (
        "expert ep_size enable_expert_parallel",
        "write parallel.experts.ep",
    ),
    (
        "kv_block page_size",
        "write scheduler.block_tokens",
    ),
)
# Keys of a part, as they are often written beside it.
_INNER: Mapping[str, str] = MappingProxyType({
    "requests": "arrivals concurrency input output trace prefixes sessions",
    "scheduler": "max_num_seqs max_num_batched_tokens chunked_prefill prefix_caching block_tokens",
    "slo": "ttft tpot e2e", "speculation": "draft_tokens acceptance",
})  # fmt: skip
TERMS: Mapping[str, str] = MappingProxyType(
    {key: f"write {part}.{key}" for part, keys in _INNER.items() for key in keys.split()}
    | {name: f"write {key}" for name, key in NAMES.items()}
    | {term: way for terms, way in _ROWS for term in terms.split()}
)


class ServingSpec(Spec):
    """A part of a deployment: names the key that is meant by a term of engines and of people."""

    WAYS: ClassVar[Mapping[str, str]] = TERMS
    WHOLE: ClassVar[bool] = True  # terms are whole keys, and no words of longer ones
