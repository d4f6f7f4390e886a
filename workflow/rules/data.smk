# `update`: the same data, verified again, keeps its manifest byte for byte.
rule prepare_data:
    input:
        JOBS.prepare_inputs,
    output:
        update("results/{scale}/data/{data}/manifest.json"),
    log:
        "results/{scale}/logs/prepare_data/{data}.log",
    benchmark:
        "results/{scale}/benchmarks/prepare_data/{data}.tsv"
    priority: JOBS.prepare_priority
    conda:
        "../envs/patchwork.yaml"
    threads: max(1, SITE.workers)
    resources:
        **JOBS.queue | {"slurm_partition": JOBS.cpu_partition},
        gpu=JOBS.prepare_gpus,
        runtime=int(JOBS.slurm.hours * 60),
    message:
        "prepare {wildcards.data}"
    shell:
        "python -m pipeline prepare --scale {wildcards.scale} --data {wildcards.data} > {log} 2>&1"
