"""Made-up measurements, written as files."""

GEMM = "run_id,gpu_name,library,library_version,dtype,quant_included,groups,m,n,k,latency_us_median"


P2P = (
    "run_id,gpu_name,library,library_version,placement,src,dst,method,direction,"
    "concurrent_pairs,bytes,latency_us_median"
)


MOE = (
    "run_id,gpu_name,library,library_version,model,dtype,hidden,ffn,experts,top_k,ep,tp,"
    "distribution,tokens_total,latency_us_median"
)


SHAPES = [(n, k) for n in (512, 1024, 2048, 4096) for k in (1024, 2048)]


def gemm(runs=("1",), version="2.8", m=(1, 4, 16, 64, 256), shapes=SHAPES, dtype="bf16", factor=1.0):
    """Rows of made-up GEMMs."""
    return [
        f"{run},NVIDIA H100,torch,{version},{dtype},0,1,{rows},{n},{k},{factor * (3 + n * k / 1e6 + 2 * rows * n * k / 5e8) * (1 + int(run) / 100):.4f}"  # noqa: E501
        for run in runs
        for n, k in shapes
        for rows in m
    ]


def written(folder, **files):
    """A folder of tables: name → rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        head = {"g": GEMM, "p": P2P, "m": MOE}[name[0]]
        (folder / f"{name}.csv").write_text("\n".join([head, *rows]) + "\n")
    return folder
