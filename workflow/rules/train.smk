# Local also on a cluster, where the command submits the job, watches it and comes back with it.
# Its log is appended to: a training that outlives a killed Snakemake still writes there, and the next one waits for it.
# Checkpoints live in results/{scale}/state and are no output: Snakemake deletes outputs, and a killed run must continue.
# `update` keeps what was there until training replaces it: a run that was brought from elsewhere may be finished.
rule train_run:
    input:
        JOBS.train_inputs,
    output:
        update("results/{scale}/runs/{run}/train.json"),
    log:
        "results/{scale}/logs/train_run/{run}.log",
    benchmark:
        "results/{scale}/benchmarks/train_run/{run}.tsv"
    priority: JOBS.train_priority
    localrule: True
    conda:
        "../envs/patchwork.yaml"
    threads: 1 if SITE.slurm else SITE.threads * SITE.processes
    message:
        "train {wildcards.run}"
    shell:
        "python -m pipeline train --scale {wildcards.scale} --run {wildcards.run} >> {log} 2>&1"
