# Local also on a cluster, where the command submits the job, watches it and comes back with it.
# Snakemake deletes logs, too. This one is a link to a file that is appended to: no training loses its log, and one that
# outlives a killed Snakemake still writes there, while the next one waits for it.
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
    threads: JOBS.train_threads
    resources:
        gpu=JOBS.train_gpus,
    message:
        "train {wildcards.run}"
    shell:
        "mkdir -p results/{wildcards.scale}/state/{wildcards.run} && "
        "ln -sfn ../../state/{wildcards.run}/train.log {log} && "
        "python -m pipeline train --scale {wildcards.scale} --run {wildcards.run} >> {log} 2>&1"
