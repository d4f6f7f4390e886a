# A change of an evaluation's config reruns it; the run's own config is in its name.
rule evaluate_run:
    input:
        evaluate_inputs,
    output:
        "results/{scale}/runs/{run}/evals/{group}.json",
    log:
        "results/{scale}/logs/evaluate_run/{run}-{group}.log",
    benchmark:
        "results/{scale}/benchmarks/evaluate_run/{run}-{group}.tsv"
    conda:
        "../envs/patchwork.yaml"
    threads: SLURM.cpus if SITE.slurm else SITE.threads
    resources:
        **QUEUE,
        gres=f"{SLURM.gres}:1" if SLURM.gres else "",
        runtime=120,
    params:
        configs=eval_configs,
    message:
        "evaluate {wildcards.run} ({wildcards.group})"
    shell:
        "python -m pipeline evaluate --scale {wildcards.scale} --run {wildcards.run} --group {wildcards.group} > {log} 2>&1"
