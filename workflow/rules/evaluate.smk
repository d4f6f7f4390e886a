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
    threads: SITE.threads
    resources:
        **QUEUE,
        gres=gpus(1),
        mem_mb=SITE.memory_gb * 1000,
        runtime=120,
    params:
        configs=eval_configs,
    message:
        "evaluate {wildcards.run} ({wildcards.group})"
    shell:
        "python -m pipeline evaluate --scale {wildcards.scale} --run {wildcards.run} --group {wildcards.group} > {log} 2>&1"
