# What a result depends on is in its name; a job names its results, so another config is another job to do. Results that
# are finished for the same weights and data are not computed again.
rule evaluate:
    input:
        evaluate_inputs,
    output:
        "results/{scale}/evals/{job}.json",
    log:
        "results/{scale}/logs/evaluate/{job}.log",
    benchmark:
        "results/{scale}/benchmarks/evaluate/{job}.tsv"
    conda:
        "../envs/patchwork.yaml"
    threads: SLURM.cpus if SITE.slurm else SITE.threads
    resources:
        **QUEUE | {"slurm_partition": evaluate_partition, "mem_mb": evaluate_memory},
        gres=evaluate_gres,
        runtime=evaluate_minutes,
    params:
        evaluations=eval_configs,
    message:
        "evaluate {wildcards.job}"
    shell:
        "python -m pipeline evaluate --scale {wildcards.scale} --job {wildcards.job} > {log} 2>&1"
