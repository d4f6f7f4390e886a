# Checkpoints live in results/{scale}/state and are no output: Snakemake deletes outputs, and a killed run must continue.
rule train_run:
    input:
        train_inputs,
    output:
        "results/{scale}/runs/{run}/train.json",
    log:
        "results/{scale}/logs/train_run/{run}.log",
    benchmark:
        "results/{scale}/benchmarks/train_run/{run}.tsv"
    priority: train_priority
    conda:
        "../envs/patchwork.yaml"
    threads: SITE.threads * SITE.processes
    resources:
        **QUEUE,
        gres=gpus(SITE.processes),
        mem_mb=SITE.memory_gb * 1000,
        runtime=SITE.hours * 60,
    message:
        "train {wildcards.run}"
    shell:
        "python -m pipeline train --scale {wildcards.scale} --run {wildcards.run} > {log} 2>&1"
