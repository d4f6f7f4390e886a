rule draw_table:
    input:
        JOBS.table_inputs,
    output:
        "results/{scale}/tables/{rows}/{table}.json",
    log:
        "results/{scale}/logs/draw_table/{rows}-{table}.log",
    benchmark:
        "results/{scale}/benchmarks/draw_table/{rows}-{table}.tsv"
    localrule: True
    conda:
        "../envs/patchwork.yaml"
    message:
        "draw {wildcards.table} ({wildcards.rows})"
    shell:
        "python -m pipeline table --scale {wildcards.scale} --table {wildcards.table} --rows {wildcards.rows} > {log} 2>&1"


use rule draw_table as draw_figure with:
    output:
        "results/{scale}/figures/{rows}/{table}.json",
    log:
        "results/{scale}/logs/draw_figure/{rows}-{table}.log",
    benchmark:
        "results/{scale}/benchmarks/draw_figure/{rows}-{table}.tsv"


rule judge_claims:
    input:
        JOBS.claims_inputs,
    output:
        "results/{scale}/tables/{rows}/{study}.claims.json",
    log:
        "results/{scale}/logs/judge_claims/{rows}-{study}.log",
    benchmark:
        "results/{scale}/benchmarks/judge_claims/{rows}-{study}.tsv"
    localrule: True
    conda:
        "../envs/patchwork.yaml"
    message:
        "judge the claims of {wildcards.study}"
    shell:
        "python -m pipeline claims --scale {wildcards.scale} --study {wildcards.study} --rows {wildcards.rows} > {log} 2>&1"


# `rows` is also the name of a study: its own report, with all of its rows.
rule write_report:
    input:
        JOBS.report_inputs,
    output:
        "results/{scale}/report/{rows}.html",
        "results/{scale}/report/{rows}.json",
        "results/{scale}/report/{rows}.csv",
    log:
        "results/{scale}/logs/write_report/{rows}.log",
    benchmark:
        "results/{scale}/benchmarks/write_report/{rows}.tsv"
    wildcard_constraints:
        rows=PLAIN_NAME,
    localrule: True
    conda:
        "../envs/patchwork.yaml"
    message:
        "write the report ({wildcards.rows})"
    shell:
        "python -m pipeline report --scale {wildcards.scale} --rows {wildcards.rows} > {log} 2>&1"
