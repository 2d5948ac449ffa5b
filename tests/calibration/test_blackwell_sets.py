"""Layouts of the Blackwell set: a few rows of each, read into the schema; dtypes of four bits; siblings."""

import numpy as np
import pytest

from archsim.base.units import DTYPES
from archsim.laws.attention import AttentionSizes, work_of
from archsim.laws.laws import Laws, MoeSizes
from archsim.specs.calibration_files import load_calibration
from archsim.specs.system import SystemSpec
from calibration.measurements.reading import kinds_of, read_measurements
from calibration.measurements.schema import DATASHEETS

FILES = {
    "gemm/aic_gemm_grid_b200.csv": (
        "gpu,dtype,n,k,m,latency_us_trtllm_1_3_0rc20,latency_us_trtllm_1_3_0rc10,latency_us_vllm_0_24_0,latency_us_vllm_0_19_0",
        "B200-SXM,nvfp4,4096,4096,1,13.735,13.073,9.088,8.359",
        "B200-SXM,fp8_block,4096,4096,1,9.338,13.292,,17.2",
    ),
    "moe/aic_moe_fused_b200.csv": (
        "gpu,model,dtype,framework,framework_version,kernel_source,distribution,tp,ep,num_tokens,repeat,suspect,latency_us",
        "B200-SXM,gpt-oss-120b,w4a16_mxfp4,trtllm,1.3.0rc20,moe_torch_flow,balanced,1,1,64,0,0,50",
        "B200-SXM,gpt-oss-120b,w4a16_mxfp4,trtllm,1.3.0rc20,moe_torch_flow,balanced,1,1,64,1,0,51",
        "B200-SXM,gpt-oss-120b,w4a16_mxfp4,trtllm,1.3.0rc20,moe_torch_flow,balanced,1,1,128,0,1,50",
        "B200-SXM,Kimi-K2,int4_wo,sglang,0.5.14,sglang_marlin_moe,balanced,1,8,64,0,0,150",
    ),
    "attention/aic_gqa_context_b200.csv": (
        "gpu,framework,framework_version,kernel_source,attn_dtype,kv_dtype,q_heads,kv_heads,head_dim,window,batch,input_tokens,latency_us",
        "B200-SXM,sglang,0.5.9,flashinfer,bfloat16,bfloat16,4,1,128,0,1,1,14.48",
    ),
    "attention/aic_mla_module_blackwell.csv": (
        "gpu,framework,framework_version,kernel_source,scope,model,phase,mla_dtype,kv_cache_dtype,gemm_type,num_heads,tp_size,batch_size,isl,step,repeat,latency_us",
        "B200-SXM,sglang,0.5.10,trtllm_mla,wideep_module,DeepSeek-V3,context,fp8_block,fp8,fp8_block,16,1,1,64,0,0,554.6",
        "B200-SXM,trtllm,1.3.0rc20,default,module,DeepSeek-V3,generation,bfloat16,fp8,nvfp4,16,1,4,1,1024,0,60.6",
    ),
    "attention/aic_mla_kernels_blackwell.csv": (
        "gpu,framework,framework_version,kernel_source,phase,mla_dtype,kv_cache_dtype,num_heads,tp_size,batch_size,isl,step,repeat,latency_us",
        "B200-SXM,sglang,0.5.10,trtllm_mla,context,bfloat16,bfloat16,1,64,1,16,0,0,13.056",
    ),
    "attention/aic_mla_bmm_blackwell.csv": (
        "gpu,framework,framework_version,op,kernel_source,dtype,num_heads,num_tokens,latency_us",
        "B200-SXM,trtllm,1.3.0rc20,mla_gen_pre,trtllm_bmm_out,bfloat16,128,64,6.685",
    ),
    "comm/aic_nccl_collectives_blackwell.csv": (
        "gpu,nccl_version,nccl_version_in_file,op,dtype,num_gpus,message_bytes,repeat,latency_us",
        "GB300-NVL72,2.27,2.29.2,alltoall,half,2,512,0,8.41",
        "GB300-NVL72,2.27,2.29.2,alltoall,half,2,512,1,8.51",
    ),
}


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blackwell")
    for name, lines in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder, read_measurements(folder)


def test_products_of_engines_are_the_newest_version_that_has_the_dtype(read):
    rows = read[1].table("gemm", "b200")
    found = set(zip(rows["library"], rows["library_version"], rows["dtype"], rows["latency_us_median"], strict=True))
    assert found == {
        ("trtllm", "1.3.0rc20", "nvfp4", 13.735), ("trtllm", "1.3.0rc20", "fp8_block", 9.338),
        ("vllm", "0.24.0", "nvfp4", 9.088), ("vllm", "0.19.0", "fp8_block", 17.2),
    }  # fmt: skip
    assert set(rows["quant_included"]) == {"1"}


def test_suspect_layers_are_left_out_and_repeats_are_runs(read):
    rows = read[1].table("moe", "b200")
    assert set(zip(rows["model"], rows["dtype"], rows["run_id"], rows["tokens_total"], strict=True)) == {
        ("gpt-oss-120b", "mxfp4", "1.3.0rc20", 64), ("gpt-oss-120b", "mxfp4", "1.3.0rc20 run 2", 64),
        ("Kimi-K2", "int4", "0.5.14", 64),
    }  # fmt: skip
    assert any("1 rows from this line on are not used: marked suspect" in each.reason for each in read[1].problems)


def test_attention_has_versions_and_blocks_their_projections(read):
    rows = read[1].table("attention", "b200").set_index("kind").sort_index()
    assert rows.loc["gqa", "library_version"] == "0.5.9" and rows.loc["mla", "library"] == "sglang"
    blocks = rows.loc["mla_block"].set_index("library")
    assert blocks["products"].to_dict() == {"sglang-wideep": "fp8_block", "trtllm": "nvfp4"}
    assert blocks.loc["trtllm", ["tokens", "batch", "kv_dtype"]].tolist() == [1025, 4, "fp8"]
    assert rows.loc["mla_pre", ["heads", "batch", "phase"]].tolist() == [128, 64, "decode"]


def test_one_section_reads_the_files_of_its_kind_alone(read):
    found = read_measurements(read[0], kinds=kinds_of(["collectives"]))
    assert set(found.tables) == {"collective"} and len(found.table("collective", "gb300")) == 2


def test_the_work_of_a_block_is_that_of_attention_and_of_its_projections():
    kernel, block = (AttentionSizes(16, 1, 576, kind=kind) for kind in ("mla", "mla_block"))
    (flop, moved), (all_flop, all_moved) = (
        work_of("decode", sizes, 4, 1, 1000, "bf16", products)
        for sizes, products in ((kernel, ""), (block, "nvfp4"))
    )
    weights = 7168 * 2112 + 16 * (1536 * 192 + 512 * 256 + 128 * 7168)
    assert all_flop - flop == 2 * 4 * weights and all_moved - moved == pytest.approx(weights * 0.5625)
    twice = [work_of("decode", AttentionSizes(h, 1, 576, kind="mla_pre"), 8, 1, 1, "bf16") for h in (4, 8)]
    assert np.allclose(np.array(twice[1]), 2 * np.array(twice[0]))


@pytest.mark.parametrize("gpu", ["b200", "gb200", "b300", "gb300"])
def test_blackwell_has_its_own_tables(gpu):
    laws = Laws(load_calibration(gpu))
    for dtype in ("bf16", "fp8", "fp8_block", "nvfp4"):
        assert not laws.gemm(64, 4096, 7168, dtype=dtype).extrapolated
        layer = laws.fused_moe(4096, 8, dtype=dtype, model="Qwen3.5-397B-A17B")
        assert not layer.extrapolated and not layer.table.scaled_from
    for kind, products in (("mla", ""), ("mla_block", "nvfp4")):
        how = {"heads": 16, "kv_heads": 1, "head_dim": 576, "kind": kind, "products": products}
        assert not laws.attention(1, 4096, 32, dtype="bf16", kv_dtype="fp8", **how).table.scaled_from
    assert laws.collective("all_gather", 2**20, ranks=4).ns > 0 and laws.collective("all_to_all", 2**20, ranks=4).ns > 0
    own = MoeSizes(5120, 1536, 160, 8)  # of no measured model: the nearest one's law, flagged
    times = laws.fused_moe([64, 4096], 8, dtype="fp8_block", sizes=own, library="trtllm")
    assert times.extrapolated.all() and 0 < times.ns[0] < times.ns[1] and times.table.hidden == 5120


@pytest.mark.parametrize("dtype", DTYPES)
def test_systems_take_every_dtype_and_count_its_bytes(dtype):
    system = SystemSpec.model_validate(
        {"name": "x", "source": "x", "mesh": {"x": 1, "y": 1}, "compute": {"peak": "9 PFLOP/s", "dtype": dtype},
         "hbm": {"bandwidth": "8 TB/s", "capacity": "180 GB"}, "d2d": {"bandwidth": "1 TB/s"}},
        by_alias=True, by_name=False,
    )  # fmt: skip
    assert system.compute.bytes_of(1024) == 1024 * DTYPES[dtype].weight
    assert all(dtype == "fp16" or dtype in DATASHEETS[gpu].peak_flop_per_s for gpu in ("b200", "gb300"))
