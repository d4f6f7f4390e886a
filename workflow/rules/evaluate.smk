# Each result has a folder of its own. Those that are finished for the same weights and data are not computed again.
rule evaluate:
    input:
        JOBS.evaluate_inputs,
    output:
        "results/{scale}/evals/{job}.json",
    log:
        "results/{scale}/logs/evaluate/{job}.log",
    benchmark:
        "results/{scale}/benchmarks/evaluate/{job}.tsv"
    conda:
        "../envs/patchwork.yaml"
    threads: JOBS.slurm.cpus if SITE.slurm else SITE.threads
    resources:
        **JOBS.queue
        | {"slurm_partition": JOBS.evaluate_partition, "mem_mb": JOBS.evaluate_memory},
        gpu=JOBS.evaluate_gpus,
        gres=JOBS.evaluate_gres,
        runtime=JOBS.evaluate_minutes,
    message:
        "evaluate {wildcards.job}"
    shell:
        "python -m pipeline evaluate --scale {wildcards.scale} --job {wildcards.job} > {log} 2>&1"
